"""QueueTime: how long requests have waited in the queue, and for what."""

import time

from palladio.runtime.interface.request_trace import WaitReason, WaitTimes


class QueueTime:
    """Runs while somebody waits, and puts the time down to one reason: the one that the last planned step met.

    A request that joins or leaves the queue stops the time, so that it gets its own part of an interval. A moment
    costs the same however many wait.
    """

    def __init__(self) -> None:
        self.reason: WaitReason = "step"
        self.num_retracted = 0
        self._totals = WaitTimes()
        self._since = time.perf_counter()

    def advance(self) -> None:
        """Puts down the time since the last call; somebody waited."""
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        totals = self._totals
        match self.reason:
            case "slots":
                totals.slots += seconds
            case "memory":
                totals.memory += seconds
            case "step":
                totals.step += seconds
            case "compile":
                totals.compile += seconds

    def join(self, reason: WaitReason | None) -> WaitTimes:
        """Somebody joins the queue; returns the totals at this moment.

        Args:
            reason: the queue was empty, and until the next step is planned this is what it waits for; None: it was not.
        """
        if reason is None:
            self.advance()
        else:
            self.reason = reason
            self._since = time.perf_counter()
        return self._now()

    def leave(self) -> WaitTimes:
        """Somebody leaves the queue; returns the totals at this moment."""
        self.advance()
        return self._now()

    def _now(self) -> WaitTimes:
        totals = self._totals.copy()
        totals.num_retracted = self.num_retracted
        return totals
