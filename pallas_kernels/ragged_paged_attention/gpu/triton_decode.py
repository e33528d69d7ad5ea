"""Attention of one query a request on a GPU: programs share the keys of a request, and the parts are added up
afterwards.

A program attends to one part of one request's keys, for the query heads of one kv head. The number of parts follows
from a request's length, so a long request, among short ones or alone, still occupies the whole device.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from palladio.pallas_kernels.ragged_paged_attention.gpu.gpu_config import DecodeBlocks
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


class Parts(NamedTuple):
    """The keys of each program; I = B + spare_parts parts, of which ends[-1] are real.

    Attributes:
        request: i32[I].
        first, end: i32[I], key positions.
        ends: i32[B], parts of requests 0 … b.
    """

    request: jax.Array
    first: jax.Array
    end: jax.Array
    ends: jax.Array


def plan_parts(kv_len: jax.Array, num_rows: jax.Array, window: int | None, blocks: DecodeBlocks) -> Parts:
    """Cut the keys of the first `num_rows` requests into parts of about the same length.

    kv_len i32[B], num_rows i32[]. Every layer of a step with the same window plans the same, so XLA does it once.
    """
    B, spare = kv_len.shape[0], blocks.spare_parts
    first = jnp.zeros_like(kv_len) if window is None else jnp.maximum(kv_len - window, 0)
    keys = jnp.where(jnp.arange(B) < num_rows, kv_len - first, 0)
    # Of this length, the requests have at most B + total / length parts.
    length = jnp.maximum(-(-keys.sum() // max(1, spare)), blocks.min_part if spare else jnp.iinfo(jnp.int32).max)
    parts = -(-keys // length)
    length = -(-keys // jnp.maximum(parts, 1))  # of each request's parts, now all alike
    length = -(-length // blocks.keys) * blocks.keys
    ends = jnp.cumsum(parts)
    number = jnp.arange(B + spare)
    # The other methods are loops, at whose every iteration a GPU's host waits.
    request = jnp.minimum(jnp.searchsorted(ends, number, side="right", method="compare_all"), B - 1)
    start = first[request] + (number - (ends - parts)[request]) * length[request]
    end = jnp.minimum(start + length[request], kv_len[request])
    return Parts(*(x.astype(jnp.int32) for x in (request, start, end, ends)))


class Partial(NamedTuple):
    """The result of each part: output f32[I, K, G, H] before the division, peak and total f32[I, K, G]."""

    output: jax.Array
    peak: jax.Array
    total: jax.Array


def attend(
    q: jax.Array,
    kv_pages: jax.Array,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    blocks: DecodeBlocks,
    onto: jax.Array | None = None,
) -> jax.Array:
    """Attend tokens 0 … num_decodes - 1, token b of request b; in a decode step, all of them.

    Args:
        q: [T, N, H].
        kv_pages: [P, K, S, 2·Hp].
        onto: [T, N, H] with the other tokens, updated in place; None: there are none.

    Returns:
        [T, N, H] in q's dtype; 0 for rows of padding.
    """
    num_rows = metadata.num_requests if metadata.kind == "decode" else metadata.num_decodes
    parts = plan_parts(metadata.kv_len, num_rows, options.sliding_window, blocks)
    partial = _attend_parts(q, kv_pages, metadata.block_table, options, parts, blocks)
    return combine_parts(partial, parts.ends, num_rows, jax.ShapeDtypeStruct(q.shape, q.dtype), options, onto)


def combine_parts(
    partial: Partial,
    ends: jax.Array,
    num_rows: jax.Array,
    result: jax.ShapeDtypeStruct,
    options: AttentionOptions,
    onto: jax.Array | None,
) -> jax.Array:
    """Combine the parts of each request.

    Args:
        partial: results with G heads for each of K programs a request.
        ends: see Parts.
        num_rows: i32[], requests that have parts.
        result: [T, N, H].
        onto: see `attend`.
    """
    sinks = [] if options.sinks is None else [options.sinks.astype(jnp.float32)]
    v_scale = jnp.asarray(options.v_scale, jnp.float32).reshape(1)
    inputs = [*partial, ends, num_rows.reshape(1), v_scale, *sinks, *([] if onto is None else [onto])]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    out: jax.Array = pl.pallas_call(
        functools.partial(_combine_parts, has_sinks=options.sinks is not None, every_row=onto is None),
        grid=(partial.output.shape[1], ends.shape[0]),
        in_specs=[anywhere] * len(inputs),
        out_specs=anywhere,
        out_shape=result,
        input_output_aliases={} if onto is None else {len(inputs) - 1: 0},
        compiler_params=pltriton.CompilerParams(num_warps=2, num_stages=1),
        interpret=options.target.interpret is not None,
        name="paged_decode_combine",
    )(*inputs)
    return out


def _attend_parts(
    q: jax.Array,
    kv_pages: jax.Array,
    block_table: jax.Array,
    options: AttentionOptions,
    parts: Parts,
    blocks: DecodeBlocks,
) -> Partial:
    _, N, H = q.shape
    P, K, S, W = kv_pages.shape
    G, num_parts = N // K, parts.request.shape[0]
    dtype = compute_dtype(q, kv_pages)
    reader = functools.partial(
        CacheReader,
        num_kv_heads=K,
        page_size=S,
        table_width=block_table.shape[1],
        head_size=H,
        value_lane=padded_head_size(H),
        dtype=dtype,
        precision=product_precision(dtype, options.target),
        block=blocks.keys,
        soft_cap=options.soft_cap,
    )
    scale = jnp.asarray(options.scale * options.k_scale, jnp.float32).reshape(1)
    inputs = [q, kv_pages.reshape(P * K * S, W), block_table.reshape(-1), scale, *parts]
    inputs += [] if options.row_scales is None else [options.row_scales]
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    of_rows = jax.ShapeDtypeStruct((num_parts, K, G), jnp.float32)
    return Partial(
        *pl.pallas_call(
            functools.partial(_attend_part, reader=reader),
            grid=(K, num_parts),
            in_specs=[anywhere] * len(inputs),
            out_specs=[anywhere] * 3,
            out_shape=[jax.ShapeDtypeStruct((*of_rows.shape, H), jnp.float32), of_rows, of_rows],
            compiler_params=pltriton.CompilerParams(num_warps=blocks.num_warps, num_stages=blocks.num_stages),
            interpret=options.target.interpret is not None,
            name="paged_decode",
        )(*inputs)
    )


def _attend_part(
    q_ref: jax.Array,
    kv_ref: jax.Array,
    table_ref: jax.Array,
    scale_ref: jax.Array,
    request_ref: jax.Array,
    first_ref: jax.Array,
    end_ref: jax.Array,
    ends_ref: jax.Array,
    *others: jax.Array,
    reader: functools.partial[CacheReader],
) -> None:
    """Run program (k, i): part i for the query heads of kv head k. others: scales, if there are some, and outputs."""
    *scales_ref, output_ref, peak_ref, total_ref = others
    G, H = output_ref.shape[2:]
    head, part = pl.program_id(0), pl.program_id(1)
    rows, lanes = max(MIN_ROWS, pl.next_power_of_2(G)), tile_lanes(H)
    scales = scales_ref[0] if scales_ref else None
    cache = reader(kv_ref=kv_ref, table_ref=table_ref, head=head, scale=scale_ref[0], scales_ref=scales)

    def attend_keys() -> None:
        request, first, end = request_ref[part], first_ref[part], end_ref[part]
        row = lax.broadcasted_iota(jnp.int32, (rows, lanes), 0)
        lane = lax.broadcasted_iota(jnp.int32, (rows, lanes), 1)
        inside = (row < G) & (lane < H)
        q = load(q_ref, (request, head * G + row, lane), inside).astype(cache.dtype)

        def step(index: jax.Array, softmax: Softmax, *, end: jax.Array | None) -> Softmax:
            start = first + index * cache.block
            keys = cache.read(request, start, end)
            scores = cache.scores(q, keys)
            if end is not None:
                scores = jnp.where(cache.tokens(start)[None, :] < end, scores, LOWEST)
            return softmax.add(scores, keys.values, cache.precision, keys.value_scales)

        length = jnp.maximum(end - first, 0)
        full = lax.div(length, cache.block)
        softmax = lax.fori_loop(0, full, functools.partial(step, end=None), Softmax.start(rows, lanes))
        softmax = lax.fori_loop(full, pl.cdiv(length, cache.block), functools.partial(step, end=end), softmax)
        store(output_ref, (part, head, row, lane), softmax.output, inside)
        heads = lax.iota(jnp.int32, rows)
        store(peak_ref, (part, head, heads), softmax.peak, heads < G)
        store(total_ref, (part, head, heads), softmax.total, heads < G)

    pl.when(part < ends_ref[ends_ref.shape[0] - 1])(attend_keys)


def _combine_parts(*refs: jax.Array, has_sinks: bool, every_row: bool) -> None:
    """Run program (k, b): token b for the query heads of kv head k."""
    output_ref, peak_ref, total_ref, ends_ref, num_rows_ref, v_scale_ref, *others, out_ref = refs
    G, H = output_ref.shape[2:]
    head, request = pl.program_id(0), pl.program_id(1)
    rows, lanes = pl.next_power_of_2(G), tile_lanes(H)
    row = lax.broadcasted_iota(jnp.int32, (rows, lanes), 0)
    lane = lax.broadcasted_iota(jnp.int32, (rows, lanes), 1)
    inside = (row < G) & (lane < H)
    heads = lax.iota(jnp.int32, rows)

    def step(part: jax.Array, sums: Softmax) -> Softmax:
        part_peak = load(peak_ref, (part, head, heads), heads < G)
        peak = jnp.maximum(sums.peak, part_peak)
        decay, weight = jnp.exp2(sums.peak - peak), jnp.exp2(part_peak - peak)
        return Softmax(
            sums.output * decay[:, None] + load(output_ref, (part, head, row, lane), inside) * weight[:, None],
            peak,
            sums.total * decay + load(total_ref, (part, head, heads), heads < G) * weight,
        )

    def add_up() -> None:
        begin = jnp.where(request > 0, ends_ref[jnp.maximum(request - 1, 0)], 0)
        sums = lax.fori_loop(begin, ends_ref[request], step, Softmax.start(rows, lanes))
        if has_sinks:
            sums = sums.with_sinks(load(others[0], (head * G + heads,), heads < G))
        store(out_ref, (request, head * G + row, lane), sums.finish(v_scale_ref[0]), inside)

    pl.when(every_row or request < num_rows_ref[0])(add_up)
