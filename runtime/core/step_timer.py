"""StepTimer: how long steps take, for those who decide by it when the next one begins, and whose it is."""

import time

from palladio.runtime.execution.batch.step_results import InFlightStep
from palladio.runtime.scheduling.dp_scheduler import EngineScheduler

_SPARED = 0.8  # of a step's expected time: the rest is for the host, and for steps that end early


class StepTimer:
    """How long each step takes, as the requests feel it: from the end of the one before, as the host has read it, or
    from its own dispatch if that was later.

    Args:
        scheduler: its BatchShare gets the times, while there are background requests.
    """

    def __init__(self, scheduler: EngineScheduler) -> None:
        self._scheduler = scheduler
        self._share = scheduler.share
        self._last_read = 0.0

    def read(self, step: InFlightStep) -> float:
        """Seconds of the oldest step under way, which has just been read."""
        begun = max(step.dispatched, self._last_read)
        self._last_read = time.perf_counter()
        seconds = self._last_read - begun
        if self._share.num_background:
            self._share.note(step.planned, seconds, self._scheduler.buckets)
        return seconds

    def spare(self, newest: InFlightStep) -> float:
        """How many seconds of the newest step are left until the next one has to be dispatched, so that the device does
        not wait for it. 0 unless there are only background requests: a request that comes meanwhile is in the next."""
        share = self._share
        if not share.num_background or share.num_foreground:
            return 0.0
        begun = max(newest.dispatched, self._last_read)
        expected = share.expected_seconds(newest.planned, self._scheduler.buckets)
        return max(0.0, begun + expected * _SPARED - time.perf_counter())
