"""The access log: which values of a URL's query it shows."""

import json
import subprocess
import sys

import pytest

from palladio.http.settings.log_config import mask_query


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/flush_cache?timeout=3", "/flush_cache?timeout=3"),
        ("/a?api_key=s&limit=2", "/a?api_key=***&limit=2"),
        ("/a?API-Key=s", "/a?API-Key=***"),
        ("/a?x=1&%61pi%5Fkey=s=t", "/a?x=1&%61pi%5Fkey=***"),
        ("/a?access_token=s&password=s&Authorization=s&signature=s", None),
        ("/a?key", "/a?key"),
        ("/a?", "/a?"),
        ("/a?b=c?key=s", "/a?b=c?key=s"),
    ],
)
def test_masking(url: str, shown: str | None) -> None:
    masked = mask_query(url)
    assert masked == shown if shown is not None else "=s" not in masked


PROGRAM = """
import logging.config, sys
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.log_config import logging_config

logging.config.dictConfig(logging_config(HttpConfig(), sys.argv[1]))
logger = logging.getLogger("uvicorn.access")
for url, status in (("/v1/models?api_key=hunter2&limit=2", 401), ("/v1/models", 200)):
    logger.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "GET", url, "1.1", status)
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines(form: str) -> None:
    """In a process of its own: dictConfig closes all handlers that there are, pytest's too."""
    run = subprocess.run([sys.executable, "-c", PROGRAM, form], capture_output=True, text=True, timeout=60, check=True)
    first, second = run.stdout.splitlines()
    assert "hunter2" not in first
    assert "/v1/models?api_key=***&limit=2" in first
    assert "/v1/models" in second
    if form == "json":
        assert json.loads(first)["status"] == 401
