"""The access log: which values of a URL's query it shows."""

import json
import logging
import logging.config

import pytest

from palladio.http.config import HttpConfig
from palladio.http.log_config import logging_config, mask_query

LINE = '%s - "%s %s HTTP/%s" %d'


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


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: logging.getLogger(name).handlers[:] for name in ("uvicorn", "uvicorn.access")}
    try:
        logging.config.dictConfig(logging_config(HttpConfig(), form))
        logger = logging.getLogger("uvicorn.access")
        logger.info(LINE, "127.0.0.1:1", "GET", "/v1/models?api_key=hunter2&limit=2", "1.1", 401)
        logger.info(LINE, "127.0.0.1:1", "GET", "/v1/models", "1.1", 200)
    finally:
        for name, handlers in before.items():
            logging.getLogger(name).handlers[:] = handlers
    first, second = capsys.readouterr().out.splitlines()
    assert "hunter2" not in first
    assert "/v1/models?api_key=***&limit=2" in first
    assert "/v1/models" in second
    if form == "json":
        assert json.loads(first)["status"] == 401
