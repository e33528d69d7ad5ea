"""A thread of the engine that reports long work to the front, so that its silence does not count as a stall."""

import threading
from collections.abc import Callable

from palladio.runtime.interface.messages.engine_state import EngineBusy
from palladio.runtime.telemetry.activity import Activity, CurrentActivity

_INTERVAL = 0.5  # seconds


class BusyReports:
    """While it is open, report work that lasts longer than an interval, once in each interval.

    Args:
        emit: may be called in any thread.
    """

    def __init__(self, activity: Activity, emit: Callable[[EngineBusy], None], interval: float = _INTERVAL) -> None:
        self._activity = activity
        self._emit = emit
        self._interval = interval
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="palladio-busy", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        last: CurrentActivity | None = None
        while not self._over.wait(self._interval):
            doing = self._activity.now
            if doing is last and doing.kind in ("compile", "profile", "weights"):
                self._emit(EngineBusy(str(doing)))
            last = doing
