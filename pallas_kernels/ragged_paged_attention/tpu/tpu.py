"""The TPU backend: one kernel for requests of one token and one for chunks, over pages that it copies itself."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import LANES, padded_head_size
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionMetadata, AttentionOptions
from palladio.pallas_kernels.ragged_paged_attention.inputs.plan import BlockPlan
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_chunk import chunk_scratch
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_config import TpuBlocks, check, chunk_blocks, decode_blocks
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_grid import FEW, GridPlan, SharedSteps
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_kernel import NUM_INPUTS, NUM_SCALARS, attention_kernel
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_pages import (
    NUM_TABLES,
    SharedBlocks,
    padded_table,
)
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_rows import ALIGNMENT, row_scratch
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_scales import scale_scratch
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_tile import LOG2E, KernelSizes
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.tpu_mode import hbm, interpret_mode, require


def attention(q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata, options: AttentionOptions) -> jax.Array:
    """Attend: q [T, N, H], kv_pages [P, K, S, 2·Hp] → [T, N, H].

    Raises:
        NotImplementedError: the target is no TPU, or these kernels do not support the layer; see `check`.
    """
    require(options.target)
    T, N, H = q.shape
    _, K, S, _ = kv_pages.shape
    B, width = metadata.block_table.shape
    shape = AttentionShape(N, K, H, S, width, B, q.dtype, kv_pages.dtype)
    check(shape)
    sizes = decode_blocks(shape, options.target)
    if B <= FEW:
        sizes = sizes.alone()  # finding shared grid steps takes its time
    elif options.sliding_window is not None:
        sizes = sizes.up_to(options.sliding_window)  # requests that share a grid step see all their keys
    if metadata.kind == "decode":
        grid = _grid_plan(metadata, metadata.num_requests, S, sizes)
        out = attend_tokens(q, kv_pages, metadata, options, grid, sizes)
        return jnp.where(jnp.arange(T)[:, None, None] < metadata.num_requests, out, 0)
    grid = _grid_plan(metadata, metadata.num_decodes, S, sizes)
    chunks = chunk_blocks(shape, options.target)
    rows = max(T + -T % ALIGNMENT, chunks.queries)
    # All rows are laid out for chunks, and those of single tokens taken from there: were they taken from q, XLA would
    # lay q out for them.
    packed = lax.optimization_barrier(pack_chunks(q, K, rows))
    single = packed[:, :, : min(B + -B % ALIGNMENT, rows)].transpose(2, 0, 1, 3)
    decoded = _attend_packed(single, kv_pages, metadata, options, grid, sizes)
    decoded = jnp.where(jnp.arange(decoded.shape[0])[:, None, None, None] < metadata.num_decodes, decoded, 0)
    # The kernel clears the rest: XLA would write all of it, in three times the cycles of this layer's other copies.
    others = _nothing(packed, options.target).at[:, :, : decoded.shape[0]].set(decoded.transpose(1, 2, 0, 3))
    plan = metadata.chunks_of(T, chunks.queries, ALIGNMENT)
    out = attend_chunks(packed, others, decoded.shape[0], kv_pages, metadata, options, plan, chunks)
    return unpack_tokens(out[:, :, :T].transpose(2, 0, 1, 3), H)


def _grid_plan(metadata: AttentionMetadata, num_rows: jax.Array, page: int, blocks: TpuBlocks) -> GridPlan:
    sizes = page, blocks.rows, blocks.together, blocks.longest
    return GridPlan.of_rows(metadata.kv_len, num_rows, metadata.block_table, *sizes)


def attend_tokens(
    q: jax.Array,
    kv_pages: jax.Array,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    plan: GridPlan,
    blocks: TpuBlocks,
) -> jax.Array:
    """Attend requests of one token each: q [B, N, H] → the same shape. Rows beyond the plan's grid steps are not
    written."""
    B, N, H = q.shape
    K = kv_pages.shape[1]
    packed = jnp.pad(q.reshape(B, K, N // K, H), ((0, 0), (0, 0), (0, 0), (0, _lanes(H) - H)))
    return unpack_tokens(_attend_packed(packed, kv_pages, metadata, options, plan, blocks), H)


def _attend_packed(
    q: jax.Array,
    kv_pages: jax.Array,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    plan: GridPlan,
    blocks: TpuBlocks,
) -> jax.Array:
    """Attend as `attend_tokens`, with queries [B, K, G, lanes]."""
    G = q.shape[2]
    padded = jnp.pad(q, ((0, 0), (0, 0), (0, -G % 8), (0, 0)))
    return _call(padded, kv_pages, metadata, options, plan.blocks, blocks, shared=plan.shared)[:, :, :G]


def _lanes(head_size: int) -> int:
    """Return the lanes of a row of queries."""
    return max(padded_head_size(head_size), LANES)


def pack_chunks(q: jax.Array, K: int, rows: int) -> jax.Array:
    """Pack q [T, N, H] → [K, G, rows, lanes], the layout of chunks."""
    T, N, H = q.shape
    padding = ((0, 0), (0, 0), (0, rows - T), (0, _lanes(H) - H))
    return jnp.pad(q.reshape(T, K, N // K, H).transpose(1, 2, 0, 3), padding)


def unpack_tokens(out: jax.Array, head_size: int) -> jax.Array:
    """Unpack out [T, K, G, lanes] → [T, N, H]: where keys and values share a row, the result is in the values'
    lanes."""
    T, K, G, _ = out.shape
    first = 0 if padded_head_size(head_size) >= LANES else padded_head_size(head_size)
    mine: jax.Array = out[..., first : first + head_size]
    return mine.reshape(T, K * G, head_size)


def _nothing(like: jax.Array, target: Target) -> jax.Array:
    """Return an array with uninitialized memory."""
    # Interpreted, NaN, so that tests see whether all of it is written.
    if target.interpret is not None:
        return jnp.full_like(like, jnp.nan)
    unwritten: jax.Array = lax.empty(like.shape, like.dtype)
    return unwritten


def _part(size: int, wanted: int, unit: int) -> int:
    """Return the largest part of `size` up to `wanted` that divides it and is a multiple of the unit, or all of it."""
    return next((part for part in range(min(wanted, size) // unit * unit, 0, -unit) if size % part == 0), size)


def _kernel_sizes(kv_pages: jax.Array, num_rows: int, options: AttentionOptions, blocks: TpuBlocks) -> KernelSizes:
    """Return the kernel's sizes. num_rows: rows of a block of queries of one kv head (R)."""
    _, K, S, W = kv_pages.shape
    return KernelSizes(
        queries=blocks.queries,
        keys=blocks.keys,
        page=S,
        value_lane=W // 2 if W // 2 >= LANES else 0,
        window=options.sliding_window,
        soft_cap=options.soft_cap,
        sinks=options.sinks is not None,
        widths=_widths(blocks, S),
        key_chunk=_part(blocks.keys, blocks.key_chunk, LANES),
        row_chunk=_part(num_rows, blocks.row_chunk, ALIGNMENT),
        heads=_part(K, blocks.heads, 1),
        # Of weights that are multiplied by the values' scales, the sum is another one.
        multiplies_ones=blocks.multiplies_ones and blocks.queries > 1 and options.row_scales is None,
        scaled=options.row_scales is not None,
        together=blocks.together,
        longest=blocks.longest,
        rows=blocks.rows,
        halves=blocks.halves,
    )


def _widths(blocks: TpuBlocks, page: int) -> tuple[int, ...]:
    """Choose the widths of a request's last block. A chunk's products have many rows, so a few more keys cost little
    compared with another piece of code."""
    if blocks.queries > 1:
        return (blocks.keys,)
    parts = [blocks.keys >> halvings for halvings in (2, 1, 0)]
    return tuple(part for part in parts if part % math.lcm(page, LANES) == 0)


def _factors(options: AttentionOptions) -> jax.Array:
    """Return the factors f32[2] of scores and of outputs, see tpu_kernel."""
    scores = options.scale * options.k_scale
    scores = scores * LOG2E if options.soft_cap is None else scores / options.soft_cap
    return jnp.stack([jnp.asarray(scores, jnp.float32), jnp.asarray(options.v_scale, jnp.float32)])


def _sinks(options: AttentionOptions, K: int) -> jax.Array:
    """Return sinks f32[K, G rounded up, 128]: scores in base 2 like the others, one row of lanes for each query
    head."""
    sinks = jnp.zeros(K) if options.sinks is None else options.sinks.astype(jnp.float32) * LOG2E
    sinks = sinks.reshape(K, -1)
    sinks = jnp.pad(sinks, ((0, 0), (0, -sinks.shape[1] % 8)))
    return jnp.broadcast_to(sinks[..., None], (*sinks.shape, LANES))


def _cost(
    sizes: KernelSizes, num_blocks: int, R: int, q: jax.Array, kv_pages: jax.Array, context: int
) -> pl.CostEstimate:
    """Estimate the cost for the compiler, which cannot look into a kernel: every block in use, by requests of half the
    context."""
    keys = context // 2
    if sizes.window is not None:
        keys = min(keys, sizes.window + sizes.queries)
    _, K, _, W = kv_pages.shape
    scores = num_blocks * K * R * keys
    return pl.CostEstimate(
        flops=4 * scores * q.shape[-1],
        bytes_accessed=num_blocks * keys * K * W * kv_pages.dtype.itemsize + 2 * q.size * q.dtype.itemsize,
        transcendentals=scores,
    )


def attend_chunks(
    q: jax.Array,
    others: jax.Array,
    num_others: int,
    kv_pages: jax.Array,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    plan: BlockPlan,
    blocks: TpuBlocks,
) -> jax.Array:
    """Attend chunks of prompts: q [K, G, T', lanes] → the same shape.

    Args:
        others: [K, G, T', lanes], whose memory becomes the result's: of its first num_others rows, whole tiles, those
            of no block stay. Rows after those and after the last block become 0. The kernel selects, because
            XLA would fuse a later selection with the transposition into one loop, which takes a minute to compile.
    """
    return _call(q, kv_pages, metadata, options, plan, blocks, others, num_others)


def _call(
    q: jax.Array,
    kv_pages: jax.Array,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    plan: BlockPlan,
    blocks: TpuBlocks,
    others: jax.Array | None = None,
    num_others: int = 0,
    shared: SharedSteps | None = None,
) -> jax.Array:
    """Call the kernel: q [B, K, R, lanes] of requests of one token each, or [K, G, T', lanes] of chunks → the same
    shape.

    Args:
        others, num_others: for chunks, see attend_chunks.
        shared: for requests of one token, see GridPlan.
    """
    _, K, S, W = kv_pages.shape
    single, lanes = blocks.queries == 1, q.shape[3]
    R = q.shape[2] if single else q.shape[1] * blocks.queries
    sizes = _kernel_sizes(kv_pages, R, options, blocks)
    table = padded_table(metadata.block_table, options.target)
    sinks = _sinks(options, K)
    of_blocks = (plan.request, plan.position, plan.first_token, plan.count, plan.num_blocks)
    of_shared = () if shared is None else (shared.num_rows, shared.pages, *shared.rows)
    scalars = (*of_blocks, metadata.kv_len, _factors(options), *of_shared)
    block = pl.BlockSpec(memory_space=pl.ANY)
    if single:  # requests of blocks of one token are first among the scalars
        shift = blocks.rows.bit_length() - 1
        block = pl.BlockSpec((blocks.rows, K, R, lanes), lambda i, of, *_: (of[i] >> shift, 0, 0, 0))

    scales = () if options.row_scales is None else (hbm(options.row_scales, options.target),)
    operands = [table, q, sinks, hbm(kv_pages, options.target), *scales, *(() if others is None else (others,))]
    call = pl.pallas_call(
        functools.partial(_kernel, sizes=sizes, num_others=None if others is None else num_others),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(plan.num_blocks[0] if single else jnp.maximum(plan.num_blocks[0], 1),),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.HBM),
                block,
                pl.BlockSpec(sinks.shape, lambda i, *_: (0, 0, 0)),
                pl.BlockSpec(memory_space=pltpu.HBM),
                *(pl.BlockSpec(memory_space=pltpu.HBM) for _ in scales),
                *(() if others is None else (block,)),
            ],
            out_specs=block,
            scratch_shapes=[
                pltpu.VMEM((2, K, sizes.keys, W), kv_pages.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.VMEM((K, R, LANES), jnp.float32),
                pltpu.VMEM((K, R, LANES), jnp.float32),
                pltpu.VMEM((K, R, lanes), jnp.float32),
                pltpu.SMEM((1,), jnp.int32),
                pltpu.SMEM((NUM_TABLES * table.shape[1] + sizes.pages,), jnp.int32),
                pltpu.SemaphoreType.DMA((NUM_TABLES,)),
                *(piece for one in scales for piece in scale_scratch(one.shape[1:], sizes)),
                *(() if single else (*row_scratch(K, R, lanes, q.dtype, sizes), *chunk_scratch(R, q.dtype, sizes))),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        input_output_aliases={} if others is None else {len(scalars) + len(operands) - 1: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=blocks.vmem, disable_bounds_checks=True
        ),
        cost_estimate=_cost(sizes, plan.request.shape[0], R, q, kv_pages, table.shape[1] * S),
        interpret=interpret_mode(options.target),
        name=f"paged_attention_{'decode' if single else 'chunk'}_{R}x{sizes.keys}",
    )
    out: jax.Array = call(*scalars, *operands)
    return out


def _kernel(*refs: Any, sizes: KernelSizes, num_others: int | None) -> None:
    """Run the kernel with its optional references: after the usual scalars those of shared grid steps; after the usual
    inputs the scales of an int8 cache, and, for chunks, `others`, whose memory is the output's."""
    shared = None
    if sizes.together > 1:
        behind = NUM_SCALARS + 2 + sizes.together
        num_rows, pages, *rows = refs[NUM_SCALARS:behind]
        shared = SharedBlocks(num_rows, pages, tuple(rows))
        refs = (*refs[:NUM_SCALARS], *refs[behind:])
    in_pages = refs[NUM_INPUTS] if sizes.scaled else None
    outputs = NUM_INPUTS + sizes.scaled + (num_others is not None)
    attention_kernel(
        *refs[:NUM_INPUTS],
        *refs[outputs:],
        sizes=sizes,
        num_others=num_others or 0,
        in_pages=in_pages,
        shared=shared,
    )
