"""How long steps take, and when the next one has to be dispatched."""

import time
from collections import deque

_SPARED = 0.8  # of a step's expected time: the rest is for the host, and for steps that end early


class StepTimer:
    """How long each step takes, as the requests feel it: from the end of the one before, as the host has read it, or
    from its own dispatch if that was later."""

    def __init__(self) -> None:
        self._dispatched: deque[float] = deque()
        self._last_read = 0.0

    def dispatched(self) -> None:
        self._dispatched.append(time.perf_counter())

    def read(self) -> float:
        """Seconds of the step that was dispatched longest ago."""
        begun = max(self._dispatched.popleft(), self._last_read)
        self._last_read = time.perf_counter()
        return self._last_read - begun

    def spare(self, expected: float) -> float:
        """How much of the newest step, which is expected to take so long, is left until the next one has to be
        dispatched, so that the device does not wait for it."""
        begun = max(self._dispatched[-1], self._last_read)
        return max(0.0, begun + expected * _SPARED - time.perf_counter())

    def forget(self) -> None:
        """The dispatched steps will not be read."""
        self._dispatched.clear()
