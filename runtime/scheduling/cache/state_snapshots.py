"""Which states are copied into snapshots, when a copy may be found, and where a request's own state comes from.

A request's state is that of its newest token, so a copy has to be made by the step that computes the token it is of.
Chunks of prompts end where a snapshot is worth its place:

    - at multiples of an interval;
    - where the tree's pages end that the request cannot use, because no snapshot is there: others have begun alike, so
      more will (a system prompt);
    - at the last full page in front of the last token, for the same prompt again and for what continues it.

While a request decodes, one copy goes along with it: at each full page it is made anew in the same slot. It is kept
when the request ends or is retracted, so that a chat's next prompt begins behind the answer.

    plan       a step is complete: its copies are planned, and get slots
    confirm    it has run: copies behind chunks are in the tree from now on; before, no lookup finds them
    release    the request gives up its slot: what is not confirmed goes, what goes along with it is kept

A snapshot may be evicted, and its slot written to by any later step, as soon as the step is planned that copies it to a
request's slot: the device runs steps in order, and in each step first copies into slots, then out of them.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator

from palladio.runtime.interface.outputs.request_trace import SnapshotHit
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch, ScheduledRow
from palladio.runtime.scheduling.batch.state_copies import SnapshotCopy, StateCopies
from palladio.runtime.scheduling.cache.radix_cache import RadixCache
from palladio.runtime.scheduling.cache.tree_snapshots import TreeSnapshots
from palladio.runtime.scheduling.state.radix_node import PageKey, RadixNode
from palladio.runtime.scheduling.state.request import Request

MOST_ALONG = 2  # at most one slot in this many follows requests that decode


@dataclasses.dataclass(slots=True, eq=False)
class _Held:
    """What a running request has of snapshots.

    Attributes:
        newest: tokens of the last place in its prompt where it has one, or will have once the planned steps have run.
        known: tokens whose pages the tree had when the request was admitted.
        copies: behind chunks, which are not confirmed. along: the one that goes along with it as it decodes.
    """

    newest: int
    known: int
    copies: list[SnapshotCopy] = dataclasses.field(default_factory=list)
    along: SnapshotCopy | None = None

    def plan(self, copy: SnapshotCopy, end: int) -> SnapshotCopy:
        """A copy behind a chunk that ends there."""
        self.newest = end
        self.copies.append(copy)
        return copy

    def plan_along(self, copy: SnapshotCopy) -> SnapshotCopy:
        """The next one that goes along with it."""
        self.along = copy
        return copy

    def confirm(self, copy: SnapshotCopy) -> bool:
        """Its step has run. Returns whether others may find it now."""
        copy.confirm()
        if copy is not self.along:
            self.copies.remove(copy)
        return copy is not self.along


class StateSnapshots:
    """The snapshots of one data-parallel rank.

    Args:
        tree: finds the snapshots.
        slots: the same as `tree.snapshots`.
        keys_of: a request's pages from one number to another.
    """

    def __init__(
        self,
        tree: RadixCache,
        slots: TreeSnapshots,
        page_size: int,
        keys_of: Callable[[Request, int, int], list[PageKey]],
    ) -> None:
        self._tree = tree
        self._slots = slots
        self._page_size = page_size
        self._keys_of = keys_of
        self._held: dict[Request, _Held] = {}
        self._num_along = 0
        self._restores: list[tuple[int, int]] = []
        self._is_closed = False

    @property
    def taken(self) -> Iterator[int]:
        """Slots of copies that no lookup finds yet."""
        for held in self._held.values():
            yield from (copy.slot for copy in held.copies)
            if held.along is not None:
                yield held.along.slot

    def admit(self, request: Request, node: RadixNode) -> None:
        """A request has just got a slot, and begins behind this node of the tree."""
        known = 0
        if not request.num_retractions:  # else the pages may be its own
            keys = self._keys_of(request, 0, (request.prefill_end - 1) // self._page_size)
            known = self._tree.num_known(keys, request.given.options.cache_salt) * self._page_size
        self._held[request] = _Held(request.num_computed, known)
        if node.snapshot:
            self._slots.use(node)
            self._restores.append((node.snapshot, request.slot))
            request.trace.add_snapshot(SnapshotHit(time.time(), node.snapshot, request.num_computed))

    def stop(self, request: Request, start: int, stop: int) -> int:
        """Where a chunk that could end at `stop` ends: there, or at the first place before that is worth a snapshot."""
        held = None if self._is_closed else self._held.get(request)
        if held is None:
            return stop
        return min([stop, *(place for place in self._places(request, held, start) if place > start)])

    def plan(self, batch: ScheduledBatch) -> StateCopies:
        """What a step copies, whose rows are final; it is the next one that the device runs."""
        restores, self._restores = self._restores, []
        copies: list[SnapshotCopy] = []
        if not self._is_closed:
            ends = [*batch.decodes.ends.tolist(), *(row.start + row.num_tokens for row in batch.chunks)]
            rows = (batch.row(number) for number, end in enumerate(ends) if end % self._page_size == 0)
            copies = [copy for row in rows if (copy := self._plan_row(row)) is not None]
        return StateCopies(restores, copies)

    def confirm(self, copies: StateCopies) -> None:
        """A step has run without an error."""
        for copy in copies.after:
            # else its request has ended, was retracted, or has a newer one
            if copy.slot and self._held[copy.request].confirm(copy):
                self._keep(copy)

    def reach(self, request: Request) -> int:
        """Tokens of a running request that it would not compute again if it were retracted now."""
        held, node = self._held.get(request), request.node
        if held is not None and held.along is not None and self._is_known(held.along):
            return held.along.num_pages * self._page_size
        num_pages = request.num_tree_pages
        while node is not None and not node.snapshot:
            num_pages -= len(node.pages)
            node = node.parent
        return num_pages * self._page_size

    def release(self, request: Request, *, keeps: bool) -> None:
        """The request gives up its slot; its pages are in the tree, and it holds them still.

        Args:
            keeps: what goes along with it is kept, if its step has run.
        """
        self._restores = [pair for pair in self._restores if pair[1] != request.slot]
        held = self._held.pop(request, None)
        if held is None:
            return
        for copy in held.copies:
            self._drop(copy)
        if held.along is not None:
            self._num_along -= 1
            if keeps and self._is_known(held.along):
                self._keep(held.along)
            else:
                self._drop(held.along)

    def close(self) -> None:
        """No more are made."""
        self._is_closed = True

    def _places(self, request: Request, held: _Held, start: int) -> Iterator[int]:
        """Places that are worth a snapshot, and perhaps some before `start`."""
        slots, first = self._slots.slots, held.newest + self._slots.slots.least
        multiple = max(start + 1, first)
        yield -(-multiple // slots.interval) * slots.interval
        last = (request.prefill_end - 1) // self._page_size * self._page_size
        yield from (place for place in (held.known, last) if place >= first)

    def _plan_row(self, row: ScheduledRow) -> SnapshotCopy | None:
        """The copy that a step makes of the state of a row that ends with a page."""
        held, end = self._held.get(row.request), row.start + row.num_tokens
        if held is None:
            return None
        if row.decodes:
            return self._plan_along(row.request, held, end)
        if end not in self._places(row.request, held, end - 1) or (slot := self._slots.take()) is None:
            return None
        return held.plan(SnapshotCopy(row.request, row.request.slot, slot, end // self._page_size), end)

    def _plan_along(self, request: Request, held: _Held, end: int) -> SnapshotCopy | None:
        if held.along is not None:
            slot = held.along.leave()
        else:
            is_worth = end >= held.newest + self._slots.slots.least
            if not is_worth or self._num_along >= self._slots.slots.count // MOST_ALONG:
                return None
            if (taken := self._slots.take()) is None:
                return None
            slot = taken
            self._num_along += 1
        return held.plan_along(SnapshotCopy(request, request.slot, slot, end // self._page_size))

    def _is_known(self, copy: SnapshotCopy) -> bool:
        """Whether its step has run, and the host has read the tokens that it is behind."""
        return copy.is_confirmed and copy.num_pages * self._page_size <= len(copy.request.token_ids)

    def _keep(self, copy: SnapshotCopy) -> None:
        keys = self._keys_of(copy.request, 0, copy.num_pages)
        self._tree.keep_snapshot(keys, copy.request.given.options.cache_salt, copy.slot)

    def _drop(self, copy: SnapshotCopy) -> None:
        self._slots.give_back(copy.leave())
