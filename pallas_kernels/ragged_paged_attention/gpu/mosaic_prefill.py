"""Attention of several queries a request on a Hopper GPU, written for its copy engine and its asynchronous products.

A block of threads computes one query head for up to 128 consecutive tokens of one request. One warpgroup fetches pages
into a ring of buffers; the others, each with 64 of the tokens, wait for a buffer, multiply, and hand it back
(mosaic_tile). Query heads that share keys run side by side, so their pages come from the device's cache.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from palladio.pallas_kernels import mosaic
from palladio.pallas_kernels.mosaic import WARPGROUP_ROWS
from palladio.pallas_kernels.ragged_paged_attention.gpu.gpu_config import MosaicBlocks
from palladio.pallas_kernels.ragged_paged_attention.gpu.mosaic_tile import Block, Buffers, QueryTile
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionMetadata, AttentionOptions


def attend(
    q: jax.Array,
    kv_pages: jax.Array,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    blocks: MosaicBlocks,
) -> jax.Array:
    """Attend tokens of requests num_decodes …, each of which sees the earlier tokens in the cache.

    q [T, N, H], kv_pages [P, K, S, 2·Hp] → [T, N, H] in q's dtype; 0 for tokens of no request, and undefined for the
    first num_decodes tokens.
    """
    T, N, H = q.shape
    plan = metadata.chunks_of(T, blocks.queries)
    interpreted = options.target.interpret is not None
    kernel = functools.partial(
        _attend_block,
        blocks=blocks,
        group=N // kv_pages.shape[1],
        table_width=metadata.block_table.shape[1],
        window=options.sliding_window,
        soft_cap=options.soft_cap,
        interpreted=interpreted,
        has_sinks=options.sinks is not None,
    )
    scales = jnp.stack([jnp.float32(options.scale) * options.k_scale, jnp.float32(1) * options.v_scale])
    sinks = [] if options.sinks is None else [options.sinks.astype(jnp.float32)]
    out: jax.Array = plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(q.shape, q.dtype),
        scratch_types=_buffers(q.dtype, H, min(blocks.keys, kv_pages.shape[2]), blocks, interpreted)._asdict(),
        grid=(plan.request.shape[0], N),
        grid_names=("block", "head"),
        num_threads=blocks.warpgroups + 1,
        thread_name="warpgroup",
        kernel_name="paged_prefill_mosaic",
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
            lowering_semantics=plgpu.LoweringSemantics.Lane,  # layouts as they are written here
        ),
        interpret=mosaic.interpreter(options.target, blocks.warpgroups + 1),
    )(
        q,
        kv_pages,
        metadata.block_table.reshape(-1),
        scales,
        plan.request,
        plan.position,
        plan.first_token,
        plan.count,
        plan.num_blocks,
        metadata.query_start[-1:],
        *sinks,
    )
    return out


def _buffers(dtype: Any, head_size: int, copied_rows: int, blocks: MosaicBlocks, interpreted: bool) -> Buffers:
    """Return the kernel's buffers. copied_rows: rows of a page that one copy brings."""
    warpgroups, stages, keys = blocks.warpgroups, blocks.stages, blocks.keys

    def swizzled(*shape: int) -> Any:
        return plgpu.SMEM(shape, dtype, transforms=mosaic.SWIZZLED)

    there = plgpu.Barrier(num_arrivals=keys // copied_rows, num_barriers=stages)
    free = plgpu.Barrier(num_arrivals=warpgroups, num_barriers=stages)
    return Buffers(
        q=swizzled(warpgroups, WARPGROUP_ROWS, head_size),
        keys=swizzled(stages, keys, head_size),
        values=swizzled(stages, keys, head_size),
        out=plgpu.SMEM((warpgroups, WARPGROUP_ROWS, head_size), dtype),
        weights=swizzled(warpgroups, WARPGROUP_ROWS, keys) if interpreted else plgpu.SMEM((1,), jnp.int32),
        q_there=plgpu.Barrier(num_barriers=warpgroups),
        keys_there=there,
        values_there=there,
        keys_free=free,
        values_free=free,
        cleaned=plgpu.Barrier(num_arrivals=warpgroups),
    )


def _attend_block(
    *refs: Any,
    blocks: MosaicBlocks,
    group: int,
    table_width: int,
    window: int | None,
    soft_cap: float | None,
    interpreted: bool,
    has_sinks: bool,
    **scratch: Any,
) -> None:
    """Run block i and query head n of the grid: block NB - 1 - i, so that the longest blocks of a prompt do not come
    last."""
    q_ref, kv_ref, table_ref, scales_ref, *plan, out_ref = refs
    sinks_ref = plan.pop() if has_sinks else None
    buffers = Buffers(**scratch)
    block = _read_plan(*plan, num_tokens=q_ref.shape[0], blocks=blocks, window=window)
    warpgroup = lax.axis_index("warpgroup")

    def compute() -> None:
        if blocks.warpgroups > 1:
            plgpu.set_max_registers(mosaic.COMPUTE_REGISTERS, action="increase")
        tile = QueryTile(block, warpgroup, blocks, buffers, window, soft_cap, interpreted)
        sink = None if sinks_ref is None else sinks_ref[block.head]
        tile.write(tile.attend(q_ref, scales_ref[0]), out_ref, scales_ref[1], sink)

    def fetch() -> None:
        if blocks.warpgroups > 1:
            plgpu.set_max_registers(mosaic.FETCH_REGISTERS, action="decrease")
        _fetch_pages(block, kv_ref, table_ref, buffers, blocks, group, table_width, window)

    pl.when(warpgroup < blocks.warpgroups)(compute)
    pl.when(warpgroup == blocks.warpgroups)(fetch)


def _read_plan(
    request_ref: Any,
    position_ref: Any,
    token_ref: Any,
    count_ref: Any,
    num_blocks_ref: Any,
    num_tokens_ref: Any,
    *,
    num_tokens: int,
    blocks: MosaicBlocks,
    window: int | None,
) -> Block:
    index = request_ref.shape[0] - 1 - lax.axis_index("block")
    real = index < num_blocks_ref[0]
    position = position_ref[index]
    # The most blocks there can be exceed the real ones plus the blocks that padding tokens fill.
    padding = num_tokens_ref[0] + (index - num_blocks_ref[0]) * blocks.queries
    first_token = jnp.where(real, token_ref[index], jnp.minimum(padding, num_tokens))
    count = jnp.where(real, count_ref[index], jnp.minimum(num_tokens - first_token, blocks.queries))
    end = position + count
    first = jnp.int32(0) if window is None else lax.div(jnp.maximum(position - window + 1, 0), jnp.int32(blocks.keys))
    steps = jnp.where(real, lax.div(end + (blocks.keys - 1), jnp.int32(blocks.keys)) - first, 0)
    head = lax.axis_index("head")
    return Block(head, request_ref[index], position, first_token, count, end, first, steps)


def _fetch_pages(
    block: Block,
    kv_ref: Any,
    table_ref: Any,
    buffers: Buffers,
    blocks: MosaicBlocks,
    group: int,
    table_width: int,
    window: int | None,
) -> None:
    """Keep the ring of buffers full."""
    stages, keys, page_size = blocks.stages, blocks.keys, kv_ref.shape[2]
    rows, head_size = min(keys, page_size), buffers.keys.shape[-1]
    kv_head = lax.div(block.head, jnp.int32(group))
    # Pages before the window belong to other requests by now: they may hold NaN, and 0 · NaN is NaN.
    oldest = jnp.int32(0) if window is None else jnp.maximum(block.position - window + 1, 0)
    first_page, last_page = (lax.div(token, jnp.int32(page_size)) for token in (oldest, block.end - 1))

    def fetch(step: jax.Array, slot: jax.Array) -> None:
        tokens = [(block.first_step + step) * keys + part * rows for part in range(keys // rows)]
        # All page numbers before the first copy, which they could not overtake. In place of pages before the window and
        # beyond the end, the first or the last page that is seen.
        numbers = [jnp.clip(lax.div(token, jnp.int32(page_size)), first_page, last_page) for token in tokens]
        pages = [table_ref[block.request * table_width + number] for number in numbers]
        for part, (token, page) in enumerate(zip(tokens, pages, strict=True)):
            source = kv_ref.at[page, kv_head]
            if rows < page_size:
                source = source.at[pl.ds(lax.rem(token, jnp.int32(page_size)), rows)]
            into = pl.ds(part * rows, rows)
            for lane, buffer, there in (
                (0, buffers.keys, buffers.keys_there),
                (head_size, buffers.values, buffers.values_there),
            ):
                plgpu.copy_gmem_to_smem(source.at[:, pl.ds(lane, head_size)], buffer.at[slot, into], there.at[slot])

    def wait_until_free(step: jax.Array) -> jax.Array:
        slot = lax.rem(step, jnp.int32(stages))
        plgpu.barrier_wait(buffers.keys_free.at[slot])
        plgpu.barrier_wait(buffers.values_free.at[slot])
        return slot

    def refill(step: jax.Array) -> None:
        fetch(step + stages, wait_until_free(step))

    def drain(step: jax.Array) -> None:
        wait_until_free(step)

    pl.loop(0, jnp.minimum(block.num_steps, stages))(lambda step: fetch(step, step))
    ahead = jnp.maximum(block.num_steps - stages, 0)
    pl.loop(0, ahead)(refill)
    pl.loop(ahead, block.num_steps)(drain)  # every barrier's last phase is waited for: JAX's interpreter asks for that
