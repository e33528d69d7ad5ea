"""What a server tells of itself: log lines, how its values are spread, and what the engine's thread is doing.

Log lines are the same from both processes: as SGLang's users know them, or one JSON object a line.

Text is `[2026-01-31 12:00:00] message`, and the level's name before the message from WARNING on. JSON has `time`,
`level`, `logger` and `message`, the traceback as `exception`, and the figures of a line under their own names.

Clients choose some of what stands in a line (ids above all), so control characters are written as escapes: nobody can
forge a line, or send a terminal commands.
"""

import bisect
import contextlib
import dataclasses
import datetime
import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from palladio.runtime.interface.messages.engine_stats import HistogramData

LogFormat = Literal["text", "json"]

_FIELDS = "palladio_fields"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # with the newlines of Unicode
_CONTROL_BUT_LINES = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def fields(**values: Any) -> dict[str, Any]:
    """The `extra` of a log call: what a JSON line tells by name."""
    return {_FIELDS: values}


def escape_control(text: str) -> str:
    """The text in one line: control characters as in Python's literals."""
    return _CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")


def _escaped_in_json(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"


class LineFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the name is logging's)
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return f"[{record.asctime}] {level}{escape_control(record.message)}"

    def formatException(self, ei: Any) -> str:  # noqa: N802  (the name is logging's)
        return _CONTROL_BUT_LINES.sub(_escaped, super().formatException(ei))


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": stamp.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= vars(record).get(_FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _CONTROL.sub(_escaped_in_json, json.dumps(line, ensure_ascii=False, default=str))


def make_formatter(log_format: LogFormat) -> logging.Formatter:
    return JsonFormatter() if log_format == "json" else LineFormatter()


_CHATTY = ("httpx", "httpx2")  # log every request that the hub's client makes


def configure_logging(level: str | int, log_format: LogFormat = "text") -> None:
    """Sends everything from `level` on (a number, or debug, info, …) to standard error, replacing earlier settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(make_formatter(log_format))
    if isinstance(level, str):
        level = logging.getLevelNamesMapping().get(level.upper(), logging.DEBUG)  # uvicorn's trace is below debug
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def current_format() -> LogFormat:
    """What `configure_logging` was last told, for a child process that is to log alike."""
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)
    return "json" if is_json else "text"


class Histogram:
    """Counts values by bucket; see HistogramData.

    Args:
        bounds: upper bounds of the buckets, ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Args: count: how many values of this size there were."""
        self._counts[bisect.bisect_left(self._bounds, value)] += count
        self._total += value * count

    def data(self) -> HistogramData:
        return HistogramData(list(self._bounds), list(self._counts), self._total)


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
        """Likewise while the thread writes a profile: a long one takes as long as the disk does."""
        return self._meanwhile("profile", "a profile")

    def loading_weights(self) -> contextlib.AbstractContextManager[None]:
        """Likewise while the thread loads weights in place of others."""
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
