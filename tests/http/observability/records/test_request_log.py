"""--log-requests and its levels, --enable-request-time-stats-logging, JSON lines, and what never stands in a log."""

import json
import re
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.observability.observer import Observer
from palladio.http.observability.records.front_counts import FrontMetrics
from palladio.http.observability.records.request_log import PARTIAL_TOKENS, RequestLog
from palladio.http.observability.records.request_record import Origin, RequestRecord
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from tests.fake_engine import FakeEngine

ROOT = Path(__file__).resolve().parents[4]
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


def test_lines_take_the_format_of_the_log(observe: Callable[..., httpx.Client], tmp_path: Path) -> None:
    file = tmp_path / "requests.log"
    observe(log_requests=True, log_requests_target=str(file), log_format="json").post(COMPLETIONS, json=BODY)
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == [
        "request_received",
        "request_finished",
    ]


def test_nobody_forges_lines(observe: Callable[..., httpx.Client], tmp_path: Path) -> None:
    file = tmp_path / "requests.log"
    client = observe(log_requests=True, log_requests_target=str(file))
    rid = "x\n[2026-01-01 00:00:00] all is well\r\x1b[2J\x9b\u2028end"
    client.post(COMPLETIONS, json=BODY | {"rid": rid}).raise_for_status()
    text = file.read_text()
    first, second = text.splitlines()
    assert r"] Request x\n[2026-01-01 00:00:00] all is well\r\x1b[2J\x9b\u2028end received: " in first
    assert "finished: " in second
    json_file = tmp_path / "requests.json"
    client = observe(log_requests=True, log_requests_target=str(json_file), log_format="json")
    client.post(COMPLETIONS, json=BODY | {"rid": rid}).raise_for_status()
    lines = [json.loads(line) for line in json_file.read_text().splitlines()]
    assert [line["request_id"] for line in lines] == [rid, rid]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]", text + json_file.read_text())


def test_the_file_is_its_owners_and_may_be_moved_away(observe: Callable[..., httpx.Client], tmp_path: Path) -> None:
    file, old = tmp_path / "logs" / "requests.log", tmp_path / "old.log"
    file.parent.mkdir()
    client = observe(log_requests=True, log_requests_target=str(file))
    client.post(COMPLETIONS, json=BODY)
    file.rename(old)
    client.post(COMPLETIONS, json=BODY | {"rid": "r2"})
    for path, name in ((old, "r1"), (file, "r2")):
        assert [line.split("Request ")[1][:2] for line in path.read_text().splitlines()] == [name, name]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file.unlink()
    file.parent.rmdir()
    assert client.post(COMPLETIONS, json=BODY).status_code == 200, "a log that is lost costs no request"
    file.parent.mkdir()
    client.post(COMPLETIONS, json=BODY)
    assert len(file.read_text().splitlines()) == 2


class CountingTokenizer:
    """Decodes as characters, and notes how much, and in which thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        self.calls.append((len(ids), threading.current_thread() is threading.main_thread()))
        return "".join(map(chr, ids))


@pytest.mark.parametrize(("level", "lengths"), [(2, [PARTIAL_TOKENS, 5]), (3, [100_000, 5])])
def test_long_prompts_are_decoded_only_as_far_as_shown(tmp_path: Path, level: int, lengths: list[int]) -> None:
    file, tokenizer = tmp_path / "requests.log", CountingTokenizer()
    config = ObservabilityConfig(
        log_requests=True, log_requests_level=level, log_requests_target=str(file), log_format="json"
    )
    log, metrics = RequestLog(config), FrontMetrics(config)
    requests = [
        GenerationRequest("a", [97] * 100_000, SamplingParams()),
        GenerationRequest("b", [98] * 5, SamplingParams(), first_index=1),
    ]
    record = RequestRecord("r", requests, Origin("/generate", "x", {}), metrics, lambda _: None)
    log.received(record, tokenizer)
    record.end()
    log.ended(record)
    log.close()
    received, finished = [json.loads(line) for line in file.read_text().splitlines()]
    assert (received["event"], finished["event"]) == ("request_received", "request_finished")
    assert received["prompt_tokens"] == [100_000, 5]
    shown = "a" * 100_000 if level == 3 else "a" * 256 + "…"
    assert received["prompt"] == [shown, "bbbbb"]
    assert tokenizer.calls == [(length, level == 2) for length in lengths], "long ones beside the event loop"


def test_failures_are_told(logged, engine: FakeEngine) -> None:
    engine.abort_status, engine.fail_after = 504, 1
    _, ended = logged()
    assert (ended["status"], ended["error"]) == ("failed", "the engine gave up")


def test_a_request_may_ask_not_to_be_logged(logged) -> None:
    assert logged(BODY | {"no_logs": True}, log_requests_level=3) == []
    assert logged(log_requests=False) == []


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    config = ObservabilityConfig(log_requests=True, log_requests_target=str(tmp_path / "no" / "file"))
    with pytest.raises(ConfigError, match=r"cannot write to --log-requests-target .*: No such file or directory"):
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
        from palladio.http.settings.http_config import HttpConfig
        from palladio.http.settings.log_config import logging_config
        from palladio.runtime.telemetry.logs import configure_logging, current_format, fields

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
