"""A thread that watches what the engine's thread is doing: a step that hangs is found, a compile is not one."""

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

from palladio.runtime.folders.private_folder import keep_newest
from palladio.runtime.telemetry.activity import Activity, CurrentActivity

_STDERR = 2  # the descriptor: sys.stderr has none in a notebook
_VERBS = MappingProxyType({"compile": "compiling", "profile": "writing", "weights": "loading"})  # what may take long
_TICKS = 20  # looks at the engine within one timeout, but at least one a second

logger = logging.getLogger("palladio.engine")


class Watchdog:
    """A thread that reports an engine which has been at one thing for too long.

    It counts the time that it sees pass itself, so time during which the whole process was stopped does not count.

    Args:
        timeout: seconds that a step may take. A compile, and the writing of a profile, may take longer; then a line is
            logged every so often.
        folder: where to put a file with the stacks of all threads, besides standard error; None: nowhere.
        end_hung: called once with one line that says what hangs; None: it is logged and that is all.
    """

    def __init__(
        self,
        activity: Activity,
        timeout: float,
        folder: Path | None = None,
        end_hung: Callable[[str], None] | None = None,
    ) -> None:
        self._activity = activity
        self._timeout = timeout
        self._folder = folder
        self._end_hung = end_hung
        self._interval = min(1.0, timeout / _TICKS)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="palladio-watchdog", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(2 * self._interval)

    def _run(self) -> None:
        last = self._activity.now
        num_ticks = 0
        num_reports = 0
        while not self._over.wait(self._interval):
            if self._end_hung is not None:
                # A thread that hangs with Python's lock stops this one too: the timer needs no lock, and ends the
                # process. It is set back while this thread runs.
                faulthandler.dump_traceback_later(2 * self._timeout + self._interval, exit=True, file=_STDERR)
            doing = self._activity.now
            if doing is not last:
                last, num_ticks, num_reports = doing, 0, 0
                continue
            num_ticks += 1
            if doing.kind == "idle" or num_ticks * self._interval < self._timeout * (num_reports + 1):
                continue
            num_reports += 1
            if doing.kind in _VERBS:
                verb, seconds = _VERBS[doing.kind], time.time() - doing.since
                logger.warning("Still %s %s after %.0f s (no time limit applies)", verb, doing.what, seconds)
            else:
                self._report(doing, is_first=num_reports == 1)
        if self._end_hung is not None:
            faulthandler.cancel_dump_traceback_later()

    def _report(self, doing: CurrentActivity, *, is_first: bool) -> None:
        message = f"no step finished within {self._timeout:g} s (--watchdog-timeout): the engine hangs in {doing}"
        logger.error("%s", message)
        if is_first:
            faulthandler.dump_traceback(_STDERR, all_threads=True)
            if self._folder is not None:
                self._dump_stacks(self._folder, message)
        if self._end_hung is not None:
            self._end_hung(message)

    def _dump_stacks(self, folder: Path, message: str) -> None:
        path = folder / f"stacks-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(f"{message}\n\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError as error:
            logger.warning("Cannot write the stack traces to %s: %s", folder, error)
        else:
            logger.error("Wrote the stack traces of all threads to %s", path)
            keep_newest(folder, "stacks-*.txt")
