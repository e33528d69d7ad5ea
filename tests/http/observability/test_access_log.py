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


PROBING = """
import logging.config, sys
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.log_config import logging_config

logging.config.dictConfig(logging_config(HttpConfig(log_level_http=sys.argv[1])))
logger = logging.getLogger("uvicorn.access")
def answer(method, url, status):
    logger.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", method, url, "1.1", status)
for _ in range(300):
    answer("GET", "/health", 503)
    answer("GET", "/v1/models?x=1", 503)
    answer("POST", "/v1/completions", 503)
for _ in range(2):
    answer("GET", "/health", 200)
answer("GET", "/health", 503)
for prefix in ("", "/llm"):
    answer("GET", prefix + "/dashboard/data?since=5", 200)
answer("GET", "/dashboard/data?since=5", 401)
"""


@pytest.mark.parametrize(("level", "num_lines"), [("info", 306), pytest.param("debug", 906, marks=pytest.mark.slow)])
def test_probes_of_a_server_that_is_not_ready_are_counted(level: str, num_lines: int) -> None:
    """The first of each path is logged, then their number; debug logs them all. Requests are always logged."""
    words = [sys.executable, "-c", PROBING, level]
    run = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    lines = run.stdout.splitlines()
    assert len(lines) == num_lines
    assert sum("/v1/completions" in line for line in lines) == 300
    if level == "info":
        assert sum("/v1/models" in line for line in lines) == 1
        assert ["401" in line for line in lines if "/dashboard" in line] == [True], "an open dashboard is not logged"
        assert ["200" in line[-7:] for line in lines if "/health" in line] == [False, True, True, False]
        assert "/health answered 503 to 299 more probes" in run.stderr
    else:
        assert "more probes" not in run.stderr


@pytest.mark.parametrize("form", [pytest.param("text", marks=pytest.mark.slow), "json"])
def test_lines(form: str) -> None:
    """In a process of its own: dictConfig closes all handlers that there are, pytest's too."""
    run = subprocess.run([sys.executable, "-c", PROGRAM, form], capture_output=True, text=True, timeout=60, check=True)
    first, second = run.stdout.splitlines()
    assert "hunter2" not in first
    assert "/v1/models?api_key=***&limit=2" in first
    assert "/v1/models" in second
    if form == "json":
        assert json.loads(first)["status"] == 401
