"""The pages of a step's blocks of queries, and the copies that bring them.

The kernel copies pages into one of two buffers. All page numbers of a step would not fit scalar memory, so a request's
row of the block table is copied there, two grid steps ahead.
"""

import dataclasses
import functools
import itertools
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
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_tile import KernelSizes
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.tpu_mode import hbm

Ref = Any
NUM_TABLES = 3  # of this grid step's request and the next one's, and one on its way
TABLE_PIECE = 1_024  # page numbers of one copy
COPIES_AT_ONCE = 8
FEW_PAGES = 8  # of a shared grid step, whose copies are started without a loop


@dataclasses.dataclass(frozen=True, slots=True)
class SharedBlocks:
    """Shared grid steps, in scalar memory: see SharedSteps."""

    num_rows: Ref
    pages: Ref
    rows: tuple[Ref, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class QueryBlocks:
    """The step's blocks of queries, in scalar memory.

    Attributes:
        request, position, count, num_blocks: see BlockPlan.
        kv_len: i32[B].
        block_table: i32[B, Pmax] in HBM. XLA would lay out all of it anew for a kernel that takes it row by row.
        tables: i32[3 · Pmax], copies of its rows for this grid step's request and the next two.
        arrived: a semaphore for each of these rows.
        shared: None if every block is one request's.
    """

    request: Ref
    position: Ref
    count: Ref
    num_blocks: Ref
    kv_len: Ref
    block_table: Ref
    tables: Ref
    arrived: Ref
    sizes: KernelSizes
    shared: SharedBlocks | None = None

    def end(self, i: jax.Array) -> jax.Array:
        """Return the end of the keys that a block of queries sees, which start at 0."""
        return jnp.minimum(self.kv_len[self.request[i]], self.position[i] + self.count[i])

    def bounds(self, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the first and last + 1 of its blocks of keys."""
        keys, window = self.sizes.keys, self.sizes.window
        first = jnp.int32(0) if window is None else lax.div(jnp.maximum(self.position[i] - window + 1, 0), keys)
        return first, lax.div(self.end(i) + (keys - 1), keys)

    def num_pages(self, i: jax.Array, block: jax.Array) -> jax.Array:
        """Return the number of pages of a block of keys."""
        page = self.sizes.page
        return jnp.clip(lax.div(self.end(i) - block * self.sizes.keys + (page - 1), page), 0, self.sizes.pages)

    def entry(self, i: jax.Array, block: jax.Array) -> jax.Array:
        """Return the index in `tables` of the first page of a block of keys."""
        first: jax.Array = lax.rem(i, NUM_TABLES) * self.block_table.shape[1] + block * self.sizes.pages
        return first

    def page(self, entry: jax.Array) -> jax.Array:
        """Return a page number from a table that has arrived."""
        number: jax.Array = self.tables[entry]
        return number

    def when_alone(self, i: jax.Array, act: Callable[[], None]) -> None:
        """Run `act` if one request has the grid step."""
        if self.shared is None:
            act()
        else:
            pl.when(self.shared.num_rows[i] == 1)(act)

    def when_shared(self, i: jax.Array, act: Callable[[int], None]) -> None:
        """Run `act` if several requests share the grid step. act: called with the keys reserved for each of them."""
        if self.shared is None:
            return

        def shared() -> None:
            for size in self.sizes.places:
                is_size = (self.position[i] < size) & (self.position[i] >= size - SHORT)
                pl.when(is_size)(functools.partial(act, size))

        pl.when(self.shared.num_rows[i] > 1)(shared)

    def requests(self, i: jax.Array, size: int) -> list[tuple[jax.Array, jax.Array]]:
        """Return the row and the keys of each request that shares a grid step. After the last, the first repeats
        without keys."""
        assert self.shared is not None
        found = []
        for place, rows in enumerate(self.shared.rows[: self.sizes.together * SHORT // size]):
            row = rows[i]
            found.append((row, jnp.where(place < self.shared.num_rows[i], self.kv_len[row], 0)))
        return found

    def pages_of(self, num_keys: jax.Array) -> jax.Array:
        """Return the number of pages that hold `num_keys` keys."""
        return lax.div(num_keys + (self.sizes.page - 1), self.sizes.page)

    def start_table(self, i: jax.Array) -> None:
        self.when_alone(i, lambda: self._each_piece(i, lambda copy: copy.start()))

    def wait_table(self, i: jax.Array) -> None:
        self._each_piece(i, lambda copy: copy.wait())

    def _each_piece(self, i: jax.Array, act: Callable[[Any], None]) -> None:
        """Call `act` with the copy of each piece of the table that holds pages of the grid step's keys."""
        slot, width = lax.rem(i, NUM_TABLES), self.block_table.shape[1]
        size = min(TABLE_PIECE, width)
        first, last = (bound * self.sizes.pages for bound in self.bounds(i))

        def body(piece: jax.Array, _: None) -> None:
            these = pl.ds(pl.multiple_of(piece * size, size), size)
            to = self.tables.at[pl.ds(pl.multiple_of(slot * width + piece * size, LANES), size)]
            act(pltpu.make_async_copy(self.block_table.at[self.request[i], these], to, self.arrived.at[slot]))

        num_pieces = width // size
        lax.fori_loop(lax.div(first, size), jnp.minimum(lax.div(last + (size - 1), size), num_pieces), body, None)


@dataclasses.dataclass(frozen=True, slots=True)
class KeyBuffers:
    """Two buffers of keys and values [2, K, keys, W], and a semaphore for each; with scales in a cache of int8."""

    kv_pages: Ref
    rows: Ref
    arrived: Ref
    blocks: QueryBlocks
    scales: RowScales | None = None

    def start(self, i: jax.Array, block: jax.Array, slot: jax.Array) -> None:
        """Start copies of a block's pages. Each is a few scalar instructions, most of them for addresses, which are
        constant in groups that begin at a known page."""
        sizes, blocks = self.blocks.sizes, self.blocks
        at_once = min(COPIES_AT_ONCE, sizes.pages)
        number, entry = blocks.num_pages(i, block), blocks.entry(i, block)

        def group(pages: dict[int, jax.Array]) -> None:
            for j, page in pages.items():
                self._copy(page, slot, j)

        for first in range(0, sizes.pages - at_once + 1, at_once):
            pages = {j: blocks.page(entry + j) for j in range(first, first + at_once)}  # whether they are needed or not
            pl.when(first + at_once <= number)(functools.partial(group, pages))
        rest = lax.div(number, at_once) * at_once
        lax.fori_loop(rest, number, lambda j, _: self._copy(blocks.page(entry + j), slot, j), None)

    def _copy(self, page: jax.Array, slot: jax.Array, place: jax.Array | int) -> None:
        size = self.blocks.sizes.page
        first = place * size if isinstance(place, int) else pl.multiple_of(place * size, size)
        rows = self.rows.at[slot, :, pl.ds(first, size), :]
        pltpu.make_async_copy(self.kv_pages.at[page], rows, self.arrived.at[slot]).start()
        if self.scales is not None:
            self.scales.start(page, slot, place)

    def start_step(self, i: jax.Array, slot: jax.Array) -> None:
        """Start copies of a grid step's first pages; its row of the block table may still be arriving."""
        blocks = self.blocks

        def alone() -> None:
            blocks.wait_table(i)
            self.start(i, blocks.bounds(i)[0], slot)

        blocks.when_alone(i, alone)
        blocks.when_shared(i, lambda size: self._start_shared(i, slot, size))

    def _start_shared(self, i: jax.Array, slot: jax.Array, size: int) -> None:
        """Start copies of all pages of several requests into consecutive parts of a buffer."""
        blocks = self.blocks
        assert blocks.shared is not None
        each = size // blocks.sizes.page
        for place, (row, num_keys) in enumerate(blocks.requests(i, size)):
            numbers, entry = blocks.shared.pages, row * (blocks.sizes.longest // blocks.sizes.page)

            def one(
                j: jax.Array | int, numbers: Ref = numbers, entry: jax.Array = entry, first: int = place * each
            ) -> None:
                self._copy(numbers[entry + j], slot, first + j)

            if each * blocks.sizes.together * SHORT // size <= FEW_PAGES:
                for j in range(each):
                    pl.when(j * blocks.sizes.page < num_keys)(functools.partial(one, j))
            else:
                lax.fori_loop(0, blocks.pages_of(num_keys), lambda j, _, one=one: one(j), None)

    def wait(self, i: jax.Array, block: jax.Array, slot: jax.Array) -> None:
        """Wait for all of a block's pages."""
        self._wait_pages(self.blocks.num_pages(i, block), slot)

    def wait_shared(self, i: jax.Array, slot: jax.Array, size: int) -> None:
        """Wait for all pages of several requests."""
        number = jnp.int32(0)
        for _, num_keys in self.blocks.requests(i, size):
            number += self.blocks.pages_of(num_keys)
        self._wait_pages(number, slot)

    def _wait_pages(self, number: jax.Array, slot: jax.Array) -> None:
        """Wait for any number of pages. A semaphore counts bytes, so one wait may cover several copies: waits for
        powers of two add up to every number."""
        sizes = self.blocks.sizes

        def arrive(num_pages: int) -> None:
            these = self.rows.at[slot, :, pl.ds(0, num_pages * sizes.page), :]
            pltpu.make_async_copy(these, these, self.arrived.at[slot]).wait()
            if self.scales is not None:
                self.scales.wait(slot, num_pages)

        def _powers() -> None:
            for power in range(sizes.pages.bit_length()):
                pl.when(number & (1 << power) != 0)(functools.partial(arrive, 1 << power))

        pl.when(number == sizes.pages)(lambda: arrive(sizes.pages))
        pl.when(number < sizes.pages)(_powers)

    def clear_tail(self, slot: jax.Array, first: jax.Array, width: int) -> None:
        """Clear rows of a block from `first` to `width`: they may hold NaN, and 0 · NaN is NaN. Whole numbers may stay,
        since their scales are 0, and keys of requests of one token, whose scores are replaced."""
        sizes, num_heads = self.blocks.sizes, self.rows.shape[1]
        if sizes.scaled:
            return
        first_lane = sizes.value_lane if sizes.queries == 1 else 0
        page, lane = sizes.page, pl.ds(first_lane, self.rows.shape[3] - first_lane)

        def body(j: jax.Array, _: None) -> None:
            rows = pl.ds(pl.multiple_of(j * page, page), page)
            row = j * page + lax.broadcasted_iota(jnp.int32, (page, lane.size), 0)
            for head in range(num_heads):
                kept = self.rows[slot, head, rows, lane]
                # As float32: not every generation selects among 8 or 16 bits.
                value = jnp.where(row < first, kept.astype(jnp.float32), 0.0)
                self.rows[slot, head, rows, lane] = value.astype(kept.dtype)

        lax.fori_loop(lax.div(first, page), width // page, body, None)

    def clear_head(self, slot: jax.Array, first: jax.Array) -> None:
        """Clear the pages of a block before the one that holds row `first`: they have left the window, and may hold
        another request's tokens by now."""
        _, num_heads, _, width = self.rows.shape
        page = self.blocks.sizes.page

        def body(j: jax.Array, _: None) -> None:
            rows = pl.ds(pl.multiple_of(j * page, page), page)
            for head in range(num_heads):
                self.rows[slot, head, rows, :] = jnp.zeros((page, width), self.rows.dtype)

        lax.fori_loop(0, lax.div(first, page), body, None)


def start_walk(i: jax.Array, buffers: KeyBuffers) -> None:
    """Start the first grid step's copies: its request's row of the block table, the next one's, and its first pages."""
    blocks = buffers.blocks
    blocks.start_table(i)
    pl.when(blocks.num_blocks[0] > 1)(lambda: blocks.start_table(i + 1))
    buffers.start_step(i, jnp.int32(0))


def walk_keys(
    i: jax.Array, buffers: KeyBuffers, slot: jax.Array, add: Callable[[jax.Array, jax.Array, int | None], None]
) -> jax.Array:
    """Loop over the blocks of keys of a grid step, while the pages of the next block are copied.

    Args:
        slot: the buffer of the first block's pages.
        add: called with the position of a block's first key, its buffer, and, where some query does not see all of it,
            the number of its keys to compute (one of the widths of KernelSizes).

    Returns:
        The buffer of the next grid step's first block.
    """
    blocks, sizes = buffers.blocks, buffers.blocks.sizes
    num, at = blocks.num_blocks[0], blocks.position[i]
    first, last = blocks.bounds(i)
    end = blocks.end(i)
    pl.when(i + 2 < num)(lambda: blocks.start_table(i + 2))

    def body(block: jax.Array, slot: jax.Array) -> jax.Array:
        is_last = block + 1 >= last
        next_slot = 1 - slot
        pl.when(jnp.logical_not(is_last))(lambda: buffers.start(i, block + 1, next_slot))
        pl.when(is_last & (i + 1 < num))(lambda: buffers.start_step(i + 1, next_slot))
        buffers.wait(i, block, slot)
        base = block * sizes.keys
        held = end - base
        seen = base + sizes.keys <= at + 1  # by the first query, so by all
        if sizes.window is not None:
            seen &= base > at + blocks.count[i] - 1 - sizes.window
            first = at - (sizes.window - 1) - base
            pl.when(first >= sizes.page)(lambda: buffers.clear_head(slot, first))
        if buffers.scales is not None:
            buffers.scales.lay_out(slot, [(0 if sizes.window is None else first, held)], sizes.keys)

        def partly(width: int) -> None:
            pl.when(held < width)(lambda: buffers.clear_tail(slot, held, width))
            add(base, slot, width)

        pl.when(seen)(lambda: add(base, slot, None))
        for narrower, width in itertools.pairwise((0, *sizes.widths)):
            is_enough = held <= width if width < sizes.keys else True
            pl.when(jnp.logical_not(seen) & (held > narrower) & is_enough)(functools.partial(partly, width))
        return next_slot

    next_slot: jax.Array = lax.fori_loop(first, last, body, slot)
    return next_slot


def walk_shared(i: jax.Array, buffers: KeyBuffers, slot: jax.Array, size: int) -> jax.Array:
    """Fetch the keys of a shared grid step, as walk_keys: on return all have arrived, and the next grid step's pages
    are being copied. size: keys reserved for each request."""
    blocks, num, next_slot = buffers.blocks, buffers.blocks.num_blocks[0], 1 - slot
    pl.when(i + 2 < num)(lambda: blocks.start_table(i + 2))
    pl.when(i + 1 < num)(lambda: buffers.start_step(i + 1, next_slot))
    buffers.wait_shared(i, slot, size)
    return next_slot


def padded_table(block_table: jax.Array, target: Target) -> jax.Array:
    """Pad i32[B, Pmax] for QueryBlocks: rows of whole pieces, in HBM."""
    width = block_table.shape[1]
    padding = -width % (LANES if width <= TABLE_PIECE else TABLE_PIECE)
    return hbm(jnp.pad(block_table, ((0, 0), (0, padding))), target)
