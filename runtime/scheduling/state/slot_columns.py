"""What changes at every step of the requests that run: numpy columns, with a row for each slot.

A step of many requests that only decode costs a few operations on columns. Python looks at a row only where something
may happen. When that is, two columns say:

    free_until    a token may be planned while its request has fewer tokens in the cache than that, at most: its pages
                  hold it, and it is not complete. 0 while it prefills
    plain_until   read tokens are taken while their request then has no more than that, and none of them is a stop id.
                  0 before its first token is read, and where each token has to be looked at (a grammar, logprobs …)

A slot's rows are read in the order in which they were planned, and a request's first one always by Python. So while
`plain_until` is over 0, no unread row of the slot is another request's.

Steps of the same rows, a token each, are written into the columns when somebody looks at these, many at once
(`_settle`): where the device's programs use the host's caches, each operation on a column costs several times its time
alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from palladio.runtime.scheduling.state.page_headroom import Counts, PageHeadroom, Slots

TokenIds = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]

RECENT = 128  # tokens of a request that only the columns have, at most
MAX_STOP_IDS = 8  # of a request whose tokens are not looked at one by one


class _SameRows(NamedTuple):
    """What reading rows of the same slots needs at each step.

    Attributes:
        slots, num_changes: as they were then. names: the requests' ids.
        stop_ids: i32[N, B], as many as one of them has at most.
        taken: of rows that are all taken.
    """

    slots: Slots
    num_changes: int
    names: list[str]
    stop_ids: TokenIds
    taken: Mask


class SlotColumns:
    """Slot 0 is nobody's: all of it is 0.

    How many tokens a dispatched step gives may be known to the device alone. So there are two bounds of how far a
    request's keys and values reach once all dispatched steps have run, and reading a step corrects them (`correct`):

        computed ≤ tokens in the cache ≤ computed + unsure

    Args:
        num_slots: that requests may hold.
        page_size: tokens a page.

    Attributes:
        requests: who holds the slot; None: nobody. request_ids: theirs.
        computed: tokens whose keys and values are in the cache, or will be when the dispatched steps have run: so many
            at least. unsure: tokens that there may be beyond those.
        known: the prompt's tokens and those that the host has read.
        unread: dispatched rows that sample for it and have not been read yet.
        revision: that of rows whose tokens are to be read, see Request.void.
        max_computed: see Request.
        free_until, plain_until: see above.
        stop_ids: i32[slots, MAX_STOP_IDS], those that may end it; -1: none.
        recent: i32[slots, RECENT], its token number n at n % RECENT, unless its list has it already.
        num_changes: of what a slot's rows have in common from step to step: its request, its revision, and whether
            Python looks at each of its tokens.
    """

    def __init__(self, num_slots: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_changes = 0
        # Slots with room for a token each in so many more steps, if `num_changes` has not grown.
        self._roomy, self._num_roomy_steps, self._roomy_changes = np.zeros(0, np.intp), 0, 0
        self._headroom: PageHeadroom | None = None  # theirs
        self._same: _SameRows | None = None  # the last ones
        self._num_plain_steps = 0  # in which none of them reaches its `plain_until`
        # Steps of a token for each of these slots that the columns lack: how many are planned, and the tokens of those
        # that are read. Where the first one begins, if that has been asked for.
        self._late: Slots = np.zeros(0, np.intp)
        self._num_planned = 0
        self._read: list[TokenIds] = []
        self._begins: Counts | None = None
        self.requests: Objects = np.full(num_slots + 1, None, object)
        self.request_ids: Objects = np.full(num_slots + 1, "", object)
        self._numbers = np.zeros((8, num_slots + 1), np.int64)
        self._computed: Counts
        self._unread: Counts
        self._known: Counts
        self._computed, self._unread, self.unsure, self._known = self._numbers[:4]
        self._counted, self._ones = np.zeros(0, np.intp), np.zeros(num_slots + 1, np.int64)  # see `_once_each`
        self.revision, self.max_computed, self.free_until, self.plain_until = self._numbers[4:]
        self.stop_ids: TokenIds = np.full((num_slots + 1, MAX_STOP_IDS), -1, np.int32)
        self._recent: TokenIds = np.zeros((num_slots + 1, RECENT), np.int32)

    @property
    def computed(self) -> Counts:
        """See above."""
        self._settle()
        return self._computed

    @property
    def unread(self) -> Counts:
        """See above."""
        self._settle()
        return self._unread

    @property
    def known(self) -> Counts:
        """See above."""
        self._settle()
        return self._known

    @property
    def recent(self) -> TokenIds:
        """See above."""
        self._settle()
        return self._recent

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

    def set_unread(self, slot: int, unread: int, revision: int) -> None:
        """Args: as the attributes."""
        self.num_changes += 1
        self.unread[slot], self.revision[slot] = unread, revision

    def set_computed(self, slot: int, count: int) -> None:
        self._headroom = None
        self.computed[slot] = count

    def set_free_until(self, slot: int, count: int) -> None:
        self._headroom = None
        self.num_changes += count < int(self.free_until[slot])
        self.free_until[slot] = count

    def set_plain_until(self, slot: int, count: int) -> None:
        self.num_changes += bool(self.plain_until[slot]) != bool(count)
        self.plain_until[slot] = count

    def add_known(self, slot: int) -> None:
        """One more token is known."""
        self._num_plain_steps = 0
        self.known[slot] += 1

    def add_unread(self, slots: Slots | int, change: int) -> None:
        """So many more rows are to be read."""
        self.unread[slots] += change

    def void(self, slot: int) -> None:
        """No row that is planned is to be read."""
        self.num_changes += 1
        self.revision[slot] += 1
        self.unread[slot] = self.unsure[slot] = self.plain_until[slot] = 0

    def leave_slot(self, slot: int) -> None:
        """The slot is nobody's."""
        self._settle()
        self.num_changes += 1
        self.requests[slot], self.request_ids[slot] = None, ""
        self._numbers[:, slot] = 0

    def tokens_from(self, slot: int, begin: int) -> list[int]:
        """Known tokens of the slot's request, from this number on."""
        tokens: list[int] = self.recent[slot, np.arange(begin, self.known[slot]) % RECENT].tolist()
        return tokens

    def shortest(self, slots: Slots, count: int) -> Slots:
        """So many of these at most, those with the shortest outputs."""
        order = np.argsort([request.num_output_tokens for request in self.requests[slots]], kind="stable")
        return slots[order[:count]]

    def names_of(self, slots: Slots) -> list[str]:
        """The ids of the slots' requests; nobody changes the list."""
        return self._same_rows(slots).names

    def constrained(self, slots: Slots) -> Mask:
        """Which slots' requests have a grammar."""
        mask: Mask = self.plain_until[slots] == 0
        for place in np.flatnonzero(mask).tolist():
            mask[place] = self.requests[slots[place]].constraint is not None
        return mask

    def are_roomy(self, slots: Slots) -> bool:
        """Whether each of these is known to have room for one more token; it is by this array, see RunningRequests."""
        return slots is self._roomy and self._num_roomy_steps > 0 and self._roomy_changes == self.num_changes

    def unfree(self, slots: Slots) -> Mask | None:
        """Which slots have reached their `free_until`; None: none of them."""
        if self.are_roomy(slots):
            return None
        computed: Counts = self.computed[slots] + self.unsure[slots]
        headroom = PageHeadroom(self.free_until[slots] - computed, self.max_computed[slots] - computed)
        if headroom.num_steps <= 0:
            mask: Mask = headroom.room <= 0
            return mask
        self._headroom, self._roomy, self._roomy_changes = headroom, slots, self.num_changes
        self._num_roomy_steps = headroom.num_steps
        return None

    def soon_full_again(self, slots: Slots) -> Slots:
        """As `soon_full`, of slots that were known to have room until the last step; nobody, where it takes a look."""
        headroom = self._headroom
        if headroom is None or slots is not self._roomy or self._roomy_changes != self.num_changes:
            return slots[:0]
        return headroom.full(slots, self.page_size // 4)

    def growing(self, slots: Slots) -> tuple[Mask, Slots]:
        """Of slots that have reached their `free_until`, with no unsure token: which can go on, and those of them that
        need a page for it."""
        free, most = self.free_until[slots], self.max_computed[slots]
        ready: Mask = (free > 0) & (self.computed[slots] < most)
        return ready, slots[ready & (free < most)]

    def soon_full(self, slots: Slots) -> Slots:
        """Those, of slots with no unsure token, that need a page for their next token, or will before a quarter of a
        page of steps is over: pages are looked for once for all of these."""
        free = self.free_until[slots]
        needs_page = (free > 0) & (free < self.max_computed[slots])
        soon: Slots = slots[needs_page & (free - self.computed[slots] <= self.page_size // 4)]
        return soon

    def add_page(self, slots: Slots) -> None:
        """Each of them has room for a page of tokens more."""
        self.free_until[slots] = np.minimum(self.free_until[slots] + self.page_size, self.max_computed[slots])
        if (headroom := self._headroom) is not None and headroom.slots is slots:
            headroom.add_page(self.page_size)
            self._num_roomy_steps = headroom.num_steps
        else:
            self._headroom = None

    def plan_again(self, slots: Slots) -> tuple[Counts, int]:
        """Plans a row of a token for each of the slots of the last plan. Returns where each began some steps ago, and
        how many."""
        begins = self._begins  # of these slots: those of a plan of others are gone
        if begins is None:
            self._settle()
            self._late = slots
            self._begins = begins = self._computed.take(slots)
        self._num_planned += 1
        self._num_roomy_steps -= 1
        return begins, self._num_planned - 1

    def plan(self, slots: Slots, num_tokens: Counts, num_drafts: Counts | None) -> Counts:
        """A row of each slot is planned that samples after each of its tokens.

        Args:
            num_drafts: those of its tokens that may be wrong; None: no row of the engine ever has any.

        Returns:
            Where each begins at most. At `max_computed` the request is complete, and the row is nobody's.
        """
        starts: Counts = self.computed[slots]
        self._num_roomy_steps, self._headroom = 0, None
        self.unread[slots] += 1
        if num_drafts is None:
            self.computed[slots] = starts + num_tokens
            return starts
        self.computed[slots] = starts + num_tokens - num_drafts
        unsure = self.unsure[slots]
        self.unsure[slots] = unsure + num_drafts
        return np.where(unsure > 0, np.minimum(starts + unsure, self.max_computed[slots] - 1), starts)

    def correct(
        self, slots: Slots | int, num_tokens: Counts | int, num_drafts: Counts | int, counts: Counts | int
    ) -> None:
        """Corrects the bounds: rows that were planned so have `counts` tokens."""
        self._headroom = None
        computed = self.computed[slots] + counts - (num_tokens - num_drafts)
        # a row after it may have nothing left to compute
        self.computed[slots] = np.minimum(computed, self.max_computed[slots])
        self.unsure[slots] -= num_drafts

    def take_tokens(self, slots: Slots, token_ids: TokenIds, counts: Counts | None, alone: Sequence[int]) -> Mask:
        """Takes the tokens of rows that decode, as far as nothing follows from them; the others change nothing.

        Args:
            token_ids: i32[B, N]. counts: of each row, how many of them are its own; None: all.
            alone: rows that are not taken in any case.

        Returns:
            Which rows it has taken: they are read.
        """
        number = token_ids.shape[1]
        if counts is None and number == 1 and not alone:
            all_taken = self._take_again(slots, token_ids[:, 0])
            if all_taken is not None:
                return all_taken
        self._num_plain_steps = 0
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

    def _take_again(self, slots: Slots, token_ids: TokenIds) -> Mask | None:
        """The same for one token of each row, where it is known that Python looks at none of the rows; else None."""
        same = self._same_rows(slots)
        if self._num_plain_steps == 0:
            self._num_plain_steps = max(0, int((self.plain_until[slots] - self.known[slots]).min(initial=RECENT)))
        if self._num_plain_steps == 0 or np.count_nonzero(token_ids == same.stop_ids):
            return None
        self._num_plain_steps -= 1
        if self._late is not slots:
            self._settle()
            self._late = slots
        self._read.append(token_ids)
        return same.taken

    def _settle(self) -> None:
        """The columns have all steps from here on."""
        planned, read = self._num_planned, self._read
        self._begins = None
        if not planned and not read:
            return
        slots, count = self._late, len(read)
        ones = self._once_each(slots)
        if planned:
            self._computed += planned * ones
        if read:
            places = self._known.take(slots) + np.arange(count)[:, None]
            self._recent[slots, places % RECENT] = read
            self._known += count * ones
        self._unread += (planned - count) * ones
        self._num_planned, self._read = 0, []

    def _once_each(self, slots: Slots) -> Counts:
        """1 for each of these slots and 0 for all others: a sum over whole columns takes a third of one by slots."""
        if self._counted is not slots:
            self._ones[self._counted] = 0
            self._ones[slots] = 1
            self._counted = slots
        return self._ones

    def _same_rows(self, slots: Slots) -> _SameRows:
        same = self._same
        if same is None or same.slots is not slots or same.num_changes != self.num_changes:
            stop_ids = self.stop_ids[slots].T
            stop_ids = np.ascontiguousarray(stop_ids[: np.count_nonzero((stop_ids >= 0).any(axis=1))])
            names: list[str] = self.request_ids[slots].tolist()
            self._same = same = _SameRows(slots, self.num_changes, names, stop_ids, np.ones(len(slots), np.bool_))
            self._num_plain_steps = 0
        return same
