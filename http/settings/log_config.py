"""The HTTP server's own log: uvicorn's lines in SGLang's formats, or as JSON."""

import logging
import urllib.parse
from typing import Any

import uvicorn

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.telemetry.logs import JsonFormatter, LogFormat, fields

PROBES = frozenset({"/health", "/healthz", "/health_generate", "/livez", "/ping", "/ready", "/readyz", "/v1/models"})
DASHBOARD = "/dashboard/data"

_logger = logging.getLogger("uvicorn.error")
_SECRET_WORDS = ("key", "token", "secret", "password", "passwd", "auth", "credential", "signature")


class MaskSecrets(logging.Filter):
    """Hides the values of a URL's query whose names sound like secrets. Keys are not taken from there, but are sent."""

    def filter(self, record: logging.LogRecord) -> bool:
        client, method, path, version, status = record.args  # type: ignore[misc]
        if "?" in str(path):
            record.args = (client, method, mask_query(str(path)), version, status)
        return True


class QuietProbes(logging.Filter):
    """Logs the first of a row of probes that find the server not ready (503), and how many followed when that ends.

    Those who start a server poll it several times a second: hundreds of lines would hide what the start says. Answers
    to an open dashboard, one a second, are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_hidden: dict[str, int] = {}  # by path, since its first 503

    def filter(self, record: logging.LogRecord) -> bool:
        _, method, url, _, status = record.args  # type: ignore[misc]
        path = str(url).partition("?")[0]
        if method not in ("GET", "HEAD") or path not in PROBES:
            return not (path.endswith(DASHBOARD) and status == 200)  # whatever prefix a proxy has left on
        if status == 503:
            is_first = path not in self._num_hidden
            self._num_hidden[path] = 0 if is_first else self._num_hidden[path] + 1
            return is_first
        hidden = self._num_hidden.pop(path, 0)
        if hidden:
            _logger.info("%s answered 503 to %d more probes (not logged one by one)", path, hidden)
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
        "filters": {"mask": {"()": MaskSecrets}, "probes": {"()": QuietProbes}},
        "handlers": {
            "http": {"class": "logging.StreamHandler", "formatter": "http"},
            "access": {
                "class": "logging.StreamHandler",
                "formatter": "access",
                "filters": ["mask", "probes"] if level > logging.DEBUG else ["mask"],
                "stream": "ext://sys.stdout",
            },
        },
        "loggers": {
            "uvicorn": {"handlers": ["http"], "level": level, "propagate": False},
            "uvicorn.error": {"level": level},
            "uvicorn.asgi": {"level": max(level, logging.DEBUG)},  # at trace it would log queries unmasked
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
