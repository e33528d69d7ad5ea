"""The HTTP server's own log: uvicorn's lines in SGLang's formats, or as JSON."""

import logging
import urllib.parse
from typing import Any

import uvicorn

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.telemetry.logs import JsonFormatter, LogFormat, fields

_SECRET_WORDS = ("key", "token", "secret", "password", "passwd", "auth", "credential", "signature")


class MaskSecrets(logging.Filter):
    """Hides the values of a URL's query whose names sound like secrets. Keys are not taken from there, but are sent."""

    def filter(self, record: logging.LogRecord) -> bool:
        client, method, path, version, status = record.args  # type: ignore[misc]
        if "?" in str(path):
            record.args = (client, method, mask_query(str(path)), version, status)
        return True


def mask_query(url: str) -> str:
    """The URL's path and query, with *** for what may be secret."""
    path, _, query = url.partition("?")
    parts = []
    for part in query.split("&"):
        name, equals, _ = part.partition("=")
        plain = urllib.parse.unquote(name).lower()
        parts.append(f"{name}=***" if equals and any(word in plain for word in _SECRET_WORDS) else part)
    return f"{path}?{'&'.join(parts)}"


class AccessJsonFormatter(JsonFormatter):
    """uvicorn's access lines, with their parts as fields."""

    def format(self, record: logging.LogRecord) -> str:
        client, method, path, version, status = record.args  # type: ignore[misc]
        line = logging.makeLogRecord(vars(record))
        vars(line).update(fields(client=client, method=method, path=path, http_version=version, status=status))
        return super().format(line)


def logging_config(config: HttpConfig, log_format: LogFormat = "text") -> dict[str, Any]:
    """logging.config.dictConfig for uvicorn."""
    level = uvicorn.config.LOG_LEVELS[(config.log_level_http or config.log_level).lower()]
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": _json_formatters() if log_format == "json" else _text_formatters(),
        "filters": {"mask": {"()": MaskSecrets}},
        "handlers": {
            "http": {"class": "logging.StreamHandler", "formatter": "http"},
            "access": {
                "class": "logging.StreamHandler",
                "formatter": "access",
                "filters": ["mask"],
                "stream": "ext://sys.stdout",
            },
        },
        "loggers": {
            "uvicorn": {"handlers": ["http"], "level": level, "propagate": False},
            "uvicorn.error": {"level": level},
            "uvicorn.asgi": {"level": max(level, logging.DEBUG)},  # at trace it would tell queries as they came
            "uvicorn.access": {"handlers": ["access"], "level": level, "propagate": False},
        },
    }


def _text_formatters() -> dict[str, Any]:
    date = "%Y-%m-%d %H:%M:%S"
    return {
        "http": {
            "()": "uvicorn.logging.DefaultFormatter",
            "fmt": "[%(asctime)s] %(levelprefix)s %(message)s",
            "datefmt": date,
        },
        "access": {
            "()": "uvicorn.logging.AccessFormatter",
            "fmt": '[%(asctime)s] %(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s',
            "datefmt": date,
        },
    }


def _json_formatters() -> dict[str, Any]:
    return {"http": {"()": JsonFormatter}, "access": {"()": AccessJsonFormatter}}
