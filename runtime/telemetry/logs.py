"""Log lines, the same from both processes: as SGLang's users know them, or one JSON object a line.

Text is `[2026-01-31 12:00:00] message`, and the level's name before the message from WARNING on. JSON has `time`,
`level`, `logger` and `message`, the traceback as `exception`, and the figures of a line under their own names.

Clients choose some of the text in a line (ids above all), so control characters are written as escapes: no client can
forge a line or send commands to a terminal.
"""

import datetime
import json
import logging
import re
import sys
from typing import Any, Literal

LogFormat = Literal["text", "json"]

_FIELDS = "palladio_fields"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # with the newlines of Unicode
_CONTROL_BUT_LINES = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def fields(**values: Any) -> dict[str, Any]:
    """The `extra` of a log call: the fields of a JSON line, by name."""
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
    """The format that `configure_logging` set last, for a child process that logs the same way."""
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)
    return "json" if is_json else "text"
