"""How long the device had nothing to do between steps, as far as the host can tell without waiting for it."""

import time
from typing import Protocol

from palladio.runtime.telemetry.histogram import Histogram

# Seconds. The finest are what a well-fed device needs between two programs, the coarsest what a person notices.
BOUNDS = (0.0, 1e-5, 2e-5, 4e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 1.0)


class DispatchedStep(Protocol):
    """What is asked of a step."""

    @property
    def is_done(self) -> bool:
        """Whether the device has computed all of it."""


class DeviceIdle:
    """A histogram of the device's idle time before each step, never underestimated by more than a thread's wake-up.

    The newest step was last known to run at some moment; the next one was dispatched at a later one. In between the
    device may have been idle. If the newest step still runs when the next one has been dispatched, there is no gap.

    Attributes:
        histogram: seconds; steps after which there was no work do not count.
    """

    def __init__(self) -> None:
        self.histogram = Histogram(BOUNDS)
        self._newest: DispatchedStep | None = None
        self._seen_running = 0.0

    def look(self) -> None:
        """Called between the host's tasks: the more often, the tighter the bound."""
        if self._newest is not None and not self._newest.is_done:
            self._seen_running = time.perf_counter()

    def waited(self, step: DispatchedStep) -> None:
        """The host has just waited for this step: if another one follows, that has only begun."""
        if step is not self._newest:
            self._seen_running = time.perf_counter()

    def dispatched(self, step: DispatchedStep, started: float) -> None:
        """Args: started: time.perf_counter() before the dispatch began; the step cannot have ended earlier."""
        if self._newest is not None:
            idle = time.perf_counter() - self._seen_running if self._newest.is_done else 0.0
            self.histogram.observe(idle)
        self._newest, self._seen_running = step, started

    def rest(self) -> None:
        """There is no work: what comes now is not idleness."""
        self._newest = None
