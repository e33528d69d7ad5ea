"""Whether an engine answers: asks one that has been quiet, and counts the time until it says anything."""

from collections.abc import Callable
from typing import Final

TICK: Final = 1.0  # seconds between two looks, or less with a short timeout


class Liveness:
    """Asks an engine that has been quiet, and counts the time until it says anything.

    It counts the time that it sees pass, so time in which this process stood still does not count. An engine that says
    that it is busy is not asked for more.

    Args:
        ask: sends a question that the engine's loop answers between two steps.
        timeout: seconds without an answer after which there is a `stall`; 0: never.

    Attributes:
        interval: seconds between two calls of `tick`.
        busy: what the engine said last that it is at; "": it has answered since.
    """

    def __init__(self, ask: Callable[[], None], timeout: float) -> None:
        self._ask = ask
        self._timeout = timeout
        self.interval = min(TICK, timeout / 4) or TICK
        self.reset()

    def reset(self) -> None:
        """The engine is a new one."""
        self.busy = ""
        self._silent = 0.0
        self._is_asked = False
        self._is_heard = False

    def heard(self) -> None:
        """The engine's loop has sent something."""
        self.busy = ""
        self._silent = 0.0
        self._is_asked = False
        self._is_heard = True

    def heard_busy(self, what: str) -> None:
        self.busy = what
        self._silent = 0.0

    def tick(self) -> None:
        if self._is_asked:
            self._silent += self.interval
        elif not self._is_heard and self._timeout > 0:
            self._is_asked = True
            self._ask()
        self._is_heard = False

    @property
    def stall(self) -> str | None:
        """Why the engine counts as one that does not answer; None: it does not."""
        if self._timeout == 0 or self._silent < self._timeout:
            return None
        return (
            f"the engine has not responded for {self._silent:.0f} s (--health-timeout {self._timeout:g}): it hangs, or "
            "its steps are very slow"
        )
