"""The TPU kernel's work on a turn that several short requests share: one token each, and up to 128 keys.

A matrix unit is filled by keys and values, not by the few rows of queries. Where it is 256 wide, 128 keys of heads of
128 leave half of it idle, so two requests share a product. Their scores are a product with the keys of both, of which
each row takes its own half; their outputs one with the values of both, to which each row has weights of 0 for the other
half. Four query heads and less are half a tile of rows, so both requests' rows are one tile.

A unit is one kv head of such a pair. The scores of many units are computed before the values of the first are added:
the matrix unit takes longer to answer than to be filled for the next one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.ragged_paged_attention.layout import LANES
from palladio.pallas_kernels.ragged_paged_attention.tpu_tile import LOG2E, LOWEST, KernelSizes, as_dtype, product
from palladio.pallas_kernels.ragged_paged_attention.tpu_turns import SHORT

Ref = Any
AHEAD = 16  # units whose values are not added yet


@dataclasses.dataclass(frozen=True, slots=True)
class ShortRequests:
    """A turn.

    Attributes:
        q, out: [rows, K, R, Hp]. keys: [2, K, keys, W], of which `slot` is meant: request j's keys begin at j · SHORT.
        sinks: f32[K, R, 128], see tpu_kernel.
        requests: each one's row of q and out, and its keys. Behind the last the first, without keys: what is computed
            of those is written over.
        score_factor, output_factor: see tpu_kernel.
    """

    q: Ref
    out: Ref
    keys: Ref
    slot: jax.Array
    sinks: Ref
    requests: list[tuple[jax.Array, jax.Array]]
    score_factor: jax.Array
    output_factor: jax.Array
    sizes: KernelSizes

    def attend(self) -> None:
        """Writes all of their outputs."""
        waiting: list[Callable[[], None]] = []
        # The first request's output is written last, see above.
        for first in reversed(range(0, len(self.requests), 2)):
            pair = _Pair(self, first)
            for head in range(self.q.shape[1]):
                waiting.append(pair.weigh(head))
                if len(waiting) > AHEAD:
                    waiting.pop(0)()
        for add_values in waiting:
            add_values()


class _Pair:
    """Two requests of a turn, or the last one alone. Rows are those of the first, then those of the second."""

    def __init__(self, turn: ShortRequests, first: int) -> None:
        self.turn = turn
        self.first_key = first * SHORT
        self.members = turn.requests[first : first + 2]
        num_rows = turn.q.shape[2]
        self.half = num_rows // 2 if turn.sizes.halves else num_rows
        row, key = (lax.broadcasted_iota(jnp.int32, (2 * self.half, SHORT), axis) for axis in (0, 1))
        self.is_first = row < self.half
        self.visible = key < jnp.where(self.is_first, self.members[0][1], self.members[1][1])
        dtype = turn.q.dtype
        self.kept = [_is_kept(num_keys, self._values_width, dtype) for _, num_keys in self.members]

    @property
    def _values_width(self) -> int:
        return int(self.turn.keys.shape[3]) - self.turn.sizes.value_lane

    def weigh(self, head: int) -> Callable[[], None]:
        """A unit's scores and weights; what it returns adds the values and writes the output."""
        turn, keys = self.turn, pl.ds(self.first_key, 2 * SHORT)
        queries = self._queries(head)
        rows = as_dtype(turn.keys[turn.slot, head, keys, : turn.sizes.value_lane or None], queries.dtype)
        both = product(queries, rows, (1, 1))
        weights, share = self._weights(head, jnp.where(self.is_first, both[:, :SHORT], both[:, SHORT:]))
        of_each = [jnp.where(self.is_first, weights, 0.0), jnp.where(self.is_first, 0.0, weights)]
        wide = jnp.concatenate(of_each, axis=1).astype(queries.dtype)
        return lambda: self._write(head, wide, share)

    def _queries(self, head: int) -> jax.Array:
        first, second = (self.turn.q[row, head] for row, _ in self.members)
        if not self.turn.sizes.halves:
            return jnp.concatenate([first, second], axis=0)
        is_first = lax.broadcasted_iota(jnp.int32, first.shape, 0) < self.half
        # As float32: not every generation selects among 16 bits.
        return jnp.where(is_first, first.astype(jnp.float32), second.astype(jnp.float32)).astype(first.dtype)

    def _weights(self, head: int, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        """And what sums of weighted values are multiplied by: both f32[rows, 128]."""
        sizes = self.turn.sizes
        factor: jax.Array | float = self.turn.score_factor
        if sizes.soft_cap is not None:
            scores = jnp.tanh(scores * factor)
            factor = sizes.soft_cap * LOG2E
        scores = jnp.where(self.visible, scores, LOWEST)
        peak = jnp.max(scores, axis=1, keepdims=True)
        weights = jnp.exp2((scores - peak) * factor)
        total = jnp.broadcast_to(jnp.sum(weights, axis=1, keepdims=True), weights.shape)
        return weights, self._share(head, peak * factor, total)

    def _share(self, head: int, peak: jax.Array, total: jax.Array) -> jax.Array:
        turn = self.turn
        if not turn.sizes.sinks:
            return turn.output_factor / total
        sink = turn.sinks[head]
        if not turn.sizes.halves:
            sink = jnp.concatenate([sink, sink], axis=0)
        highest = jnp.maximum(peak, sink)
        decay = jnp.exp2(peak - highest)
        return turn.output_factor * decay / (total * decay + jnp.exp2(sink - highest))

    def _write(self, head: int, weights: jax.Array, share: jax.Array) -> None:
        turn, dtype = self.turn, weights.dtype
        values = []
        for place, kept in enumerate(self.kept):
            these = pl.ds(self.first_key + place * SHORT, SHORT)
            values.append(_keep(as_dtype(turn.keys[turn.slot, head, these, turn.sizes.value_lane :], dtype), kept))
        out = product(weights, jnp.concatenate(values, axis=0), (1, 0))
        out *= jnp.concatenate([share] * (out.shape[1] // LANES), axis=1)
        (first, _), (second, _) = self.members
        of_second = pltpu.roll(out, self.half, 0) if turn.sizes.halves else out[self.half :]
        turn.out[second, head] = of_second.astype(turn.out.dtype)
        turn.out[first, head] = (out if turn.sizes.halves else out[: self.half]).astype(turn.out.dtype)


def _is_kept(num_keys: jax.Array, width: int, dtype: Any) -> jax.Array:
    """[SHORT, width] for `_keep`."""
    kept = lax.broadcasted_iota(jnp.int32, (SHORT, width), 0) < num_keys
    return kept if dtype == jnp.float32 else jnp.where(kept, -1, 0).astype(jnp.int16)


def _keep(values: jax.Array, kept: jax.Array) -> jax.Array:
    """Zeros in rows without a key: what lies there may be NaN, and 0 · NaN is NaN. Bits, since not every generation
    selects among 16 of them."""
    if values.dtype == jnp.float32:
        return jnp.where(kept, values, 0.0)
    return lax.bitcast_convert_type(lax.bitcast_convert_type(values, jnp.int16) & kept, values.dtype)
