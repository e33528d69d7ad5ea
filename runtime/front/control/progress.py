"""Shows how far an engine's start is: a bar on a terminal, elsewhere a log line every few seconds."""

import logging
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from palladio.runtime.interface.messages.engine_state import LoadProgress

_LINE_INTERVAL = 5.0  # seconds between two log lines
_PHASES = {
    "device": ("Waiting for the device", "seconds"),
    "download": ("Downloading", "B"),
    "load": ("Loading weights", "tensors"),
    "compile": ("Compiling programs", "programs"),
}

logger = logging.getLogger(__name__)


class ProgressDisplay:
    """One bar, or one series of lines, for each phase. `tick` has to be called about once a second.

    Args:
        bar: whether to draw bars; default: if stderr is a terminal.
        say: takes a line; default: the log.
        clock: seconds.
    """

    def __init__(
        self,
        *,
        bar: bool | None = None,
        say: Callable[[str], None] = logger.info,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._draws = sys.stderr.isatty() if bar is None else bar
        self._say = say
        self._clock = clock
        self._last: LoadProgress | None = None
        self._bar: tqdm[Any] | None = None
        self._phase_start = 0.0
        self._line_time = 0.0

    def update(self, progress: LoadProgress) -> None:
        if self._last is None or progress.phase != self._last.phase:
            self.close()
            self._phase_start = self._line_time = self._clock()
            if self._draws:
                title, unit = _PHASES[progress.phase]
                columns, rows = shutil.get_terminal_size()  # 80 × 24 where the terminal says 0, which tqdm would take
                scaled = (
                    {"unit": "B", "unit_scale": True, "unit_divisor": 1000} if unit == "B" else {"unit": f" {unit}"}
                )
                self._bar = tqdm(
                    total=progress.total, initial=progress.done, desc=title, ncols=columns, nrows=rows, **scaled
                )
        self._last = progress
        if self._bar is not None:
            self._bar.update(progress.done - self._bar.n)
        if progress.done == progress.total:
            self._close_bar()

    def tick(self) -> None:
        """Keeps the bar's clock going, or logs a line when one is due: a single program may compile for a minute."""
        if self._bar is not None:
            self._bar.refresh()
        now, last = self._clock(), self._last
        if self._draws or last is None or last.done == last.total or now - self._line_time < _LINE_INTERVAL:
            return
        self._line_time = now
        title, unit = _PHASES[last.phase]
        left = "" if last.eta_seconds is None else f", about {last.eta_seconds:.0f} s left"
        seconds = now - self._phase_start
        if unit == "B":
            done = f"{last.done / 1e9:.2f} of {last.total / 1e9:.2f} GB"
        else:
            done = f"{last.done}/{last.total} {unit}"
        self._say(f"{title}: {done}, {seconds:.0f} s{left}")

    def close(self) -> None:
        """The start is over, well or not."""
        self._close_bar()
        self._last = None

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
