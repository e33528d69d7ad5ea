"""The TPU kernel's work on one block of keys for chunks of prompts.

A unit is the rows of one kv head, or some of them. Its work has three stages: scores, weights, and adding the values.
While one unit's weights are computed, the scores of the next are multiplied and the values of the one before added. The
stages hand over in vector memory, in two alternating buffers: the results of a stage far exceed the registers, and the
compiler's own spills cost more in every schedule that was read.

A block of which not every query sees every key first writes a table of limits, once for all heads. The smaller of score
and limit is one instruction, where comparing positions and selecting take three.

Measured by bundles of the final schedule (2026-11, libtpu 0.0.42, 32/8 heads of 128, 512 rows and keys); see
docs/kernels-measured.md.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import LANES
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_scales import RowScales
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_tile import (
    LOG2E,
    LOWEST,
    KernelSizes,
    as_dtype,
    lanes,
    product,
)

Ref = Any
HIGHEST = -LOWEST


@dataclasses.dataclass(frozen=True, slots=True)
class _Buffer:
    """The buffer between the stages of a unit.

    Attributes:
        scores: f32[r, keys].
        weights: [r, keys] in the queries' type.
        decay: f32[r, 128], the factor on earlier sums.
    """

    scores: Ref
    weights: Ref
    decay: Ref


def limit_rows(queries: int) -> int:
    """Return the rows of one iteration of the loop that writes the limits."""
    return min(queries, 64)


def chunk_scratch(num_rows: int, dtype: Any, sizes: KernelSizes) -> list[Any]:
    """Return the scratch memory of ChunkBlock."""
    rows, keys = sizes.row_chunk, sizes.keys
    buffer = [
        pltpu.VMEM((rows, keys), jnp.float32),
        pltpu.VMEM((rows, keys), dtype),
        pltpu.VMEM((rows, LANES), jnp.float32),
    ]
    return [pltpu.VMEM((num_rows, keys), jnp.float32), *buffer, *buffer]


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkBlock:
    """One block of keys, and the queries that attend to it.

    Attributes:
        q: [2, K, R, Hp], used at `q_slot`.
        rows: [2, K, keys, W], used at `slot`.
        peak, total, output: the online softmax, see tpu_kernel.
        factor: factor of the scores in the exponent; with a soft cap, of the argument of tanh.
        scratch: see chunk_scratch.
        scales: scales of a cache of int8.
    """

    q: Ref
    q_slot: jax.Array
    rows: Ref
    slot: jax.Array
    peak: Ref
    total: Ref
    output: Ref
    factor: jax.Array
    scratch: tuple[Ref, ...]
    sizes: KernelSizes
    scales: RowScales | None

    @property
    def _limits(self) -> Ref:
        """Limits f32[R, keys]: HIGHEST where a query sees a key, else LOWEST."""
        return self.scratch[0]

    def _buffer(self, unit: int) -> _Buffer:
        return _Buffer(*self.scratch[4:] if unit % 2 else self.scratch[1:4])

    def write_limits(self, base: jax.Array, at: jax.Array, end: jax.Array) -> None:
        """Write the limits for add(masked=True). base: position of the first key. at: of the first query. end: keys in
        all."""
        sizes, limits = self.sizes, self._limits
        size = limit_rows(sizes.queries)

        def body(step: jax.Array, _: None) -> None:
            first = pl.multiple_of(step * size, size)
            row = first + lax.broadcasted_iota(jnp.int32, (size, LANES), 0)
            query = at - base + (row & (sizes.queries - 1))
            last = jnp.minimum(query, end - base - 1)
            for lane in range(0, sizes.keys, LANES):
                key = lane + lax.broadcasted_iota(jnp.int32, (size, LANES), 1)
                seen = key <= last
                if sizes.window is not None:
                    seen &= key > query - sizes.window
                limits[pl.ds(first, size), lane : lane + LANES] = jnp.where(seen, HIGHEST, LOWEST)

        lax.fori_loop(0, limits.shape[0] // size, body, None)

    def add(self, masked: bool) -> None:
        """Add the keys to the state. masked: the limits apply; else every query sees all."""
        num_heads, num_rows = self.q.shape[1], self.q.shape[2]
        at_once = self.sizes.heads

        def body(step: jax.Array | int, _: None) -> None:
            first = step * at_once
            units = [(first + head, row) for row in range(0, num_rows, self.sizes.row_chunk) for head in range(at_once)]
            self._score(0, units[0], masked)
            for number, unit in enumerate(units):
                if number + 1 < len(units):
                    self._score(number + 1, units[number + 1], masked)
                self._weigh(number, unit)
                self._add_values(number, unit)

        if num_heads == at_once:
            body(0, None)
        else:
            lax.fori_loop(0, num_heads // at_once, body, None)

    def _score(self, number: int, unit: tuple[Any, int], masked: bool) -> None:
        head, first = unit
        mine = pl.ds(first, self.sizes.row_chunk)
        queries = self.q[self.q_slot, head, mine, :]
        keys = as_dtype(self.rows[self.slot, head, :, : self.sizes.value_lane or None], queries.dtype)
        scores = product(queries, keys, (1, 1))
        if self.scales is not None:
            scores *= self.scales.of_keys(head, 0, self.sizes.keys)
        if self.sizes.soft_cap is not None:
            scores = jnp.tanh(scores * self.factor)
        if masked:
            scores = jnp.minimum(scores, self._limits[mine, :])
        self._buffer(number).scores[...] = scores

    def _weigh(self, number: int, unit: tuple[Any, int]) -> None:
        head, first = unit
        mine = pl.ds(first, self.sizes.row_chunk)
        sizes, buffer = self.sizes, self._buffer(number)
        factor = self.factor if sizes.soft_cap is None else sizes.soft_cap * LOG2E
        scores = buffer.scores[...]
        before = self.peak[head, mine]
        peak = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        self.peak[head, mine] = peak
        decay = jnp.exp2((before - peak) * factor)
        buffer.decay[...] = decay
        weights = jnp.exp2((scores - lanes(peak, sizes.keys)) * factor)
        scaled = weights if self.scales is None else weights * self.scales.of_values(head, 0, sizes.keys)
        buffer.weights[...] = scaled.astype(buffer.weights.dtype)
        if not sizes.multiplies_ones:
            total = self.total[head, mine] * decay
            for lane in range(0, sizes.keys, LANES):
                total += weights[:, lane : lane + LANES]
            self.total[head, mine] = total

    def _add_values(self, number: int, unit: tuple[Any, int]) -> None:
        head, first = unit
        mine = pl.ds(first, self.sizes.row_chunk)
        buffer = self._buffer(number)
        values = as_dtype(self.rows[self.slot, head, :, self.sizes.value_lane :], buffer.weights.dtype)
        if self.sizes.multiplies_ones:
            values = jnp.concatenate([values, jnp.ones((values.shape[0], LANES), values.dtype)], axis=1)
        added = product(buffer.weights[...], values, (1, 0))
        decay = buffer.decay[...]
        if self.sizes.multiplies_ones:
            self.total[head, mine] = self.total[head, mine] * decay + added[:, -LANES:]
            added = added[:, :-LANES]
        self.output[head, mine] = self.output[head, mine] * lanes(decay, added.shape[-1]) + added
