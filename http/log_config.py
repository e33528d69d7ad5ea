"""The HTTP server's own log: uvicorn's lines in SGLang's formats, or as JSON."""

import logging
from typing import Any

import uvicorn

from palladio.http.config import HttpConfig
from palladio.runtime.logs import JsonFormatter, LogFormat, fields


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
        "handlers": {
            "http": {"class": "logging.StreamHandler", "formatter": "http"},
            "access": {"class": "logging.StreamHandler", "formatter": "access", "stream": "ext://sys.stdout"},
        },
        "loggers": {
            "uvicorn": {"handlers": ["http"], "level": level, "propagate": False},
            "uvicorn.error": {"level": level},
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
