"""Who gives its pages up when memory runs out, and who gets them."""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from palladio.runtime.interface.outputs.request_trace import LostPages
from palladio.runtime.scheduling.batch.buckets import Buckets, SchedulerLimits
from palladio.runtime.scheduling.cache.cache_manager import CacheManager
from palladio.runtime.scheduling.policy.kv_budget import KVBudget, NewTokenRatio
from palladio.runtime.scheduling.state.request import Request, RequestStatus
from palladio.runtime.scheduling.state.running import RunningRequests
from palladio.runtime.scheduling.state.slot_columns import Mask, Slots

MAX_FRUITLESS = 100  # preemptions in a row without a token: each needs a more urgent request with a long prompt

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True)
class Retraction:
    """For the log: how many requests lost their pages, and what it did to the new-token ratio."""

    num_retracted: int
    old_ratio: float
    new_ratio: float


class Retractor:
    """Takes pages and slots from running requests, the one that is to lose them first.

    Background requests go first, then the least urgent; of those, who loses least: the fewest computed tokens have to
    be computed again, and among equals the youngest goes.

    Args:
        running: the scheduler's, which `suspend` takes the requests from.
        suspend: takes a running request's pages and slot, and puts it back into the queue.

    Attributes:
        retractions: for want of pages, since they were last taken.
    """

    def __init__(
        self,
        cache: CacheManager,
        kv_budget: KVBudget,
        running: RunningRequests,
        suspend: Callable[[Request], None],
        limits: SchedulerLimits,
    ) -> None:
        self._cache = cache
        self._kv_budget = kv_budget
        self._running = running
        self._suspend = suspend
        self._threshold = limits.preemption_threshold
        self._low_values_first = limits.low_values_first
        self.retractions: list[Retraction] = []
        self._num_fruitless = 0  # preemptions since a step last sampled

    def take_retractions(self) -> list[Retraction]:
        """Return the retractions since the last call, and forget them."""
        taken, self.retractions = self.retractions, []
        return taken

    def have_room(self, slots: Slots) -> bool:
        """Whether each of these has room for one more token, or needs just a page for it and gets that here, while few
        cached pages have to go. If not, nothing has changed."""
        columns = self._running.columns
        if columns.count_with_room() == len(self._running):
            return True
        is_free = columns.room(slots) > 0
        if np.count_nonzero(is_free) == len(slots):
            return True
        full = slots[~is_free]
        if len(columns.growing(full)[1]) < len(full) or columns.has_uncertain(slots):
            return False
        soon = columns.soon_full(slots)
        if not self._cache.has_spare(len(soon)):
            return False
        self._cache.add_pages(columns, soon)
        return True

    def with_room(self, slots: Slots) -> Slots:
        """The slots that can decode, each with room for one more token: they get pages here. Requests that find too few
        wait or are retracted.

        Args:
            slots: slots of running requests.
        """
        columns = self._running.columns
        if columns.count_with_room() == len(self._running):
            return slots
        unfree: Mask = columns.room(slots) <= 0
        if not np.count_nonzero(unfree):
            return slots
        ready_rows, growing_slots = columns.growing(slots[unfree])
        if len(growing_slots) <= self._cache.num_available_columns and not columns.has_uncertain(slots):
            soon = columns.soon_full(slots)
            self._cache.add_pages(columns, soon if self._cache.has_spare(len(soon)) else growing_slots)
            unfree[unfree] = ~ready_rows
            return slots[~unfree]
        size, looked_at = self._cache.page_size, columns.requests[slots[unfree]].tolist()
        ready = [r for r in looked_at if r.prefill_end <= r.num_computed < r.max_computed]
        growing = [r for r in ready if r.num_computed + r.num_uncertain >= len(r.pages) * size < r.max_computed]
        if len(growing) > self._cache.num_available_columns:
            # A request that may have a page less than it seems waits for its tokens to be read.
            growing, uncertain = [r for r in growing if not r.num_uncertain], {r for r in growing if r.num_uncertain}
            ready = [r for r in ready if r not in uncertain]
        if len(growing) > self._cache.num_available_columns:
            self.make_room(growing, self._kv_budget.ratio)
        for request in growing:
            if request.status is RequestStatus.RUNNING:
                grown = self._cache.grow(request, min(request.most_computed + 1, request.max_computed))
                assert grown, "retraction left too few pages"
        ready_slots = {request.slot for request in ready}  # 0 of retracted ones
        taking_part: Mask = columns.requests[slots] != None  # noqa: E711  # elementwise
        taking_part[unfree] &= [slot in ready_slots for slot in slots[unfree].tolist()]
        return slots[taking_part]

    def make_room(self, growing: Sequence[Request], ratio: NewTokenRatio) -> None:
        """Retracts until each of the growing requests that is left can have another page, and expects more of those
        that run from now on (`ratio`).

        One request always stays, and it fits alone, so the others run after it.
        """
        old_value = ratio.value
        num_growing, retracted = len(growing), 0
        victims = sorted(self._running, key=self._order)
        while num_growing > self._cache.num_available_columns and len(victims) > 1:
            victim = victims.pop()
            num_growing -= victim in growing
            self.retract(victim)
            retracted += 1
        ratio.raise_for(self._running)
        self.retractions.append(Retraction(retracted, old_value, ratio.value))

    def find_victims(self, request: Request, buckets: Buckets) -> list[Request]:
        """The running requests that make way for a waiting one, which then fits; none if it fits as it is, or would not
        even without all of them. Background requests make way, unless the waiting one is one, and so do requests that
        are less urgent by more than the threshold."""
        giving_way = [running for running in self._running if self._gives_way(running, request)]
        if not giving_way or self._has_stalled():
            return []
        room = self._kv_budget.room(request, buckets)
        if room.suffices():
            return []
        giving_way.sort(key=self._order, reverse=True)
        for number, victim in enumerate(giving_way, start=1):
            room.leave_out(victim)
            if room.suffices():
                self._num_fruitless += 1
                return giving_way[:number]
        return []

    def note_samples(self) -> None:
        """A step is planned that samples for a request."""
        self._num_fruitless = 0

    def retract(self, request: Request) -> None:
        """Takes a running request's pages and slot, and puts it back into the queue."""
        lost = LostPages(time.time(), self._cache.num_lost_tokens(request), self._cache.snapshot_tokens(request))
        request.trace.add_retraction(lost)
        request.num_retractions += 1
        self._suspend(request)

    def retract_all(self) -> None:
        """Retract every running request."""
        for request in sorted(self._running, key=self._order, reverse=True):
            self.retract(request)

    def _gives_way(self, victim: Request, request: Request) -> bool:
        if victim.given.options.background != request.given.options.background:
            return victim.given.options.background
        return self._threshold is not None and self._urgency(request) - self._urgency(victim) > self._threshold

    def _has_stalled(self) -> bool:
        """Whether preemptions have stopped all progress, after MAX_FRUITLESS without a token. Preemption and the queue
        have the same order, so only a defect causes this: log it, and let running requests get a token first."""
        if self._num_fruitless == MAX_FRUITLESS:
            self._num_fruitless += 1
            logger.error(
                "%d retractions in a row without a new token: please report this bug. Running requests are not "
                "retracted (preempted) until the next token",
                MAX_FRUITLESS,
            )
        return self._num_fruitless > MAX_FRUITLESS

    def _order(self, request: Request) -> tuple[bool, int, int, float]:
        """Sort key: requests that are retracted last sort first."""
        lost = self._cache.num_lost_tokens(request)
        return request.given.options.background, -self._urgency(request), -lost, request.given.received

    def _urgency(self, request: Request) -> int:
        """How much a request is to be preferred; 0 unless priorities are on."""
        if self._threshold is None:
            return 0
        return -request.given.options.priority if self._low_values_first else request.given.options.priority
