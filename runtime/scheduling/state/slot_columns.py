"""What changes at every step of the requests that run: numpy columns, with a row for each slot.

A step of many requests that only decode costs a few operations on columns. Python looks at a row only where something
may happen. When that is, two columns say:

    free_until    a token may be planned while its request has fewer tokens in the cache than that, at most: its pages
                  hold it, and it is not complete. 0 while it prefills
    plain_until   read tokens are taken while their request then has no more than that, and none of them is a stop id.
                  0 before its first token is read, and where each token has to be looked at (a grammar, logprobs …)

A slot's rows are read in the order in which they were planned, and a request's first one always by Python. So while
`plain_until` is over 0, no unread row of the slot is another request's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.intp]
Counts = npt.NDArray[np.int64]
TokenIds = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]

RECENT = 128  # tokens of a request that only the columns have, at most; a power of two
MAX_STOP_IDS = 8  # of a request whose tokens are not looked at one by one


class SlotColumns:
    """Slot 0 is the scratch slot: all of it is 0.

    How many tokens a dispatched step gives may be known to the device alone. So there are two bounds of how far a
    request's keys and values reach once all dispatched steps have run, and reading a step corrects them (`correct`):

        computed ≤ tokens in the cache ≤ computed + uncertain

    Args:
        num_slots: slots that requests may hold.
        page_size: tokens a page.

    Attributes:
        requests: the requests that hold the slots; None: the slot is free.
        request_ids: their ids.
        computed: tokens whose keys and values are in the cache for certain when the dispatched steps have run.
        uncertain: tokens that may be in the cache beyond `computed`.
        known: the prompt's tokens, and output tokens that the host has read.
        unread: dispatched rows that sample for it and have not been read yet.
        revision: the revision of rows whose tokens are to be read, see Request.void.
        max_computed: see Request.
        free_until, plain_until: see above.
        stop_ids: i32[slots, MAX_STOP_IDS], ids that may end it; -1: none.
        recent: i32[slots, RECENT], its token number n at n % RECENT, unless its list has it already.
        num_changes: counts changes of what a slot's rows have in common from step to step: its request, its revision,
            its grammar, and whether Python looks at each of its tokens.
    """

    def __init__(self, num_slots: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_changes = 0
        self.requests: Objects = np.full(num_slots + 1, None, object)
        self.request_ids: Objects = np.full(num_slots + 1, "", object)
        self._numbers = np.zeros((8, num_slots + 1), np.int64)
        self.computed: Counts
        self.unread: Counts
        self.known: Counts
        self.computed, self.unread, self.known, self.uncertain = self._numbers[:4]
        self._planned, self._read = self._numbers[:2], self._numbers[1:3]  # computed, unread; unread, known
        self.revision, self.max_computed, self.free_until, self.plain_until = self._numbers[4:]
        self._has_drafts = False  # some row ever had one: else nothing is uncertain
        self.stop_ids: TokenIds = np.full((num_slots + 1, MAX_STOP_IDS), -1, np.int32)
        self.recent: TokenIds = np.zeros((num_slots + 1, RECENT), np.int32)
        self._flat_recent = self.recent.reshape(-1)  # the same memory: numbers of one kind are written faster

    def take_slot(
        self, slot: int, request: Any, request_id: str, stop_ids: Sequence[int], *, known: int, max_computed: int
    ) -> None:
        """A request gets the slot; nothing of it is computed."""
        self.num_changes += 1
        self.requests[slot], self.request_ids[slot] = request, request_id
        self.known[slot], self.max_computed[slot] = known, max_computed
        own = stop_ids[:MAX_STOP_IDS]
        self.stop_ids[slot, : len(own)] = own
        self.stop_ids[slot, len(own) :] = -1

    def note_change(self) -> None:
        """What rows of a slot have in common has changed in its request."""
        self.num_changes += 1

    def set_unread(self, slot: int, unread: int, revision: int) -> None:
        """Set the rows that are to be read.

        Args:
            unread, revision: see the attributes.
        """
        self.num_changes += 1
        self.unread[slot], self.revision[slot] = unread, revision

    def set_computed(self, slot: int, count: int) -> None:
        self.computed[slot] = count

    def set_free_until(self, slot: int, count: int) -> None:
        self.free_until[slot] = count

    def set_plain_until(self, slot: int, count: int) -> None:
        self.num_changes += bool(self.plain_until[slot]) != bool(count)
        self.plain_until[slot] = count

    def add_known(self, slot: int) -> None:
        """One more token is known."""
        self.known[slot] += 1

    def add_unread(self, slots: Slots | int, change: int) -> None:
        """Adds to the rows that are to be read."""
        self.unread[slots] += change

    def void(self, slot: int) -> None:
        """Drop all planned rows of the slot: none is read."""
        self.num_changes += 1
        self.revision[slot] += 1
        self.unread[slot] = self.uncertain[slot] = self.plain_until[slot] = 0

    def leave_slot(self, slot: int) -> None:
        """The slot is free."""
        self.num_changes += 1
        self.requests[slot], self.request_ids[slot] = None, ""
        self._numbers[:, slot] = 0

    def tokens_from(self, slot: int, begin: int) -> list[int]:
        """Known tokens of the slot's request, from this number on."""
        tokens: list[int] = self.recent[slot, np.arange(begin, self.known[slot]) % RECENT].tolist()
        return tokens

    def shortest(self, slots: Slots, count: int) -> Slots:
        """At most `count` of these, those with the shortest outputs."""
        order = np.argsort([request.num_output_tokens for request in self.requests[slots]], kind="stable")
        return slots[order[:count]]

    def constrained(self, slots: Slots) -> Mask:
        """Which slots' requests have a grammar."""
        mask: Mask = self.plain_until[slots] == 0
        for place in np.flatnonzero(mask).tolist():
            mask[place] = self.requests[slots[place]].constraint is not None
        return mask

    def room(self, slots: Slots) -> Counts:
        """How many more tokens each of these may compute before `free_until`; 0 or less: it has to be looked at."""
        room: Counts = self.free_until[slots] - self.computed[slots]
        if self._has_drafts:
            room -= self.uncertain[slots]
        return room

    def has_uncertain(self, slots: Slots) -> bool:
        """Whether one of these may have more tokens in the cache than `computed`."""
        return self._has_drafts and bool(np.count_nonzero(self.uncertain[slots]))

    def count_with_room(self) -> int:
        """How many requests have room for one more token. A free slot has none."""
        computed = self.computed + self.uncertain if self._has_drafts else self.computed
        return int(np.count_nonzero(computed < self.free_until))

    def prefilling(self, slots: Slots) -> list[Any]:
        """The requests of these slots that prefill."""
        unfree = self.free_until[slots] == 0
        if not np.count_nonzero(unfree):
            return []
        return [request for request in self.requests[slots[unfree]] if request.is_prefilling]

    def growing(self, slots: Slots) -> tuple[Mask, Slots]:
        """For slots that have reached their `free_until`, with no uncertain token: which can go on, and which of these
        need a page for it."""
        free, most = self.free_until[slots], self.max_computed[slots]
        ready: Mask = (free > 0) & (self.computed[slots] < most)
        return ready, slots[ready & (free < most)]

    def soon_full(self, slots: Slots) -> Slots:
        """Slots, of those with no uncertain token, that need a page for their next token, or will before a quarter of a
        page of steps is over: pages are looked for once for all of these."""
        free = self.free_until[slots]
        needs_page = (free > 0) & (free < self.max_computed[slots])
        soon: Slots = slots[needs_page & (free - self.computed[slots] <= self.page_size // 4)]
        return soon

    def add_page(self, slots: Slots) -> None:
        """Each of them has room for a page of tokens more."""
        self.free_until[slots] = np.minimum(self.free_until[slots] + self.page_size, self.max_computed[slots])

    def plan_one_each(self, slots: Slots, ones: Counts) -> Counts:
        """A row of one token is planned for each request, without drafts. Returns where each begins.

        Args:
            slots: theirs. ones: i64[slots], 1 for each of them and 0 for free slots: a sum of whole columns takes a
                third of the time of one by slots.
        """
        starts: Counts = self.computed.take(slots)
        self._planned += ones
        return starts

    def plan(
        self, slots: Slots, num_tokens: Counts, num_drafts: Counts | None, computed: Counts | None = None
    ) -> Counts:
        """Plan a row of each slot that samples after each of its tokens.

        Args:
            num_drafts: those of its tokens that may be wrong; None: no row of the engine ever has any.
            computed: `self.computed` of these slots, if the caller has it.

        Returns:
            Where each begins at most. At `max_computed` the request is complete, and the row samples for no request.
        """
        starts: Counts = self.computed[slots] if computed is None else computed
        self.unread[slots] += 1
        if num_drafts is None:
            self.computed[slots] = starts + num_tokens
            return starts
        self._has_drafts = True
        self.computed[slots] = starts + num_tokens - num_drafts
        uncertain = self.uncertain[slots]
        self.uncertain[slots] = uncertain + num_drafts
        return np.where(uncertain > 0, np.minimum(starts + uncertain, self.max_computed[slots] - 1), starts)

    def correct(
        self, slots: Slots | int, num_tokens: Counts | int, num_drafts: Counts | int, counts: Counts | int
    ) -> None:
        """Corrects the bounds: rows that were planned so have `counts` tokens."""
        computed = self.computed[slots] + counts - (num_tokens - num_drafts)
        # a row after it may have nothing left to compute
        self.computed[slots] = np.minimum(computed, self.max_computed[slots])
        self.uncertain[slots] -= num_drafts

    def take_tokens(self, slots: Slots, token_ids: TokenIds, counts: Counts | None, alone: Sequence[int]) -> Mask:
        """Takes the tokens of rows that decode, as far as nothing follows from them; the others change nothing.

        Args:
            token_ids: i32[B, N]. counts: of each row, how many of them are its own; None: all.
            alone: rows that are not taken in any case.

        Returns:
            Which rows it has taken: they are read.
        """
        number = token_ids.shape[1]
        known: Counts = self.known[slots]
        after = known + (number if counts is None else counts)
        taken: Mask = after <= self.plain_until[slots]
        stops = token_ids[:, :, None] == self.stop_ids[slots][:, None]
        if np.count_nonzero(stops):  # a quarter of the time of any()
            if counts is not None:
                stops &= (np.arange(number) < counts[:, None])[:, :, None]
            taken &= ~stops.any(axis=(1, 2))
        if alone:
            taken[alone] = False
        if np.count_nonzero(taken) < len(taken):
            slots, known, after, token_ids = slots[taken], known[taken], after[taken], token_ids[taken]
            counts = None if counts is None else counts[taken]
        if counts is None and number == 1:
            self.recent[slots, known % RECENT] = token_ids[:, 0]
        elif counts is None:
            for step in range(number):
                self.recent[slots, (known + step) % RECENT] = token_ids[:, step]
        else:
            rows, steps = np.nonzero(np.arange(number) < counts[:, None])
            self.recent[slots[rows], (known[rows] + steps) % RECENT] = token_ids[rows, steps]
        self.known[slots] = after
        self.unread[slots] -= 1
        return taken

    def take_one_each(
        self, slots: Slots, begins: Slots, change: Counts, stop_ids: TokenIds, token_ids: TokenIds
    ) -> bool:
        """Takes a token of each request, if nothing follows from any of them; else nothing changes.

        Args:
            slots: theirs. begins: where these begin in `recent`, as one row.
            change: i64[2, slots], what is added to `unread` and `known`: -1 and 1 for each of them, 0 for free slots.
            stop_ids: i32[N, B], those of each row; -1: none.
            token_ids: i32[B].
        """
        num_plain = np.count_nonzero(self.known < self.plain_until)
        if num_plain < len(slots) or np.count_nonzero(token_ids == stop_ids):
            return False
        places = self.known.take(slots)
        places &= RECENT - 1
        places += begins
        self._flat_recent[places] = token_ids
        self._read += change
        return True
