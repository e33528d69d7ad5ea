"""Rows of a block of queries of a chunk: copied from their place along T, and the attended rows back to it.

A copy moves whole tiles of 16 rows, and requests begin anywhere. So a block's window begins at a tile, and its first
rows may belong to earlier requests: they are computed like the others, then replaced by the rows that the block before
left in that tile, or, for the first block, by its original content. Only tiles with rows of the block are copied, so
that a short request does not cost a block's bytes.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_tile import KernelSizes

Ref = Any
ALIGNMENT = 16  # rows of a native tile of 16 bits, and two of 32 bits


def row_scratch(num_kv_heads: int, num_rows: int, width: int, dtype: Any, sizes: KernelSizes) -> list[Any]:
    """Return the scratch memory of ChunkRows."""
    return [
        pltpu.VMEM((2, num_kv_heads, num_rows, width), dtype),
        pltpu.SemaphoreType.DMA((2,)),
        pltpu.VMEM((1, num_kv_heads, num_rows, width), dtype),
        pltpu.SemaphoreType.DMA((1,)),
        pltpu.VMEM((num_kv_heads, num_rows // sizes.queries * ALIGNMENT, width), dtype),
    ]


NUM_ROW_SCRATCH = 5


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkRows:
    """Copies of the rows of the step's blocks of queries.

    Attributes:
        first_token, count: see BlockPlan, in scalar memory.
        source, target: [K, G, T', Hp], T' whole tiles, and at least a block. The target's first rows that are of no
            block already have their final content.
        scratch: see row_scratch: two alternating buffers of queries [2, K, R, Hp], their semaphores, the attended rows
            [1, K, R, Hp], their semaphore, and for each query head the last tile of those.
    """

    first_token: Ref
    count: Ref
    source: Ref
    target: Ref
    scratch: tuple[Ref, ...]
    sizes: KernelSizes

    @property
    def queries(self) -> Ref:
        """Queries [2, K, R, Hp]; `slot` selects a block's."""
        return self.scratch[0]

    @property
    def attended(self) -> Ref:
        """Attended rows [1, K, R, Hp]."""
        return self.scratch[2]

    def slot(self, i: jax.Array) -> jax.Array:
        """Return the buffer of block i's queries."""
        return lax.rem(i, 2)

    def skipped(self, i: jax.Array) -> jax.Array:
        """Return the rows of a query head before the block's own."""
        return lax.rem(self.first_token[i], ALIGNMENT)

    def start(self, i: jax.Array) -> None:
        self._each(i, self._incoming, lambda copy: copy.start())

    def wait(self, i: jax.Array) -> None:
        self._each(i, self._incoming, lambda copy: copy.wait())

    def start_leaving(self, i: jax.Array) -> None:
        self._each(i, self._outgoing, lambda copy: copy.start())

    def wait_leaving(self, i: jax.Array) -> None:
        self._each(i, self._outgoing, lambda copy: copy.wait())

    def keep_first_tile(self, i: jax.Array) -> None:
        """Keep the current content of the first tile of block i, the first block, for `join`."""
        edge = self.scratch[4]
        copies = [
            pltpu.make_async_copy(
                self.target.at[:, group, self._along(i, 0, ALIGNMENT), :],
                edge.at[:, pl.ds(group * ALIGNMENT, ALIGNMENT), :],
                self.scratch[3].at[0],
            )
            for group in range(self.target.shape[1])
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    def join(self, i: jax.Array) -> None:
        """Restore earlier blocks' rows in the first tile of attended rows; keep the last tile for the next block."""
        attended, edge, queries = self.attended, self.scratch[4], self.sizes.queries
        last = pl.multiple_of((self._num_tiles(i) - 1) * ALIGNMENT, ALIGNMENT)
        skipped = self.skipped(i)
        row = lax.broadcasted_iota(jnp.int32, (ALIGNMENT, attended.shape[3]), 0)
        for head in range(attended.shape[1]):
            for group in range(attended.shape[2] // queries):
                first, kept = pl.ds(group * queries, ALIGNMENT), pl.ds(group * ALIGNMENT, ALIGNMENT)
                # As float32: not every generation selects among 16 bits.
                before, own = edge[head, kept, :], attended[0, head, first, :]
                joined = jnp.where(row < skipped, before.astype(jnp.float32), own.astype(jnp.float32))
                attended[0, head, first, :] = joined.astype(own.dtype)
                edge[head, kept, :] = attended[0, head, pl.ds(group * queries + last, ALIGNMENT), :]

    def clear_rest(self, num_blocks: jax.Array, num_others: int) -> None:
        """Clear all rows after the blocks' tiles and the first num_others, when the last block has left."""
        self.attended[...] = jnp.zeros_like(self.attended)
        last = jnp.maximum(num_blocks - 1, 0)
        end = jnp.where(num_blocks > 0, self.first_token[last] + self.count[last], 0)
        first = jnp.maximum(lax.div(end + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT, num_others)
        rest, queries = self.target.shape[2] - first, self.sizes.queries
        for size, begin, number in (
            (queries, first, lax.div(rest, queries)),
            (ALIGNMENT, first + lax.div(rest, queries) * queries, lax.div(lax.rem(rest, queries), ALIGNMENT)),
        ):
            self._clear(begin, size, number)

    def _clear(self, begin: jax.Array, size: int, number: jax.Array) -> None:
        """Clear `number` pieces of `size` rows, from row `begin` on."""

        def copies(piece: jax.Array) -> list[Any]:
            return [
                pltpu.make_async_copy(
                    self.attended.at[0, :, self._within(group, 0, size), :],
                    self.target.at[:, group, pl.ds(pl.multiple_of(begin + piece * size, ALIGNMENT), size), :],
                    self.scratch[3].at[0],
                )
                for group in range(self.target.shape[1])
            ]

        def start(piece: jax.Array, _: None) -> None:
            for copy in copies(piece):
                copy.start()

        def wait(piece: jax.Array, _: None) -> None:
            for copy in copies(piece):
                copy.wait()

        lax.fori_loop(0, number, start, None)
        lax.fori_loop(0, number, wait, None)

    def _num_tiles(self, i: jax.Array) -> jax.Array:
        """Return the number of tiles that hold rows of the block."""
        return lax.div(self.skipped(i) + self.count[i] + (ALIGNMENT - 1), ALIGNMENT)

    def _each(
        self, i: jax.Array, copies: Callable[[jax.Array, Any, int], list[Any]], act: Callable[[Any], None]
    ) -> None:
        tiles, used = self.sizes.queries // ALIGNMENT, self._num_tiles(i)

        def _whole() -> None:
            for copy in copies(i, 0, self.sizes.queries):
                act(copy)

        pl.when(used == tiles)(_whole)

        def _tile(tile: jax.Array, _: None) -> None:
            for copy in copies(i, pl.multiple_of(tile * ALIGNMENT, ALIGNMENT), ALIGNMENT):
                act(copy)

        pl.when(used < tiles)(lambda: lax.fori_loop(0, used, _tile, None))

    def _incoming(self, i: jax.Array, row: Any, size: int) -> list[Any]:
        """Return copies of `size` rows from `row` of the window on, for each query head of all kv heads."""
        slot = self.slot(i)
        return [
            pltpu.make_async_copy(
                self.source.at[:, group, self._along(i, row, size), :],
                self.queries.at[slot, :, self._within(group, row, size), :],
                self.scratch[1].at[slot],
            )
            for group in range(self.source.shape[1])
        ]

    def _outgoing(self, i: jax.Array, row: Any, size: int) -> list[Any]:
        return [
            pltpu.make_async_copy(
                self.attended.at[0, :, self._within(group, row, size), :],
                self.target.at[:, group, self._along(i, row, size), :],
                self.scratch[3].at[0],
            )
            for group in range(self.target.shape[1])
        ]

    def _along(self, i: jax.Array, row: Any, size: int) -> Any:
        first = self.first_token[i] - self.skipped(i)
        return pl.ds(pl.multiple_of(first + row, ALIGNMENT), size)

    def _within(self, group: int, row: Any, size: int) -> Any:
        return pl.ds(pl.multiple_of(group * self.sizes.queries + row, ALIGNMENT), size)
