"""Attention of several queries a request on a GPU: a program computes one block of them for one kv head.

The rows of a tile are the block's tokens times the query heads of the kv head, so a few tokens fill it. Blocks later in
a prompt see more keys; programs start with the last block, so that the longest do not come last.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from palladio.pallas_kernels.ragged_paged_attention.gpu.gpu_config import PrefillBlocks
from palladio.pallas_kernels.ragged_paged_attention.gpu.triton_tile import (
    LOWEST,
    MIN_ROWS,
    CacheReader,
    Softmax,
    compute_dtype,
    tile_lanes,
)
from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import padded_head_size
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionMetadata, AttentionOptions
from palladio.pallas_kernels.triton import load, product_precision, store


def attend(
    q: jax.Array,
    kv_pages: jax.Array,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    blocks: PrefillBlocks,
) -> jax.Array:
    """Attend tokens of requests num_decodes …, each of which sees the earlier tokens in the cache.

    q [T, N, H], kv_pages [P, K, S, 2·Hp] → [T, N, H] in q's dtype; 0 for tokens of no request, and undefined for the
    first num_decodes tokens.
    """
    T, N, H = q.shape
    P, K, S, W = kv_pages.shape
    queries = blocks.queries(N // K)
    plan = metadata.chunks_of(T, queries)
    dtype = compute_dtype(q, kv_pages)
    reader = functools.partial(
        CacheReader,
        num_kv_heads=K,
        page_size=S,
        table_width=metadata.block_table.shape[1],
        head_size=H,
        value_lane=padded_head_size(H),
        dtype=dtype,
        precision=product_precision(dtype, options.target),
        block=blocks.keys,
        soft_cap=options.soft_cap,
    )
    scales = jnp.stack([jnp.float32(options.scale) * options.k_scale, jnp.float32(1) * options.v_scale])
    inputs = [
        q,
        kv_pages.reshape(P * K * S, W),
        metadata.block_table.reshape(-1),
        scales,
        plan.request,
        plan.position,
        plan.first_token,
        plan.count,
        plan.num_blocks,
        metadata.query_start[-1:],
        *([] if options.row_scales is None else [options.row_scales]),
        *([] if options.sinks is None else [options.sinks.astype(jnp.float32)]),
    ]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    kernel = functools.partial(
        _attend_block,
        reader=reader,
        queries=queries,
        num_kv_heads=K,
        window=options.sliding_window,
        has_scales=options.row_scales is not None,
    )
    out: jax.Array = pl.pallas_call(
        kernel,
        grid=(K, plan.request.shape[0]),
        in_specs=[anywhere] * len(inputs),
        out_specs=anywhere,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=pltriton.CompilerParams(num_warps=blocks.num_warps, num_stages=blocks.num_stages),
        interpret=options.target.interpret is not None,
        name="paged_prefill",
    )(*inputs)
    return out


def _attend_block(
    *refs: jax.Array,
    reader: functools.partial[CacheReader],
    queries: int,
    num_kv_heads: int,
    window: int | None,
    has_scales: bool,
) -> None:
    """Run program (k, i): block NB - 1 - i for the query heads of kv head k."""
    q_ref, kv_ref, table_ref, scales_ref, request_ref, position_ref, token_ref, count_ref, *rest, out_ref = refs
    num_blocks_ref, num_tokens_ref, *optional = rest
    sinks_ref = optional[1:] if has_scales else optional
    T, N, H = q_ref.shape
    G = N // num_kv_heads
    head, block = pl.program_id(0), count_ref.shape[0] - 1 - pl.program_id(1)
    rows, lanes = max(MIN_ROWS, pl.next_power_of_2(queries * G)), tile_lanes(H)
    row_scales = optional[0] if has_scales else None
    cache = reader(kv_ref=kv_ref, table_ref=table_ref, head=head, scale=scales_ref[0], scales_ref=row_scales)
    num_blocks = num_blocks_ref[0]

    def where(first_token: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...], jax.Array]:
        """Return the offset in the block of every element of the tile, its index in q, and whether its row and lane
        exist."""
        row = lax.broadcasted_iota(jnp.int32, (rows, lanes), 0)
        lane = lax.broadcasted_iota(jnp.int32, (rows, lanes), 1)
        offset = lax.div(row, G)
        index = first_token + offset, head * G + lax.rem(row, G), lane
        return offset, index, (row < queries * G) & (lane < H)

    def attend_real_block() -> None:
        request, position, count = request_ref[block], position_ref[block], count_ref[block]
        offset, index, inside = where(token_ref[block])
        inside &= offset < count
        q = load(q_ref, index, inside).astype(cache.dtype)
        query_position = position + lax.div(lax.iota(jnp.int32, rows), G)
        end = position + count

        def step(index: jax.Array, softmax: Softmax, *, masked: bool) -> Softmax:
            start = index * cache.block
            begin = None if window is None else position - window + 1
            keys = cache.read(request, start, end if masked else None, begin)
            scores = cache.scores(q, keys)
            if masked:
                visible = cache.tokens(start)[None, :] <= query_position[:, None]
                if window is not None:
                    visible &= cache.tokens(start)[None, :] > query_position[:, None] - window
                scores = jnp.where(visible, scores, LOWEST)
            return softmax.add(scores, keys.values, cache.precision, keys.value_scales)

        # Blocks of keys that all queries see whole lie in the middle.
        first, full = jnp.int32(0), jnp.int32(0)
        last = lax.div(position + 1, cache.block)
        if window is not None:
            first = lax.div(jnp.maximum(position - window + 1, 0), cache.block)
            full = jnp.clip(pl.cdiv(jnp.maximum(end - window, 0), cache.block), first, jnp.maximum(last, first))
        softmax = Softmax.start(rows, lanes)
        if window is not None:
            softmax = lax.fori_loop(first, full, functools.partial(step, masked=True), softmax)
        last = jnp.maximum(last, full)
        softmax = lax.fori_loop(full, last, functools.partial(step, masked=False), softmax)
        softmax = lax.fori_loop(last, pl.cdiv(end, cache.block), functools.partial(step, masked=True), softmax)
        if sinks_ref:
            row = lax.iota(jnp.int32, rows)
            softmax = softmax.with_sinks(load(sinks_ref[0], (head * G + lax.rem(row, G),), row < queries * G))
        store(out_ref, index, softmax.finish(scales_ref[1]), inside)

    # The most blocks there can be exceed the real ones plus the blocks that padding tokens fill.
    def clear_padding() -> None:
        _, index, inside = where(num_tokens_ref[0] + (block - num_blocks) * queries)
        store(out_ref, index, jnp.zeros((rows, lanes), jnp.float32), inside & (index[0] < T))

    pl.when(block < num_blocks)(attend_real_block)
    pl.when(block >= num_blocks)(clear_padding)
