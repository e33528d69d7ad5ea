"""The TPU kernel's work on a grid step that several short requests share: one token each, and up to 128 or 256 keys.

A matrix unit is filled by keys and values, not by the few rows of queries. Where it is 256 wide, 128 keys of heads of
128 leave half of it idle, so two kv heads share a product. Their scores are a product with the keys of both, of which
each row takes its own half; their outputs one with the values of both, to which each row has weights of 0 for the other
half. Up to four query heads are half a tile of rows, so both kv heads' rows are one tile. Two requests could share a
product instead of two heads, but for this: 0 · NaN is NaN, and one request's NaN must not reach another.

A unit is two kv heads of a request. The scores of many units are computed before the values of the first are added: the
matrix unit takes longer to answer than to be filled for the next one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import LANES
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_grid import SHORT
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_scales import RowScales
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_tile import LOG2E, LOWEST, KernelSizes, as_dtype, product

Ref = Any
AHEAD = 16  # units whose values are not added yet


@dataclasses.dataclass(frozen=True, slots=True)
class ShortRequests:
    """The requests of a shared grid step.

    Attributes:
        q, out: [rows, K, R, Hp].
        keys: [2, K, keys, W], used at `slot`: request j's keys begin at j · size.
        sinks: f32[K, R, 128], see tpu_kernel.
        requests: row of q and out, and keys, of each request. After the last, the first repeats without keys: its
            results are overwritten.
        size: keys reserved for each request, 128 or 256: 256 if a request has more than 128.
        score_factor, output_factor: see tpu_kernel.
    """

    q: Ref
    out: Ref
    keys: Ref
    slot: jax.Array
    sinks: Ref
    requests: list[tuple[jax.Array, jax.Array]]
    size: int
    score_factor: jax.Array
    output_factor: jax.Array
    sizes: KernelSizes
    scales: RowScales | None

    def attend(self) -> None:
        """Write all of their outputs."""
        waiting: list[Callable[[], None]] = []
        num_heads = self.q.shape[1]
        # The first request's output is written last, see above.
        for place in reversed(range(len(self.requests))):
            request = _Request(self, place)
            for head in range(0, num_heads, 2):
                waiting.append(request.weigh(range(head, min(head + 2, num_heads))))
                if len(waiting) > AHEAD:
                    waiting.pop(0)()
        for add_values in waiting:
            add_values()


class _Request:
    """A request of a shared grid step. A unit's rows are those of its first kv head, then those of its second."""

    def __init__(self, short: ShortRequests, place: int) -> None:
        self.short = short
        self.row, num_keys = short.requests[place]
        self.first_key = place * short.size
        self.keys = pl.ds(self.first_key, short.size)
        num_rows = short.q.shape[2]
        self.half = num_rows // 2 if short.sizes.halves else num_rows
        shape = (2 * self.half, short.size)
        self.is_first = lax.broadcasted_iota(jnp.int32, shape, 0) < self.half
        self.visible = lax.broadcasted_iota(jnp.int32, shape, 1) < num_keys
        width = short.keys.shape[3] - short.sizes.value_lane
        self.kept = _is_kept(num_keys - (short.size - SHORT), (SHORT, width), short.q.dtype)

    def weigh(self, heads: range) -> Callable[[], None]:
        """Compute a unit's scores and weights, and return a function that adds the values and writes the output."""
        short, first = self.short, self.is_first
        queries = self._rows([short.q[self.row, head] for head in heads])
        keys = [short.keys[short.slot, head, self.keys, : short.sizes.value_lane or None] for head in heads]
        scores = product(queries, as_dtype(jnp.concatenate(keys, axis=0), queries.dtype), (1, 1))
        if short.scales is not None:
            scales = [short.scales.of_keys(head, self.first_key, short.size) for head in heads]
            scores *= jnp.concatenate(scales, axis=1)
        if len(heads) == 2:
            scores = jnp.where(first, scores[:, : short.size], scores[:, short.size :])
        weights, share = self._weights(heads, scores)
        if len(heads) == 2:
            weights = jnp.concatenate([jnp.where(first, weights, 0.0), jnp.where(first, 0.0, weights)], axis=1)
        if short.scales is not None:
            scales = [short.scales.of_values(head, self.first_key, short.size) for head in heads]
            weights *= jnp.concatenate(scales, axis=1)
        weights = weights.astype(queries.dtype)
        return lambda: self._write(heads, weights, share)

    def _rows(self, of_heads: list[jax.Array]) -> jax.Array:
        """Return a unit's rows. In halves of a tile those after the query heads are 0."""
        if len(of_heads) == 1 or not self.short.sizes.halves:
            return jnp.concatenate(of_heads, axis=0)
        # As float32: not every generation adds or rotates 16 bits.
        first, second = (rows.astype(jnp.float32) for rows in of_heads)
        both: jax.Array = first + pltpu.roll(second, self.half, 0)
        return both.astype(of_heads[0].dtype)

    def _weights(self, heads: range, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return weights f32[rows, size], and the factors f32[rows, 128] on sums of weighted values."""
        short, sizes = self.short, self.short.sizes
        factor: jax.Array | float = short.score_factor
        if sizes.soft_cap is not None:
            scores = jnp.tanh(scores * factor)
            factor = sizes.soft_cap * LOG2E
        scores = jnp.where(self.visible[: scores.shape[0]], scores, LOWEST)
        peak = jnp.max(scores, axis=1, keepdims=True)
        weights = jnp.exp2((scores - peak) * factor)
        total = sum(weights[:, lane : lane + LANES] for lane in range(LANES, short.size, LANES)) + weights[:, :LANES]
        total = jnp.broadcast_to(jnp.sum(total, axis=1, keepdims=True), total.shape)
        if not sizes.sinks:
            return weights, short.output_factor / total
        sink = self._rows([short.sinks[head] for head in heads])
        highest = jnp.maximum(peak * factor, sink)
        decay = jnp.exp2(peak * factor - highest)
        return weights, short.output_factor * decay / (total * decay + jnp.exp2(sink - highest))

    def _write(self, heads: range, weights: jax.Array, share: jax.Array) -> None:
        short, half = self.short, self.half
        stored = [short.keys[short.slot, head, self.keys, short.sizes.value_lane :] for head in heads]
        values = [part for rows in stored for part in self._values(as_dtype(rows, weights.dtype))]
        out = product(weights, jnp.concatenate(values, axis=0), (1, 0))
        out *= jnp.concatenate([share] * (out.shape[1] // LANES), axis=1)
        of_heads = [out]
        if len(heads) == 2:
            of_heads = [out, pltpu.roll(out, half, 0)] if short.sizes.halves else [out[:half], out[half:]]
        for head, rows in zip(heads, of_heads, strict=True):
            short.out[self.row, head] = rows.astype(short.out.dtype)

    def _values(self, rows: jax.Array) -> list[jax.Array]:
        """Return a head's values, in parts: zeros after the last key, which is among the last 128. Whole numbers may
        stay, since their scales are 0."""
        if self.short.scales is not None:
            return [rows]
        known, rest = rows[:-SHORT], _keep(rows[-SHORT:], self.kept)
        return [known, rest] if known.shape[0] else [rest]


def _is_kept(num_keys: jax.Array, shape: tuple[int, int], dtype: Any) -> jax.Array:
    """Return the mask of rows with a key, for `_keep`."""
    kept = lax.broadcasted_iota(jnp.int32, shape, 0) < num_keys
    return kept if dtype == jnp.float32 else jnp.where(kept, -1, 0).astype(jnp.int16)


def _keep(values: jax.Array, kept: jax.Array) -> jax.Array:
    """Clear rows without a key: they may hold NaN, and 0 · NaN is NaN. Masks bits, since not every generation selects
    among 16 of them."""
    if values.dtype == jnp.float32:
        return jnp.where(kept, values, 0.0)
    return lax.bitcast_convert_type(lax.bitcast_convert_type(values, jnp.int16) & kept, values.dtype)
