"""--log-requests and its levels, --enable-request-time-stats-logging, JSON lines, and what never stands in a log."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.observability_config import ObservabilityConfig
from palladio.http.observer import Observer
from palladio.runtime.errors import ConfigError
from tests.fake_engine import FakeEngine

ROOT = Path(__file__).resolve().parents[2]
COMPLETIONS = "/v1/completions"
LONG = "word " * 100
BODY = {"prompt": LONG, "max_tokens": 3, "temperature": 0.5, "ignore_eos": True, "rid": "r1"}


@pytest.fixture
def logged(observe: Callable[..., httpx.Client], tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Sends a request to a server with these flags; returns its log lines."""

    def run(body: dict[str, Any] = BODY, **flags: Any) -> list[dict[str, Any]]:
        file = tmp_path / "requests.log"
        flags = {"log_requests": True, "log_requests_format": "json", "log_requests_target": str(file)} | flags
        observe(**flags).post(COMPLETIONS, json=body, headers={"authorization": "Bearer sk-secret"})
        text = file.read_text() if file.exists() else ""
        assert "sk-secret" not in text
        return [json.loads(line) for line in text.splitlines()]

    return run


def test_level_0_has_ids_and_counts(logged) -> None:
    begun, ended = logged()
    assert (begun["event"], ended["event"]) == ("request_received", "request_finished")
    assert begun["request_id"] == ended["request_id"] == "r1"
    assert begun["route"] == COMPLETIONS
    assert begun["prompt_tokens"] > 50
    assert (ended["status"], ended["finish_reason"], ended["completion_tokens"]) == ("finished", ["length"], [3])
    assert ended["seconds"] >= 0.9
    assert not {"sampling_params", "prompt", "text"} & (set(begun) | set(ended))
    assert {"time", "level", "logger", "message"} <= set(begun)


def test_higher_levels_have_more(logged) -> None:
    begun, ended = logged(log_requests_level=1)
    assert begun["sampling_params"] == {"max_tokens": 3, "temperature": 0.5, "ignore_eos": True}
    assert "text" not in ended


@pytest.mark.parametrize(("level", "length"), [(2, 257), (3, len(LONG))])
def test_texts_in_part_and_in_full(logged, level: int, length: int) -> None:
    begun, ended = logged(log_requests_level=level)
    assert len(begun["prompt"][0]) == length
    assert begun["prompt"][0].startswith("word word")
    assert "Hello, wörld".startswith(ended["text"][0])
    assert ended["text"][0]


def test_text_lines(observe: Callable[..., httpx.Client], tmp_path: Path) -> None:
    file = tmp_path / "requests.log"
    observe(log_requests=True, log_requests_target=str(file)).post(COMPLETIONS, json=BODY)
    first, second = file.read_text().splitlines()
    assert "] Request r1 received: x_request_id=" in first
    assert "] Request r1 finished: status='finished', finish_reason=['length'], completion_tokens=[3]" in second


def test_failures_are_told(logged, engine: FakeEngine) -> None:
    engine.abort_status, engine.fail_after = 504, 1
    _, ended = logged()
    assert (ended["status"], ended["error"]) == ("failed", "the engine gave up")


def test_a_request_may_ask_not_to_be_logged(logged) -> None:
    assert logged(BODY | {"no_logs": True}, log_requests_level=3) == []
    assert logged(log_requests=False) == []


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    config = ObservabilityConfig(log_requests=True, log_requests_target=str(tmp_path / "no" / "file"))
    with pytest.raises(ConfigError, match=r"--log-requests-target .* cannot be written: No such file or directory"):
        Observer(config)


def test_time_stats(observe: Callable[..., httpx.Client], caplog: pytest.LogCaptureFixture) -> None:
    client = observe(enable_request_time_stats_logging=True)
    with caplog.at_level("INFO", logger="palladio"):
        client.post(COMPLETIONS, json=BODY | {"n": 2})
    lines = [message for message in caplog.messages if message.startswith("Request r1 sample")]
    assert len(lines) == 2
    assert lines[0].startswith("Request r1 sample 0: queue 0.500 s, compile_wait 0.062 s, prefill 0.250 s, decode ")


def test_json_lines_of_both_loggers() -> None:
    code = """
        import logging, logging.config
        from palladio.http.config import HttpConfig
        from palladio.http.log_config import logging_config
        from palladio.runtime.logs import configure_logging, current_format, fields

        configure_logging("info", "json")
        assert current_format() == "json"
        logging.config.dictConfig(logging_config(HttpConfig(), "json"))
        logging.getLogger("palladio.x").info("%d of %d", 1, 2, extra=fields(event="test", done=1))
        try:
            1 / 0
        except ZeroDivisionError:
            logging.getLogger("palladio.x").exception("broken\\nline")
        logging.getLogger("uvicorn.error").warning("hello")
        logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", "/health", "1.1", 200)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    ours, broken, http = [json.loads(line) for line in result.stderr.splitlines()]
    assert (ours["message"], ours["level"], ours["logger"]) == ("1 of 2", "info", "palladio.x")
    assert (ours["event"], ours["done"]) == ("test", 1)
    assert broken["message"] == "broken\nline"
    assert "ZeroDivisionError" in broken["exception"]
    assert (http["level"], http["message"]) == ("warning", "hello")
    (access,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert (access["method"], access["path"], access["status"]) == ("GET", "/health", 200)
    assert access["message"] == '1.2.3.4:5 - "GET /health HTTP/1.1" 200'
