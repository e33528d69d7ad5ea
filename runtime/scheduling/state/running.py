"""The requests that run: which slots they hold, and what their rows have in common from step to step."""

import functools
from collections.abc import Iterator

import numpy as np

from palladio.runtime.scheduling.state.request import Request, StepNeeds
from palladio.runtime.scheduling.state.slot_columns import RECENT, Counts, SlotColumns, Slots, TokenIds


class SteadyRows:
    """Requests that decode step after step, and what stays the same meanwhile. `RunningRequests.steady` makes another
    object when `num_changes` of the columns has grown: steps with the same object have the same rows.

    Attributes:
        slots, requests, revisions: of the requests.
        num_changes: of the columns, when this was made.
        is_constrained: whether one of the requests has a grammar.
    """

    def __init__(self, columns: SlotColumns, slots: Slots) -> None:
        self._columns = columns
        self.slots = slots
        self.num_changes = columns.num_changes
        self.requests = columns.requests[slots]
        self.revisions = columns.revision[slots]
        self.is_constrained = bool(np.count_nonzero(columns.constrained(slots)))

    @functools.cached_property
    def num_tokens(self) -> Counts:
        """Tokens of each row in a step of a token each: 1."""
        return np.ones(len(self.slots), np.int64)

    @functools.cached_property
    def num_drafts(self) -> Counts:
        """Drafts of each row: 0."""
        return np.zeros(len(self.slots), np.int64)

    @functools.cached_property
    def request_ids(self) -> list[str]:
        """The requests' ids. The list does not change."""
        ids: list[str] = self._columns.request_ids[self.slots].tolist()
        return ids

    @functools.cached_property
    def needs(self) -> StepNeeds:
        """All that the requests ask of a step."""
        needs = StepNeeds.NONE
        for request in self.requests:
            needs |= request.needs
        return needs

    def plan(self) -> Counts:
        """Plans a row of one token for each. Returns where they begin."""
        return self._columns.plan_one_each(self.slots, self._ones)

    def take(self, token_ids: TokenIds) -> bool:
        """Take a token of each row, if no token has a further effect and the rows are still the same; otherwise change
        nothing.

        Args:
            token_ids: i32[B].
        """
        columns = self._columns
        if self.num_changes != columns.num_changes:
            return False
        return columns.take_one_each(self.slots, self._begins, self._change, self._stop_ids, token_ids)

    @functools.cached_property
    def _ones(self) -> Counts:
        ones = np.zeros(len(self._columns.known), np.int64)
        ones[self.slots] = 1
        return ones

    @functools.cached_property
    def _begins(self) -> Slots:
        return self.slots * RECENT

    @functools.cached_property
    def _change(self) -> Counts:
        return np.stack([-self._ones, self._ones])

    @functools.cached_property
    def _stop_ids(self) -> TokenIds:
        """i32[N, B], as many as one of the requests has at most."""
        own: TokenIds = self._columns.stop_ids[self.slots].T
        stop_ids: TokenIds = np.ascontiguousarray(own[: np.count_nonzero((own >= 0).any(axis=1))])
        return stop_ids


class RunningRequests:
    """In the order of their admission. The scheduler adds and removes; others look.

    Args:
        num_slots: that requests may hold; slot 0 is the scratch slot.
        page_size: tokens a page.

    Attributes:
        columns: what changes of them at each step.
        slots: theirs, in order.
    """

    def __init__(self, num_slots: int, page_size: int) -> None:
        self._num_slots = num_slots
        self._requests: list[Request] = []
        self._free_slots = list(range(num_slots, 0, -1))
        self.columns = SlotColumns(num_slots, page_size)
        self.slots: Slots = np.zeros(0, np.intp)
        self._steady = SteadyRows(self.columns, self.slots)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def steady(self) -> SteadyRows:
        """What rows of all of them have in common from step to step."""
        if self._steady.num_changes != self.columns.num_changes:
            self._steady = SteadyRows(self.columns, self.slots)
        return self._steady

    def steady_rows(self, slots: Slots) -> SteadyRows | None:
        """`steady`, if these slots are those of all running requests, in whatever order; else None."""
        return self.steady if len(slots) == len(self._requests) else None

    def add(self, request: Request) -> None:
        """Gives the request a slot."""
        request.run_in(self.columns, self._free_slots.pop())
        self._requests.append(request)
        self.slots = np.append(self.slots, request.slot)

    def remove(self, request: Request) -> None:
        """Takes the request's slot."""
        place = self._requests.index(request)
        del self._requests[place]
        self.slots = np.delete(self.slots, place)
        self._free_slots.append(request.slot)
        request.leave_slot()

    def check_integrity(self) -> None:
        """
        Raises:
            AssertionError: a slot is held twice, or lost; or its columns say something else than its request.
        """
        slots = sorted(self._free_slots + [request.slot for request in self._requests])
        assert slots == list(range(1, self._num_slots + 1)), "a slot is lost or used twice"
        assert [request.slot for request in self._requests] == self.slots.tolist(), "the order of slots is another"
        for request in self._requests:
            name, columns, slot = request.given.request_id, self.columns, request.slot
            assert columns.requests[slot] is request, f"{name}: its slot is another request's"
            assert columns.free_until[slot] == request.free_until, f"{name}: its pages reach to another token"
            assert columns.plain_until[slot] <= request.plain_until, f"{name}: its tokens have to be looked at"
            assert len(request.token_ids) == request.num_known_tokens, f"{name}: tokens are lost"
