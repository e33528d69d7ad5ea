"""Log lines, the same from both processes of a server: as SGLang's users know them, or one JSON object a line.

Text is `[2026-01-31 12:00:00] message`, and the level's name before the message from WARNING on. JSON has `time`,
`level`, `logger` and `message`, the traceback as `exception`, and the figures of a line under their own names.
"""

import datetime
import json
import logging
import sys
from typing import Any, Literal

LogFormat = Literal["text", "json"]

_FIELDS = "palladio_fields"


def fields(**values: Any) -> dict[str, Any]:
    """The `extra` of a log call: what a JSON line tells by name."""
    return {_FIELDS: values}


class LineFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the name is logging's)
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return f"[{record.asctime}] {level}{record.message}"


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
        return json.dumps(line, ensure_ascii=False, default=str)


def make_formatter(log_format: LogFormat) -> logging.Formatter:
    return JsonFormatter() if log_format == "json" else LineFormatter()


def configure_logging(level: str | int, log_format: LogFormat = "text") -> None:
    """Sends everything from `level` on (a number, or debug, info, …) to standard error, replacing earlier settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(make_formatter(log_format))
    if isinstance(level, str):
        level = logging.getLevelNamesMapping().get(level.upper(), logging.DEBUG)  # uvicorn's trace is below debug
    logging.basicConfig(level=level, handlers=[handler], force=True)


def current_format() -> LogFormat:
    """What `configure_logging` was last told, for a child process that is to log alike."""
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)
    return "json" if is_json else "text"
