"""The TPU backend: one kernel for requests of one token and one for chunks, over pages that it copies itself."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.ragged_paged_attention.config import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.layout import LANES, padded_head_size
from palladio.pallas_kernels.ragged_paged_attention.metadata import AttentionMetadata, AttentionOptions
from palladio.pallas_kernels.ragged_paged_attention.plan import BlockPlan
from palladio.pallas_kernels.ragged_paged_attention.tpu_chunk import chunk_scratch
from palladio.pallas_kernels.ragged_paged_attention.tpu_config import TpuBlocks, check, chunk_blocks, decode_blocks
from palladio.pallas_kernels.ragged_paged_attention.tpu_kernel import attention_kernel
from palladio.pallas_kernels.ragged_paged_attention.tpu_tile import LOG2E, KernelSizes
from palladio.pallas_kernels.tpu_mode import hbm, interpret_mode, require

ROWS = 16  # of a native tile of 16 bits


def attention(q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata, options: AttentionOptions) -> jax.Array:
    """q [T, N, H], kv_pages [P, K, S, 2·Hp] → [T, N, H].

    Raises:
        NotImplementedError: the target is no TPU, or the layer is none for these kernels; see `check`.
    """
    require(options.target)
    T, N, H = q.shape
    _, K, S, _ = kv_pages.shape
    B, width = metadata.block_table.shape
    shape = AttentionShape(N, K, H, S, width, B, q.dtype, kv_pages.dtype)
    check(shape)
    sizes = decode_blocks(shape, options.target)
    token = jnp.arange(T)[:, None, None]
    if metadata.kind == "decode":
        plan = BlockPlan.of_rows(metadata.kv_len, metadata.num_requests)
        out = _attend(q[:, None], kv_pages, metadata, options, plan, sizes)[:, 0]
        return jnp.where(token < metadata.num_requests, out, 0)
    plan = BlockPlan.of_rows(metadata.kv_len, metadata.num_decodes)
    first = jnp.pad(q[:B], ((0, max(0, B - T)), (0, 0), (0, 0)))
    decoded = _attend(first[:, None], kv_pages, metadata, options, plan, sizes)[:, 0]
    sizes = chunk_blocks(shape, options.target)
    plan = metadata.chunks_of(T, sizes.queries)
    chunks = plan.scatter(_attend(plan.gather(q), kv_pages, metadata, options, plan, sizes))
    decoded = jnp.pad(decoded[:T], ((0, max(0, T - B)), (0, 0), (0, 0)))
    out = jnp.where(token < metadata.num_decodes, decoded, chunks)
    return jnp.where(token < metadata.query_start[-1], out, 0)


def _part(size: int, wanted: int, unit: int) -> int:
    """The largest part of `size` up to `wanted` that divides it and is a multiple of the unit, or all of it."""
    return next((part for part in range(min(wanted, size) // unit * unit, 0, -unit) if size % part == 0), size)


def _attend(
    q: jax.Array,
    kv_pages: jax.Array,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    plan: BlockPlan,
    blocks: TpuBlocks,
) -> jax.Array:
    """q [NB, queries, N, H] → the same, attended; blocks beyond the plan's are not written."""
    NB, queries, N, H = q.shape
    _, K, S, _ = kv_pages.shape
    G = N // K
    Hp = padded_head_size(H)
    lanes = max(Hp, LANES)
    spare_groups = -G % 8 if queries == 1 else 0
    grouped = q.reshape(NB, queries, K, G, H).transpose(0, 2, 3, 1, 4)
    padding = ((0, 0), (0, 0), (0, spare_groups), (0, 0), (0, lanes - H))
    packed = jnp.pad(grouped, padding).reshape(NB, K, (G + spare_groups) * queries, lanes)
    table = jnp.pad(metadata.block_table, ((0, 0), (0, -metadata.block_table.shape[1] % (blocks.keys // S))))
    sizes = KernelSizes(
        queries=queries,
        keys=blocks.keys,
        page=S,
        value_lane=Hp if Hp >= LANES else 0,
        window=options.sliding_window,
        soft_cap=options.soft_cap,
        sinks=options.sinks is not None,
        key_chunk=_part(blocks.keys, blocks.key_chunk, LANES),
        row_chunk=_part(packed.shape[2], blocks.row_chunk, ROWS),
        heads=_part(K, blocks.heads, 1),
        multiplies_ones=blocks.multiplies_ones and queries > 1,
    )
    scores = options.scale * options.k_scale
    scores = scores * LOG2E if options.soft_cap is None else scores / options.soft_cap
    factors = jnp.stack([jnp.asarray(scores, jnp.float32), jnp.asarray(options.v_scale, jnp.float32)])
    # A sink is a score: in base 2 like the others, and a row of lanes for each query head.
    sinks = jnp.zeros(N) if options.sinks is None else options.sinks.astype(jnp.float32) * LOG2E
    sinks = jnp.pad(sinks.reshape(K, G), ((0, 0), (0, -G % 8)))
    sinks = jnp.broadcast_to(sinks[..., None], (*sinks.shape, LANES))
    scalars = (plan.request, plan.position, plan.count, plan.num_blocks, metadata.kv_len, factors)
    out = _call(sizes, blocks, scalars, table[:, None], packed, sinks, kv_pages, options)
    out = out.reshape(NB, K, G + spare_groups, queries, lanes)[:, :, :G]
    first = 0 if sizes.value_lane else Hp
    return out[..., first : first + H].transpose(0, 3, 1, 2, 4).reshape(NB, queries, N, H)


def _cost(sizes: KernelSizes, q: jax.Array, kv_pages: jax.Array, table_width: int) -> pl.CostEstimate:
    """For the compiler, which cannot look into a kernel: every block in use, by requests of half the longest length."""
    NB, K, R, lanes = q.shape
    keys = table_width * sizes.page // 2
    if sizes.window is not None:
        keys = min(keys, sizes.window + sizes.queries)
    scores = NB * K * R * keys
    row_bytes = K * kv_pages.shape[-1] * kv_pages.dtype.itemsize
    return pl.CostEstimate(
        flops=4 * scores * lanes,
        bytes_accessed=NB * keys * row_bytes + 2 * q.size * q.dtype.itemsize,
        transcendentals=scores,
    )


def _call(
    sizes: KernelSizes,
    blocks: TpuBlocks,
    scalars: tuple[jax.Array, ...],
    table: jax.Array,
    q: jax.Array,
    sinks: jax.Array,
    kv_pages: jax.Array,
    options: AttentionOptions,
) -> jax.Array:
    """q [NB, K, R, lanes], table i32[B, 1, Pmax] → q's shape, attended."""
    _, K, R, lanes = q.shape
    num_blocks = scalars[3]
    block = pl.BlockSpec((1, K, R, lanes), lambda i, *_: (i, 0, 0, 0))

    # Of the block table, scalar memory holds the rows of two requests: it has no room for all.
    def this_table(i: jax.Array, request: Any, *_: Any) -> tuple[Any, ...]:
        return request[i], 0, 0

    def next_table(i: jax.Array, request: Any, *_: Any) -> tuple[Any, ...]:
        return request[jnp.minimum(i + 1, request.shape[0] - 1)], 0, 0

    call = pl.pallas_call(
        functools.partial(attention_kernel, sizes=sizes),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(num_blocks[0],),
            in_specs=[
                pl.BlockSpec((1, 1, table.shape[2]), this_table, memory_space=pltpu.SMEM),
                pl.BlockSpec((1, 1, table.shape[2]), next_table, memory_space=pltpu.SMEM),
                block,
                pl.BlockSpec(sinks.shape, lambda i, *_: (0, 0, 0)),
                pl.BlockSpec(memory_space=pltpu.HBM),
            ],
            out_specs=block,
            scratch_shapes=[
                pltpu.VMEM((2, K, sizes.keys, kv_pages.shape[-1]), kv_pages.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.VMEM((K, R, LANES), jnp.float32),
                pltpu.VMEM((K, R, LANES), jnp.float32),
                pltpu.VMEM((K, R, lanes), jnp.float32),
                pltpu.SMEM((1,), jnp.int32),
                *(chunk_scratch(R, q.dtype, sizes) if sizes.queries > 1 else ()),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=blocks.vmem, disable_bounds_checks=True
        ),
        cost_estimate=_cost(sizes, q, kv_pages, table.shape[2]),
        interpret=interpret_mode(options.target),
        name=f"paged_attention_{'decode' if sizes.queries == 1 else 'chunk'}_{R}x{sizes.keys}",
    )
    out: jax.Array = call(*scalars, table, table, q, sinks, hbm(kv_pages, options.target))
    return out
