"""What the engine's thread is doing, for the watchdog and for reports that it is busy."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class CurrentActivity:
    """What the engine's thread is at.

    Attributes:
        kind: idle, waiting for messages; messages, handling them; step; compile; profile, writing one; weights, loading
            others.
        what: of compile: the program.
        num_steps: steps begun so far: during one, its number.
        since: seconds since the epoch.
    """

    kind: Literal["idle", "messages", "step", "compile", "profile", "weights"]
    what: str
    num_steps: int
    since: float

    def __str__(self) -> str:
        names = {
            "idle": "waiting for requests",
            "messages": f"messages after step {self.num_steps}",
            "step": f"step {self.num_steps}",
            "compile": f"compiling {self.what} for step {self.num_steps}",
            "profile": f"writing a profile after step {self.num_steps}",
            "weights": f"loading {self.what} after step {self.num_steps}",
        }
        return f"{names[self.kind]}, since {time.strftime('%H:%M:%S', time.localtime(self.since))}"


class Activity:
    """Set by the engine's thread, read by any other."""

    def __init__(self) -> None:
        self.now = CurrentActivity("idle", "", 0, time.time())

    def rest(self) -> None:
        """Nothing to do until a message comes."""
        self._change("idle")

    def handle_messages(self) -> None:
        self._change("messages")

    def begin_step(self) -> None:
        self.now = CurrentActivity("step", "", self.now.num_steps + 1, time.time())

    def compiling(self, what: str) -> contextlib.AbstractContextManager[None]:
        """While it is open the thread compiles `what`, or waits for that: it may take as long as it takes.

        What it did before begins anew afterwards.
        """
        return self._meanwhile("compile", what)

    def writing_profile(self) -> contextlib.AbstractContextManager[None]:
        """While it is open the thread writes a profile, for as long as the disk takes."""
        return self._meanwhile("profile", "a profile")

    def loading_weights(self) -> contextlib.AbstractContextManager[None]:
        """While it is open the thread loads weights in place of others."""
        return self._meanwhile("weights", "weights")

    @contextlib.contextmanager
    def _meanwhile(self, kind: Literal["compile", "profile", "weights"], what: str) -> Iterator[None]:
        before = self.now
        self.now = CurrentActivity(kind, what, before.num_steps, time.time())
        try:
            yield
        finally:
            self.now = dataclasses.replace(before, since=time.time())

    def _change(self, kind: Literal["idle", "messages"]) -> None:
        self.now = CurrentActivity(kind, "", self.now.num_steps, time.time())
