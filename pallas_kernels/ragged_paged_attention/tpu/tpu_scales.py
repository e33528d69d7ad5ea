"""The scales of an int8 cache in the TPU kernel: copied page by page with the rows, and laid out along the keys.

A page's scales are few lanes of each head, see ScaledPages; a block of keys needs a row of them for each head. So they
are rotated and selected together, for all heads of a row at once.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import LANES
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_tile import KernelSizes

Ref = Any


def scale_scratch(page_scales: tuple[int, ...], sizes: KernelSizes) -> list[Any]:
    """Return the scratch memory of RowScales.

    Args:
        page_scales: R and lanes of a page.
    """
    num_rows, num_lanes = page_scales
    return [
        pltpu.VMEM((2, sizes.pages, num_rows, num_lanes), jnp.float32),
        pltpu.SemaphoreType.DMA((2,)),
        pltpu.VMEM((num_rows * _runs(sizes.page), sizes.keys), jnp.float32),
    ]


def _runs(page: int) -> int:
    """Return the runs of a page's scales in a row (C)."""
    return max(1, LANES // page)


@dataclasses.dataclass(frozen=True, slots=True)
class RowScales:
    """The scales of the current block of keys.

    Attributes:
        in_pages: f32[P, R, C·S] in HBM.
        buffers: f32[2, pages, R, C·S], copies of these.
        arrived: a semaphore for each of the two.
        laid_out: f32[C·R, keys], scales of the current block: of the keys of heads 0 … K-1, then of their values.
        num_heads: K.
    """

    in_pages: Ref
    buffers: Ref
    arrived: Ref
    laid_out: Ref
    num_heads: int
    sizes: KernelSizes

    def start(self, page: jax.Array, slot: jax.Array, place: jax.Array | int) -> None:
        """Start the copy of a page's scales to a place in a buffer."""
        pltpu.make_async_copy(self.in_pages.at[page], self.buffers.at[slot, place], self.arrived.at[slot]).start()

    def wait(self, slot: jax.Array, num_pages: int) -> None:
        """Wait for `num_pages` copies."""
        these = self.buffers.at[slot, :num_pages]
        pltpu.make_async_copy(these, these, self.arrived.at[slot]).wait()

    def lay_out(self, slot: jax.Array, parts: Sequence[tuple[jax.Array | int, jax.Array]], size: int) -> None:
        """Write `laid_out` for parts of `size` keys each. Scales of keys before a part's first and from its end on,
        counted in the part, become 0: they were not copied, or belong to another request."""
        num_rows, num_lanes = self.buffers.shape[2:]
        page, runs = self.sizes.page, _runs(self.sizes.page)
        lane = lax.broadcasted_iota(jnp.int32, (num_rows, LANES), 1)
        for column in range(0, len(parts) * size, LANES):
            (first, end), key = parts[column // size], lane + column % size
            visible = (key >= first) & (key < end)
            tiles = [self._tile(slot, column + run * page, num_lanes) for run in range(runs)]
            for run in range(runs):
                # The run of each page, at the page's position in the block.
                rows = tiles[run]
                for place, tile in enumerate(tiles):
                    if place != run:
                        rotated = pltpu.roll(tile, (place - run) * page % LANES, 1)
                        rows = jnp.where(lax.div(lane, page) == place, rotated, rows)
                rows = jnp.where(visible, rows, 0.0)
                self.laid_out[run * num_rows : (run + 1) * num_rows, column : column + LANES] = rows

    def _tile(self, slot: jax.Array, key: int, num_lanes: int) -> jax.Array:
        """Return the scales f32[R, 128] of the page that has a key of the block."""
        place, first = divmod(key, self.sizes.page)
        if num_lanes == LANES:
            tile: jax.Array = self.buffers[slot, place]
            return tile
        part: jax.Array = self.buffers[slot, place, :, first : first + LANES]
        return part

    def of_keys(self, head: jax.Array | int, first: int, size: int) -> jax.Array:
        """Return the scales f32[1, size] of keys first … first + size - 1 of the block."""
        return self._row(head, first, size)

    def of_values(self, head: jax.Array | int, first: int, size: int) -> jax.Array:
        """Return the scales f32[1, size] of values first … first + size - 1 of the block."""
        return self._row(self.num_heads + head, first, size)

    def _row(self, row: jax.Array | int, first: int, size: int) -> jax.Array:
        one = slice(row, row + 1) if isinstance(row, int) else pl.ds(row, 1)
        scales: jax.Array = self.laid_out[one, first : first + size]
        return scales
