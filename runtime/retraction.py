"""Retraction: who loses their pages when memory runs short, or when a more urgent request waits."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from palladio.runtime.cache_manager import CacheManager
from palladio.runtime.new_token_ratio import NewTokenRatio
from palladio.runtime.request import Request
from palladio.runtime.request_trace import LostPages


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
        running: the scheduler's list, which the requests are taken from.
        suspend: takes a running request's pages and slot, and puts it back into the queue.
        threshold: see SchedulerLimits.preemption_threshold.
        low_values_first: low priority values are the urgent ones.
    """

    def __init__(
        self,
        cache: CacheManager,
        running: Sequence[Request],
        suspend: Callable[[Request], None],
        *,
        threshold: int | None,
        low_values_first: bool,
    ) -> None:
        self._cache = cache
        self._running = running
        self._suspend = suspend
        self._threshold = threshold
        self._low_values_first = low_values_first

    def make_room(self, growing: Sequence[Request], ratio: NewTokenRatio) -> Retraction:
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
            self._retract(victim)
            retracted += 1
        ratio.raise_for(self._running)
        return Retraction(retracted, old_value, ratio.value)

    def preempt(self, request: Request, fits: Callable[[], bool]) -> None:
        """Retracts until the waiting one fits: background requests, unless it is one itself, and those that are less
        urgent by more than the threshold."""
        while self._running and not fits():
            victim = max(self._running, key=self._order)
            if not self._gives_way(victim, request):
                return
            self._retract(victim)

    def retract_all(self) -> None:
        """Of every running request."""
        for request in sorted(self._running, key=self._order, reverse=True):
            self._retract(request)

    def _gives_way(self, victim: Request, request: Request) -> bool:
        if victim.options.background != request.options.background:
            return victim.options.background
        return self._threshold is not None and self._urgency(request) - self._urgency(victim) > self._threshold

    def _order(self, request: Request) -> tuple[bool, int, int, float]:
        """Who is retracted last sorts first."""
        lost = self._cache.num_lost_tokens(request)
        return request.options.background, -self._urgency(request), -lost, request.received

    def _urgency(self, request: Request) -> int:
        """How much a request is to be preferred; 0 unless priorities are on."""
        if self._threshold is None:
            return 0
        return -request.options.priority if self._low_values_first else request.options.priority

    def _retract(self, request: Request) -> None:
        request.trace.add_retraction(LostPages(time.time(), self._cache.num_lost_tokens(request)))
        request.num_retractions += 1
        self._suspend(request)
