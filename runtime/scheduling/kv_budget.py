"""KVBudget: who of those that wait is next, and whether there is cache for it, so that those that run seldom lose
theirs."""

import dataclasses
from collections.abc import Iterable

from palladio.runtime.scheduling.batch_share import ScheduleTurn, ScheduleTurns
from palladio.runtime.scheduling.buckets import Buckets
from palladio.runtime.scheduling.cache_manager import CacheManager, Prefix, Released
from palladio.runtime.scheduling.new_token_ratio import NewTokenRatio
from palladio.runtime.scheduling.request import Request
from palladio.runtime.scheduling.running_requests import RunningRequests
from palladio.runtime.scheduling.scheduler_limits import SchedulerLimits
from palladio.runtime.scheduling.waiting_queue import WaitingQueue


class KVBudget:
    """
    Args:
        running, waiting: the scheduler's.

    Attributes:
        ratio: the share of its max_tokens that a request is expected to use.
    """

    def __init__(
        self,
        cache: CacheManager,
        limits: SchedulerLimits,
        turns: ScheduleTurns,
        running: RunningRequests,
        waiting: WaitingQueue,
    ) -> None:
        self.ratio = NewTokenRatio(limits.conservativeness)
        self._cache = cache
        self._limits = limits
        self._turns = turns
        self._running = running
        self._waiting = waiting

    def num_slots(self, buckets: Buckets) -> int:
        """Requests that may run at once."""
        return min(self._limits.max_running, buckets.max_requests)

    def next_waiting(self, turn: ScheduleTurn, budget: int) -> Request | None:
        """Who is to be admitted next; None: nobody in this step. Args: budget: tokens of prompts that it may have."""
        request = self._waiting.peek()
        if request is None or (turn == "foreground" and request.given.options.background):
            return None
        if request.num_pending or (not self._limits.splits_prompts and len(request.token_ids) > budget):
            return None  # pending: retracted a moment ago, and its last token has not been read yet
        return request

    def next_urgent(self, turn: ScheduleTurn, budget: int) -> Request | None:
        """The same, if there may be running requests that give way to it."""
        gives_way = self._limits.preemption_threshold is not None or self._turns.is_shared
        if not gives_way or not len(self._waiting):
            return None
        self._waiting.refresh()
        return self.next_waiting(turn, budget)

    def fits(self, request: Request, prefix: Prefix, reserved: int) -> bool:
        """Whether there is cache for a waiting request. Args: as for needed_tokens."""
        return self.needed_tokens(request, prefix, reserved) <= self._cache.num_available_tokens

    def needed_tokens(self, request: Request, prefix: Prefix, reserved: int) -> int:
        """Tokens of cache that have to be available for a waiting request to be admitted.

        Args:
            reserved: for the requests that run.
        """
        size = self._cache.page_size
        rest = len(request.token_ids) - len(prefix.pages) * size
        wanted = rest + self.ratio.expected_output(request) + size
        return wanted + reserved + prefix.num_idle_pages * size

    def expected_tokens(self, request: Request) -> int:
        """Tokens of cache that a running request will still take: the rest of its prefill, and its expected output."""
        rest = max(0, request.prefill_end - request.num_computed)
        return rest + self.ratio.expected_output(request) + self._cache.page_size

    def reserved_tokens(self, running: Iterable[Request]) -> int:
        return sum(map(self.expected_tokens, running))

    def room(self, request: Request, buckets: Buckets) -> "AdmissionCheck":
        """What room there is for a waiting request, beside those running ones that it has to leave theirs."""
        others = self._turns.members("all" if request.given.options.background else "foreground")
        return AdmissionCheck(self, self._cache, request, len(self._running), self.num_slots(buckets), others)


class AdmissionCheck:
    """Whether a waiting request fits, and whether it would if running ones gave up their pages and slots.

    Args:
        num_slots: that requests may have; num_running are in use.
        others: for whose further tokens cache is kept.
    """

    def __init__(
        self,
        kv_budget: KVBudget,
        cache: CacheManager,
        request: Request,
        num_running: int,
        num_slots: int,
        others: Iterable[Request],
    ) -> None:
        self._kv_budget = kv_budget
        self._cache = cache
        self._request = request
        self._num_running = num_running
        self._num_slots = num_slots
        self._expected = {other: kv_budget.expected_tokens(other) for other in others}
        self._reserved = sum(self._expected.values())
        self._prefix = cache.find_prefix(request)
        self._released = Released()

    def suffices(self) -> bool:
        """Whether the request fits without those that were left out. Alone it does: the front refuses those that do not
        fit an empty pool."""
        if self._num_running >= self._num_slots:
            return False
        prefix = dataclasses.replace(self._prefix, num_idle_pages=self._released.num_idle_pages(self._prefix.node))
        needed = self._kv_budget.needed_tokens(self._request, prefix, self._reserved)
        num_available = self._cache.num_available_tokens + self._released.num_pages * self._cache.page_size
        return self._num_running == 0 or needed <= num_available

    def leave_out(self, victim: Request) -> None:
        """One more running request gives up what it has, in thought."""
        self._num_running -= 1
        self._reserved -= self._expected.get(victim, 0)
        self._released.add(victim)
