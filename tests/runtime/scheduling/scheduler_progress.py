"""The progress that a scheduler must make, checked at each step of a simulation."""

from collections.abc import Collection

from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch
from palladio.runtime.scheduling.scheduler import Scheduler
from palladio.runtime.scheduling.state.request import Request

PREEMPTION_THRESHOLD = 10


class Progress:
    """Each step samples for a request, or computes a part of a prompt that is not taken away again before some request
    gets a token. In detail:

    - A request loses its pages to running requests, when these are short of memory; or to a waiting request that it
      gives way to, and that runs from now on.
    - No request loses them twice unless some request has got a token, has come or has gone in between.
    - So tokens come within as many steps as there are tokens to compute, those of victims counted twice.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._num_retractions: dict[Request, int] = {}
        self._running: list[Request] = []
        self._num_short = 0
        self._victims: set[Request] = set()
        self._num_steps = 0
        self._num_done = 0

    def begin(self) -> None:
        """Begin again: a request has come or gone, the cache was flushed, or the device has lost all."""
        requests = [*self._scheduler.running, *self._scheduler.waiting]
        self._num_retractions = {request: request.num_retractions for request in requests}
        self._victims.clear()
        self._num_steps = 0

    def check_plan(self, batch: ScheduledBatch | None) -> None:
        """After `schedule`."""
        scheduler, before = self._scheduler, self._num_retractions
        requests = [*scheduler.running, *scheduler.waiting]
        victims = [request for request in requests if request.num_retractions > before.get(request, 0)]
        is_short = len(scheduler.retractor.retractions) > self._num_short
        if batch is not None:
            assert batch.rows, "a step of nothing"
            assert all(row.num_tokens > 0 for row in batch.rows), "a row of nothing"
        if is_short:
            assert scheduler.running, f"{_names(victims)} lost their pages to nobody"
        elif victims:
            fresh = [request for request in scheduler.running if request not in self._running]
            takers = [request for request in fresh if all(_gives_way(victim, request) for victim in victims)]
            assert takers, f"{_names(victims)} lost their pages, and those that run for it are {_names(fresh)}"
        again = self._victims.intersection(victims)
        assert not again, f"{_names(again)} lost their pages twice, and nobody had a token in between"
        self._victims.update(victims)
        if batch is not None and any(row.samples for row in batch.rows):
            self._victims.clear()
        self._num_retractions = {request: request.num_retractions for request in requests}
        self._running = list(scheduler.running)
        self._num_short = len(scheduler.retractor.retractions)

    def check_step(self, num_done: int) -> None:
        """Check a step after its tokens have been read.

        Args:
            num_done: tokens and ends, since the start.
        """
        self._num_steps = 0 if num_done > self._num_done else self._num_steps + 1
        self._num_done = num_done
        requests = [*self._scheduler.running, *self._scheduler.waiting]
        limit = 2 * sum(len(request.token_ids) for request in requests) + 3
        assert self._num_steps <= limit, f"{self._num_steps} steps and no token; there are {_names(requests)}"


def _gives_way(victim: Request, request: Request) -> bool:
    if victim.given.options.background != request.given.options.background:
        return victim.given.options.background
    return request.given.options.priority - victim.given.options.priority > PREEMPTION_THRESHOLD


def _names(requests: Collection[Request]) -> str:
    return ", ".join(sorted(request.given.request_id for request in requests)) or "none"
