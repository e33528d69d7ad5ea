"""The TPU backend: one kernel for requests of one token and one for chunks, over pages that it copies itself."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.latent_attention.layout import LANES, LatentOptions, latent_shape
from palladio.pallas_kernels.latent_attention.tpu_config import LatentBlocks, latent_blocks, padded_heads
from palladio.pallas_kernels.latent_attention.tpu_kernel import latent_kernel
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata
from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.inputs.plan import BlockPlan
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_config import check
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_pages import NUM_TABLES, padded_table
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_tile import LOG2E, KernelSizes
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.tpu_mode import hbm, interpret_mode, require

NUM_SCALARS = 6


def attention(q: jax.Array, pages: jax.Array, metadata: AttentionMetadata, options: LatentOptions) -> jax.Array:
    """Attend: q [T, N, W], pages [P, S, W] → [T, N, L].

    Raises:
        NotImplementedError: the target is no TPU, or the kernel does not support the layer.
    """
    target = options.target
    require(target)
    T, N, _ = q.shape
    shape = latent_shape(N, pages, metadata.block_table, q.dtype)
    check(shape)
    heads, single = padded_heads(N), latent_blocks("decode", shape, target)
    chunks = None if metadata.kind == "decode" else latent_blocks("chunk", shape, target)
    num_tokens = T if chunks is None else max(T, chunks.queries)
    rows = jnp.pad(q, ((0, num_tokens - T), (0, heads - N), (0, 0))).reshape(num_tokens * heads, -1)
    num_single = metadata.num_requests if chunks is None else metadata.num_decodes
    out = attend_blocks(rows, pages, metadata, BlockPlan.of_rows(metadata.kv_len, num_single), single, options)
    if chunks is not None:
        out = attend_blocks(rows, pages, metadata, metadata.chunks_of(T, chunks.queries), chunks, options, out)
    # Rows of padding are in no block, so the kernel has not written them.
    is_real = jnp.arange(T)[:, None, None] < metadata.query_start[-1]
    return jnp.where(is_real, out.reshape(num_tokens, heads, -1)[:T, :N, : options.size], 0)


def chunk_tokens(shape: AttentionShape, target: Target) -> int:
    """Return the tokens of a block of a chunk."""
    return latent_blocks("chunk", shape, target).queries


def attend_blocks(
    q: jax.Array,
    pages: jax.Array,
    metadata: AttentionMetadata,
    plan: BlockPlan,
    blocks: LatentBlocks,
    options: LatentOptions,
    others: jax.Array | None = None,
) -> jax.Array:
    """Attend the queries of a plan's blocks: q [T · heads, W] → [T · heads, L in whole rows of lanes].

    Args:
        others: an array of the result's shape that becomes the result: rows of no block stay. None: these are not
            written at all.
    """
    target, (_, S, W) = options.target, pages.shape
    width, rows, keys = -(-options.size // LANES) * LANES, blocks.rows, blocks.keys
    sizes = KernelSizes(
        queries=blocks.queries,
        keys=keys,
        page=S,
        value_lane=0,
        window=None,
        soft_cap=None,
        sinks=False,
        widths=(keys,),
        key_chunk=blocks.key_chunk,
        row_chunk=blocks.row_chunk,
        heads=1,
        multiplies_ones=False,
    )
    table = padded_table(metadata.block_table, target)
    scalars = (plan.request, plan.position, plan.first_token, plan.count, plan.num_blocks, metadata.kv_len)
    operands = [table, q, hbm(pages[:, None], target), *(() if others is None else (others,))]
    of_unit = (blocks.row_chunk, blocks.key_chunk)
    stage = [
        pltpu.VMEM(of_unit, jnp.float32),
        pltpu.VMEM(of_unit, q.dtype),
        pltpu.VMEM((blocks.row_chunk, LANES), jnp.float32),
    ]
    anywhere = pl.BlockSpec(memory_space=pltpu.HBM)
    call = pl.pallas_call(
        functools.partial(
            _kernel, has_others=others is not None, blocks=blocks, sizes=sizes, factor=options.scale * LOG2E
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(plan.num_blocks[0],),
            in_specs=[anywhere] * len(operands),
            out_specs=anywhere,
            scratch_shapes=[
                pltpu.VMEM((2, 1, keys, W), pages.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.SMEM((NUM_TABLES * table.shape[1] + sizes.pages,), jnp.int32),
                pltpu.SemaphoreType.DMA((NUM_TABLES,)),
                pltpu.SMEM((1,), jnp.int32),
                pltpu.VMEM((2, rows, W), q.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.VMEM((rows, width), q.dtype),
                pltpu.SemaphoreType.DMA((1,)),
                pltpu.VMEM((rows, LANES), jnp.int32),
                pltpu.VMEM((rows, LANES), jnp.float32),
                pltpu.VMEM((rows, LANES), jnp.float32),
                pltpu.VMEM((rows, width), jnp.float32),
                *stage,
                *stage,
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((q.shape[0], width), q.dtype),
        input_output_aliases={} if others is None else {len(scalars) + len(operands) - 1: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=blocks.vmem, disable_bounds_checks=True
        ),
        cost_estimate=_cost(blocks, plan.request.shape[0], q, width, pages, table.shape[1] * S),
        interpret=interpret_mode(target),
        name=f"latent_attention_{'decode' if blocks.queries == 1 else 'chunk'}_{rows}x{keys}",
    )
    out: jax.Array = call(*scalars, *operands)
    return out


def _kernel(*refs: jax.Array, has_others: bool, blocks: LatentBlocks, sizes: KernelSizes, factor: float) -> None:
    """Run latent_kernel without the reference of `others`, whose memory is the output's."""
    inputs = NUM_SCALARS + 3
    rest = refs[inputs + 1 :] if has_others else refs[inputs:]
    latent_kernel(*refs[:inputs], *rest, blocks=blocks, sizes=sizes, factor=factor)


def _cost(
    blocks: LatentBlocks, num_blocks: int, q: jax.Array, width: int, pages: jax.Array, context: int
) -> pl.CostEstimate:
    """Estimate the cost for the compiler, which cannot look into a kernel: every block in use, by requests of half the
    context."""
    keys, W = context // 2, q.shape[1]
    scores = num_blocks * blocks.rows * keys
    return pl.CostEstimate(
        flops=2 * scores * (W + width),
        bytes_accessed=num_blocks * keys * W * pages.dtype.itemsize + q.shape[0] * (W + width) * q.dtype.itemsize,
        transcendentals=scores,
    )
