"""The TPU kernel: one grid step a block of queries of one request, with an inner loop over blocks of its keys; or one
grid step for several short requests of one token.

The kernel copies pages itself (tpu_pages) into one of two buffers, always one block ahead, across grid steps too: the
last block of keys of one request starts the first one of the next.

Rows are group-major: row g · queries + j is query j of the g-th query head of a kv head, so a row's position is a
remainder of a power of two. Choices that the compiler's own counts confirmed (2026-11, libtpu 0.0.42):
- peak and total are [rows, 128], all lanes of the peak equal: widening them is a concatenation, not lane work.
- the total stays a sum a lane until the end (one cross-lane sum a block of queries, not one a block of keys), or comes
  from the matrix unit.
- the scale is folded into the exponent of 2, so a score costs one product less.
- blocks of keys that every query sees skip the mask.
- the last keys of a request of one token cost as much as a quarter, a half or the whole of a block.
- short requests of one token share a grid step (tpu_short): in one of its own each waits for the matrix unit.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import LANES
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_chunk import ChunkBlock
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_pages import (
    KeyBuffers,
    QueryBlocks,
    SharedBlocks,
    start_walk,
    walk_keys,
    walk_shared,
)
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_rows import NUM_ROW_SCRATCH, ChunkRows
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_scales import RowScales
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_short import ShortRequests
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_tile import (
    LOG2E,
    LOWEST,
    KernelSizes,
    as_dtype,
    lanes,
    product,
)

Ref = Any
NUM_SCALARS = 7  # of attention_kernel, without those of shared grid steps
NUM_INPUTS = 11  # without the scales of a cache of int8 too
SCORE_FACTOR, OUTPUT_FACTOR = 0, 1  # of the factors


@dataclasses.dataclass(frozen=True, slots=True)
class _State:
    """The online softmax: peak and total f32[K, R, 128], output f32[K, R, Hp]."""

    peak: Ref
    total: Ref
    output: Ref

    def reset(self) -> None:
        self.peak[...] = jnp.full_like(self.peak, LOWEST)
        self.total[...] = jnp.zeros_like(self.total)
        self.output[...] = jnp.zeros_like(self.output)


def attention_kernel(
    request: Ref,
    position: Ref,
    first_token: Ref,
    count: Ref,
    num_blocks: Ref,
    kv_len: Ref,
    factors: Ref,
    block_table: Ref,
    q: Ref,
    sinks: Ref,
    kv_pages: Ref,
    out: Ref,
    rows: Ref,
    arrived: Ref,
    peak: Ref,
    total: Ref,
    output: Ref,
    slot_of: Ref,
    tables: Ref,
    tables_arrived: Ref,
    *more: Ref,
    sizes: KernelSizes,
    num_others: int = 0,
    in_pages: Ref | None = None,
    shared: SharedBlocks | None = None,
) -> None:
    """Run a grid step. Scalars request … kv_len, block_table: see QueryBlocks; first_token: see BlockPlan; factors
    f32[2].

    Args:
        q, out: [rows, K, R, Hp] for requests of one token; for chunks see ChunkRows.
        sinks: f32[K, ≥G, 128] (in base 2).
        kv_pages: the cache in HBM.
        rows, arrived: see KeyBuffers.
        peak, total, output: see _State.
        slot_of: i32[1], the buffer to read next.
        tables, tables_arrived: see QueryBlocks.
        more: for a cache of int8 scale_scratch, and for chunks row_scratch and chunk_scratch.
        num_others: see ChunkRows.clear_rest.
        in_pages: the scales of a cache of int8.
        shared: shared grid steps; None: there are none.
    """
    i = pl.program_id(0)
    blocks = QueryBlocks(
        request, position, count, num_blocks, kv_len, block_table, tables, tables_arrived, sizes, shared
    )
    scales: RowScales | None = None
    chunk = more
    if sizes.scaled:
        (copied, scales_arrived, laid_out), chunk = more[:3], more[3:]
        scales = RowScales(in_pages, copied, scales_arrived, laid_out, kv_pages.shape[1], sizes)
    buffers = KeyBuffers(kv_pages, rows, arrived, blocks, scales)
    state = _State(peak, total, output)
    num = num_blocks[0]
    moved = ChunkRows(first_token, count, q, out, chunk[:NUM_ROW_SCRATCH], sizes) if chunk else None

    def chunk_block(moved: ChunkRows, slot: jax.Array) -> ChunkBlock:
        scratch = chunk[NUM_ROW_SCRATCH:]
        queries, mine = moved.queries, moved.slot(i)
        return ChunkBlock(queries, mine, rows, slot, peak, total, output, factors[SCORE_FACTOR], scratch, sizes, scales)

    def _first() -> None:
        slot_of[0] = 0
        if moved is not None:
            moved.start(i)
            moved.keep_first_tile(i)
        start_walk(i, buffers)

    pl.when((i == 0) & (num > 0))(_first)

    def _block() -> None:
        state.reset()
        end, at = blocks.end(i), position[i]
        row = request[i] & (sizes.rows - 1) if sizes.rows > 1 else 0
        if moved is not None:
            _swap_queries(moved, i, num)

        def add(base: jax.Array, slot: jax.Array, width: int | None) -> None:
            masked = width is not None
            if moved is None:
                where = (base, at, end) if masked else None
                _add_keys(q, row, rows, slot, state, factors, sizes, scales, width or sizes.keys, where)
                return
            if masked:
                chunk_block(moved, slot).write_limits(base, at - moved.skipped(i), end)
            chunk_block(moved, slot).add(masked=masked)

        slot_of[0] = walk_keys(i, buffers, slot_of[0], add)
        if moved is None:
            _finish(out, row, sinks, state, factors, sizes)
            return
        pl.when(i > 0)(lambda: moved.wait_leaving(i - 1))
        _finish(moved.attended, 0, sinks, state, factors, sizes)
        moved.join(i)
        moved.start_leaving(i)
        pl.when(i + 1 == num)(lambda: moved.wait_leaving(i))

    def _shared(size: int) -> None:
        slot = slot_of[0]
        slot_of[0] = walk_shared(i, buffers, slot, size)
        requests = [(of & (sizes.rows - 1), num_keys) for of, num_keys in blocks.requests(i, size)]
        if scales is not None:
            scales.lay_out(slot, [(0, num_keys) for _, num_keys in requests], size)
        of_scores, of_output = factors[SCORE_FACTOR], factors[OUTPUT_FACTOR]
        ShortRequests(q, out, rows, slot, sinks, requests, size, of_scores, of_output, sizes, scales).attend()

    def _step() -> None:
        blocks.when_alone(i, _block)
        blocks.when_shared(i, _shared)

    pl.when(i < num)(_step)
    if moved is not None:
        pl.when(i + 1 >= num)(lambda: moved.clear_rest(num, num_others))


def _swap_queries(moved: ChunkRows, i: jax.Array, num: jax.Array) -> None:
    """Start the copy of the next block's queries, and wait for that of this block's."""
    pl.when(i + 1 < num)(lambda: moved.start(i + 1))
    moved.wait(i)


def _add_keys(
    q: Ref,
    row: jax.Array | int,
    rows: Ref,
    slot: jax.Array,
    state: _State,
    factors: Ref,
    sizes: KernelSizes,
    scales: RowScales | None,
    width: int,
    where: tuple[jax.Array, jax.Array, jax.Array] | None,
) -> None:
    """Add the first `width` keys of a block, for a request of one token: a row of q. where: (position of the first key,
    of the query, keys in all); None: it sees all."""
    waiting: Callable[[], None] | None = None
    sizes = dataclasses.replace(sizes, key_chunk=min(sizes.key_chunk, width))
    for first_key in range(0, width, sizes.key_chunk):
        visible = None if where is None else _visible(where, first_key, q.shape[2], sizes)
        for head in range(q.shape[1]):
            # The second product of one head is issued after the first of the next, so the units overlap.
            add = _add_chunk(q, row, rows, slot, state, factors, sizes, scales, (head, first_key), visible)
            if waiting is not None:
                waiting()
            waiting = add
    if waiting is not None:
        waiting()


def _visible(
    where: tuple[jax.Array, jax.Array, jax.Array], first_key: int, num_rows: int, sizes: KernelSizes
) -> jax.Array:
    """Return the mask bool[R, key_chunk]."""
    base, at, end = where
    key = (base + first_key) + lax.broadcasted_iota(jnp.int32, (num_rows, sizes.key_chunk), 1)
    visible = key < end
    return visible if sizes.window is None else visible & (key > at - sizes.window)


def _add_chunk(
    q: Ref,
    row: jax.Array | int,
    rows: Ref,
    slot: jax.Array,
    state: _State,
    factors: Ref,
    sizes: KernelSizes,
    scales: RowScales | None,
    place: tuple[int, int],
    visible: jax.Array | None,
) -> Callable[[], None]:
    """Compute scores and weights of one head, and return a function that adds the values."""
    head, first_key = place
    these = pl.ds(first_key, sizes.key_chunk)
    queries = q[row, head]
    keys = values = as_dtype(rows[slot, head, these, :], queries.dtype)
    if sizes.value_lane:
        keys, values = keys[:, : sizes.value_lane], values[:, sizes.value_lane :]
    scores = product(queries, keys, (1, 1))
    if scales is not None:
        scores *= scales.of_keys(head, first_key, sizes.key_chunk)
    factor: jax.Array | float = factors[SCORE_FACTOR]  # scale · log2(e), or with a soft cap scale / cap
    if sizes.soft_cap is not None:
        scores = jnp.tanh(scores * factor)
        factor = sizes.soft_cap * LOG2E
    if visible is not None:
        scores = jnp.where(visible, scores, LOWEST)
    before = state.peak[head]
    peak = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
    weights = jnp.exp2((scores - lanes(peak, sizes.key_chunk)) * factor)
    decay = jnp.exp2((before - peak) * factor)
    total = state.total[head] * decay
    for lane in range(0, sizes.key_chunk, LANES):
        total += weights[:, lane : lane + LANES]
    state.total[head], state.peak[head] = total, peak
    if scales is not None:
        weights *= scales.of_values(head, first_key, sizes.key_chunk)

    def add() -> None:
        added = product(weights.astype(values.dtype), values, (1, 0))
        state.output[head] = state.output[head] * lanes(decay, added.shape[-1]) + added

    return add


def _finish(out: Ref, row: jax.Array | int, sinks: Ref, state: _State, factors: Ref, sizes: KernelSizes) -> None:
    num_heads, num_rows = out.shape[1], out.shape[2]
    size = num_rows if sizes.queries == 1 else sizes.queries
    for head in range(num_heads):
        for group, first in enumerate(range(0, num_rows, size)):
            mine = pl.ds(first, size)
            total = state.total[head, mine]
            if not sizes.multiplies_ones:
                total = jnp.broadcast_to(jnp.sum(total, axis=1, keepdims=True), (size, LANES))
            share = factors[OUTPUT_FACTOR] / jnp.where(total == 0.0, 1.0, total)
            if sizes.sinks:
                sink = sinks[head]
                if sizes.queries > 1:
                    sink = jnp.broadcast_to(sink[group : group + 1], (size, LANES))
                factor = factors[SCORE_FACTOR] if sizes.soft_cap is None else sizes.soft_cap * LOG2E
                scaled = state.peak[head, mine] * factor
                peak = jnp.maximum(scaled, sink)
                decay = jnp.exp2(scaled - peak)
                share = factors[OUTPUT_FACTOR] * decay / (total * decay + jnp.exp2(sink - peak))
            value = state.output[head, mine] * lanes(share, out.shape[-1])
            out[row, head, mine, :] = value.astype(out.dtype)
