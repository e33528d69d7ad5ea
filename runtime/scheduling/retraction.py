"""Retraction: who loses their pages when memory runs short, or when a more urgent request waits."""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

from palladio.runtime.interface.request_trace import LostPages
from palladio.runtime.scheduling.buckets import Buckets
from palladio.runtime.scheduling.cache_manager import CacheManager
from palladio.runtime.scheduling.kv_budget import KVBudget
from palladio.runtime.scheduling.new_token_ratio import NewTokenRatio
from palladio.runtime.scheduling.request import Request
from palladio.runtime.scheduling.running_requests import RunningRequests
from palladio.runtime.scheduling.scheduler_limits import SchedulerLimits

MAX_FRUITLESS = (
    100  # preemptions in a row without a token: each needs a more urgent request with a prompt of many steps
)

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
        """Those since the last time."""
        taken, self.retractions = self.retractions, []
        return taken

    def make_room(self, growing: Sequence[Request], ratio: NewTokenRatio) -> None:
        """Retracts until each of the growing requests that is left can have another page, and expects more of those
        that run from now on (`ratio`).

        One request always stays, and it fits alone, so the others get their turn.
        """
        old_value = ratio.value
        num_growing, retracted = len(growing), 0
        victims = sorted(self._running, key=self._order)
        while num_growing > self._cache.num_available_pages and len(victims) > 1:
            victim = victims.pop()
            num_growing -= victim in growing
            self.retract(victim)
            retracted += 1
        ratio.raise_for(self._running)
        self.retractions.append(Retraction(retracted, old_value, ratio.value))

    def find_victims(self, request: Request, buckets: Buckets) -> list[Request]:
        """The running requests that are to make way for a waiting one, which then fits; none if it fits as it is, or
        would not even without all that give way: background requests, unless it is one itself, and those that are less
        urgent by more than the threshold."""
        giving_way = [running for running in self._running if self._gives_way(running, request)]
        if not giving_way or self._is_in_circles():
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

    def note_step(self, *, samples: bool) -> None:
        """A step is planned. Args: samples: it does, for somebody."""
        if samples:
            self._num_fruitless = 0

    def retract(self, request: Request) -> None:
        """Takes a running request's pages and slot, and puts it back into the queue."""
        request.trace.add_retraction(LostPages(time.time(), self._cache.num_lost_tokens(request)))
        request.num_retractions += 1
        self._suspend(request)

    def retract_all(self) -> None:
        """Of every running request."""
        for request in sorted(self._running, key=self._order, reverse=True):
            self.retract(request)

    def _gives_way(self, victim: Request, request: Request) -> bool:
        if victim.given.options.background != request.given.options.background:
            return victim.given.options.background
        return self._threshold is not None and self._urgency(request) - self._urgency(victim) > self._threshold

    def _is_in_circles(self) -> bool:
        """Who takes whose place has an order, and the queue has the same: this cannot be. If it is all the same, those
        that run are to get a token first, and the log says so."""
        if self._num_fruitless == MAX_FRUITLESS:
            self._num_fruitless += 1
            logger.error(
                "%d retractions in a row without a new token: please report this bug. Running requests are not "
                "retracted (preempted) until the next token",
                MAX_FRUITLESS,
            )
        return self._num_fruitless > MAX_FRUITLESS

    def _order(self, request: Request) -> tuple[bool, int, int, float]:
        """Who is retracted last sorts first."""
        lost = self._cache.num_lost_tokens(request)
        return request.given.options.background, -self._urgency(request), -lost, request.given.received

    def _urgency(self, request: Request) -> int:
        """How much a request is to be preferred; 0 unless priorities are on."""
        if self._threshold is None:
            return 0
        return -request.given.options.priority if self._low_values_first else request.given.options.priority
