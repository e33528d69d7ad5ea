"""The TPU kernel of latent attention: one grid step a block of queries of one request, an inner loop over its rows.

Rows of the cache come as in ragged paged attention: the kernel copies pages itself, one block ahead, across grid steps.
Every head reads the whole row as its key and its first lanes as its value, so one copy serves all heads.

Rows of queries are token-major, as in memory: row t · heads + n is head n of a block's token t, and heads are whole
tiles. So a block's queries are one copy, and a request may begin and end anywhere: there is nothing to transpose, and
no tile that two requests share.

The work on a block of keys is cut into units of some rows and some keys. A unit has three stages: scores, weights, and
adding the values. The next unit's scores are multiplied before this one's weights are computed, so that the matrix unit
and the others overlap: over rows in chunks of prompts, over keys in decode steps. The stages hand over in two
alternating buffers of vector memory.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.latent_attention.layout import LANES
from palladio.pallas_kernels.latent_attention.tpu_config import LatentBlocks
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_pages import KeyBuffers, QueryBlocks, start_walk, walk_keys
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_tile import LOWEST, KernelSizes, as_dtype, lanes, product

Ref = Any
NUM_BUFFERS = 3  # that the stages of a unit hand over: scores, weights, decay


def latent_kernel(
    request: Ref,
    position: Ref,
    first_token: Ref,
    count: Ref,
    num_blocks: Ref,
    kv_len: Ref,
    block_table: Ref,
    q: Ref,
    pages: Ref,
    out: Ref,
    rows: Ref,
    arrived: Ref,
    tables: Ref,
    tables_arrived: Ref,
    slot_of: Ref,
    queries: Ref,
    queries_arrived: Ref,
    attended: Ref,
    left: Ref,
    last: Ref,
    peak: Ref,
    total: Ref,
    output: Ref,
    *stages: Ref,
    blocks: LatentBlocks,
    sizes: KernelSizes,
    factor: float,
) -> None:
    """Run a grid step. Scalars request … kv_len, block_table: see QueryBlocks; first_token: see BlockPlan.

    Args:
        q: [T · heads, W] and out [T · heads, Lp], in HBM; pages: [P, 1, S, W], the cache in HBM.
        rows, arrived: see KeyBuffers.
        tables, tables_arrived: see QueryBlocks.
        slot_of: i32[1], the buffer to read next.
        queries, queries_arrived, attended, left: see _Rows.
        last: i32[R, 128], the position of the last key that a row sees.
        peak, total: f32[R, 128], output: f32[R, Lp], the online softmax.
        stages: two sets of the buffers between a unit's stages, see _Block.
        factor: factor of the scores in the exponent of 2.
    """
    i, num = pl.program_id(0), num_blocks[0]
    of_queries = QueryBlocks(request, position, count, num_blocks, kv_len, block_table, tables, tables_arrived, sizes)
    buffers = KeyBuffers(pages, rows, arrived, of_queries)
    moved = _Rows(first_token, count, q, out, queries, queries_arrived, attended, left, blocks)

    def _first() -> None:
        slot_of[0] = 0
        moved.start(i)
        start_walk(i, buffers)

    pl.when((i == 0) & (num > 0))(_first)

    def _attend() -> None:
        peak[...] = jnp.full_like(peak, LOWEST)
        total[...] = jnp.zeros_like(total)
        output[...] = jnp.zeros_like(output)
        _write_last(last, position[i], of_queries.end(i), blocks)
        pl.when(i + 1 < num)(lambda: moved.start(i + 1))
        moved.wait(i)

        def add(base: jax.Array, slot: jax.Array, width: int | None) -> None:
            _Block(queries.at[lax.rem(i, 2)], rows.at[slot, 0], last, peak, total, output, stages, factor, blocks).add(
                None if width is None else base
            )

        slot_of[0] = walk_keys(i, buffers, slot_of[0], add)
        pl.when(i > 0)(lambda: moved.wait_leaving(i - 1))
        _finish(attended, total, output, blocks.row_chunk)
        moved.start_leaving(i)
        pl.when(i + 1 == num)(lambda: moved.wait_leaving(i))

    pl.when(i < num)(_attend)


def _write_last(last: Ref, position: jax.Array, end: jax.Array, blocks: LatentBlocks) -> None:
    """Write the last key that each row sees.

    Args:
        position: position of the block's first query.
        end: keys in all; queries beyond the block's own see those.
    """

    def body(token: jax.Array, _: None) -> None:
        mine = pl.ds(pl.multiple_of(token * blocks.heads, blocks.heads), blocks.heads)
        last[mine, :] = jnp.full((blocks.heads, LANES), jnp.minimum(position + token, end - 1), jnp.int32)

    lax.fori_loop(0, blocks.queries, body, None)


def _finish(attended: Ref, total: Ref, output: Ref, size: int) -> None:
    for first in range(0, attended.shape[0], size):
        mine = pl.ds(first, size)
        sums = jnp.broadcast_to(jnp.sum(total[mine, :], axis=1, keepdims=True), (size, LANES))
        value = output[mine, :] / lanes(jnp.where(sums == 0.0, 1.0, sums), output.shape[1])
        attended[mine, :] = value.astype(attended.dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """Copies of a block's queries from their rows along T, and of the attended rows back to these.

    Attributes:
        first_token, count: see BlockPlan, in scalar memory.
        source: [T · heads, W].
        target: [T · heads, Lp].
        queries, arrived: two alternating buffers [2, R, W], and a semaphore for each.
        attended, left: [R, Lp], and its semaphore [1].
    """

    first_token: Ref
    count: Ref
    source: Ref
    target: Ref
    queries: Ref
    arrived: Ref
    attended: Ref
    left: Ref
    blocks: LatentBlocks

    def start(self, i: jax.Array) -> None:
        self._each(i, self._incoming, lambda copy: copy.start())

    def wait(self, i: jax.Array) -> None:
        self._each(i, self._incoming, lambda copy: copy.wait())

    def start_leaving(self, i: jax.Array) -> None:
        self._each(i, self._outgoing, lambda copy: copy.start())

    def wait_leaving(self, i: jax.Array) -> None:
        self._each(i, self._outgoing, lambda copy: copy.wait())

    def _each(self, i: jax.Array, copy: Callable[[jax.Array, Any, int], Any], act: Callable[[Any], None]) -> None:
        """Start or await one copy of a whole block, or one a token."""
        queries = self.blocks.queries
        if queries == 1:
            act(copy(i, 0, 1))
            return
        count = self.count[i]
        pl.when(count == queries)(lambda: act(copy(i, 0, queries)))
        pl.when(count < queries)(lambda: lax.fori_loop(0, count, lambda token, _: act(copy(i, token, 1)), None))

    def _incoming(self, i: jax.Array, token: Any, size: int) -> Any:
        slot = lax.rem(i, 2)
        held = self.queries.at[slot, self._within(token, size), :]
        return pltpu.make_async_copy(self.source.at[self._along(i, token, size), :], held, self.arrived.at[slot])

    def _outgoing(self, i: jax.Array, token: Any, size: int) -> Any:
        held = self.attended.at[self._within(token, size), :]
        return pltpu.make_async_copy(held, self.target.at[self._along(i, token, size), :], self.left.at[0])

    def _along(self, i: jax.Array, token: Any, size: int) -> Any:
        heads = self.blocks.heads
        return pl.ds(pl.multiple_of((self.first_token[i] + token) * heads, heads), size * heads)

    def _within(self, token: Any, size: int) -> Any:
        heads = self.blocks.heads
        return pl.ds(token * heads if isinstance(token, int) else pl.multiple_of(token * heads, heads), size * heads)


@dataclasses.dataclass(frozen=True, slots=True)
class _Block:
    """One block of keys, and the queries that attend to it.

    Attributes:
        q: [R, W].
        rows: [keys, W].
        last, peak, total, output: see latent_kernel.
        stages: for even units and then for odd ones: scores f32[row_chunk, key_chunk], weights of that shape in the
            queries' type, and decay f32[row_chunk, 128], the factor on earlier sums.
    """

    q: Ref
    rows: Ref
    last: Ref
    peak: Ref
    total: Ref
    output: Ref
    stages: tuple[Ref, ...]
    factor: float
    sizes: LatentBlocks

    def add(self, base: jax.Array | None) -> None:
        """Add the keys to the state. base: position of the first key; None: every row sees all of them."""
        firsts = range(0, self.sizes.rows, self.sizes.row_chunk), range(0, self.sizes.keys, self.sizes.key_chunk)
        units = list(itertools.product(*firsts))
        self._score(0, units[0], base)
        for number, unit in enumerate(units):
            if number + 1 < len(units):
                self._score(number + 1, units[number + 1], base)
            self._weigh(number, unit)
            self._add_values(number, unit)

    def _buffers(self, number: int) -> tuple[Ref, Ref, Ref]:
        scores, weights, decay = self.stages[NUM_BUFFERS:] if number % 2 else self.stages[:NUM_BUFFERS]
        return scores, weights, decay

    def _score(self, number: int, unit: tuple[int, int], base: jax.Array | None) -> None:
        mine, these = pl.ds(unit[0], self.sizes.row_chunk), pl.ds(unit[1], self.sizes.key_chunk)
        queries = self.q[mine, :]
        scores = product(queries, as_dtype(self.rows[these, :], queries.dtype), (1, 1))
        if base is not None:
            key = base + unit[1] + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where(key <= lanes(self.last[mine, :], self.sizes.key_chunk), scores, LOWEST)
        self._buffers(number)[0][...] = scores

    def _weigh(self, number: int, unit: tuple[int, int]) -> None:
        mine, size = pl.ds(unit[0], self.sizes.row_chunk), self.sizes.key_chunk
        scores_of, weights_of, decay_of = self._buffers(number)
        scores, before = scores_of[...], self.peak[mine, :]
        peak = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        decay = jnp.exp2((before - peak) * self.factor)
        weights = jnp.exp2((scores - lanes(peak, size)) * self.factor)
        total = self.total[mine, :] * decay
        for lane in range(0, size, LANES):
            total += weights[:, lane : lane + LANES]
        self.peak[mine, :], self.total[mine, :] = peak, total
        decay_of[...] = decay
        weights_of[...] = weights.astype(weights_of.dtype)

    def _add_values(self, number: int, unit: tuple[int, int]) -> None:
        mine, these = pl.ds(unit[0], self.sizes.row_chunk), pl.ds(unit[1], self.sizes.key_chunk)
        _, weights, decay = self._buffers(number)
        width = self.output.shape[1]
        values = as_dtype(self.rows[these, :width], weights.dtype)
        added = product(weights[...], values, (1, 0))
        self.output[mine, :] = self.output[mine, :] * lanes(decay[...], width) + added
