"""SteadyRows: what the rows of the same requests have in common from step to step."""

import functools

import numpy as np

from palladio.runtime.scheduling.state.slot_columns import Counts, SlotColumns, Slots, TokenIds
from palladio.runtime.scheduling.state.step_needs import NO_NEEDS, StepNeeds, needs_of


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
        """Of each row in a step of a token each: 1."""
        return np.ones(len(self.slots), np.int64)

    @functools.cached_property
    def num_drafts(self) -> Counts:
        """Of each row: 0."""
        return np.zeros(len(self.slots), np.int64)

    @functools.cached_property
    def request_ids(self) -> list[str]:
        """The requests' ids. The list does not change."""
        ids: list[str] = self._columns.request_ids[self.slots].tolist()
        return ids

    @functools.cached_property
    def needs(self) -> StepNeeds:
        """All that the requests ask of a step."""
        needs = NO_NEEDS
        for request in self.requests:
            needs |= needs_of(request)
        return needs

    def plan(self) -> Counts:
        """Plans a row of one token for each. Returns where they begin."""
        return self._columns.plan_one_each(self.slots, self._ones)

    def take(self, token_ids: TokenIds) -> bool:
        """Takes a token of each row, if nothing follows from any of them and the rows are still the same; else nothing
        changes. Args: token_ids: i32[B]."""
        columns = self._columns
        if self.num_changes != columns.num_changes:
            return False
        return columns.take_one_each(self.slots, self._ones, self._stop_ids, token_ids)

    @functools.cached_property
    def _ones(self) -> Counts:
        ones = np.zeros(len(self._columns.known), np.int64)
        ones[self.slots] = 1
        return ones

    @functools.cached_property
    def _stop_ids(self) -> TokenIds:
        """i32[N, B], as many as one of the requests has at most."""
        stop_ids = self._columns.stop_ids[self.slots].T
        return np.ascontiguousarray(stop_ids[: np.count_nonzero((stop_ids >= 0).any(axis=1))])
