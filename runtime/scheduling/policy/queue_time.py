"""For what waiting requests wait, and how long: one clock for the whole queue."""

import time

from palladio.runtime.interface.outputs.request_trace import WaitReason, WaitTimes


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
        self._totals.add(self.reason, seconds)

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

    def join_retracted(self, *, is_first: bool) -> WaitTimes:
        """A request that has lost its pages joins the queue: what holds it up is memory. Returns as `join` does.

        Args:
            is_first: the queue was empty.
        """
        self.num_retracted += 1
        mark = self.join("memory" if is_first else None)
        self.reason = "memory"
        return mark

    def put_down_to(self, reason: WaitReason) -> None:
        """What the step met that has just been planned."""
        self.reason = reason

    def leave(self) -> WaitTimes:
        """Somebody leaves the queue; returns the totals at this moment."""
        self.advance()
        return self._now()

    def _now(self) -> WaitTimes:
        return self._totals.copy(self.num_retracted)
