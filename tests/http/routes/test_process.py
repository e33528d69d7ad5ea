"""POST /configure_logging and /freeze_gc, and GET /tokenizer_info."""

import gc
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.config import LOG_LEVELS

from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.telemetry.process_settings import configure_process
from tests.fake_engine import FakeEngine
from tests.http.conftest import Serve, running_server

PROMPT = {"prompt": "hi", "max_tokens": 3}


@pytest.fixture(autouse=True)
def _level() -> Any:
    root, level = logging.getLogger(), logging.getLogger().level
    yield
    root.setLevel(level)


def test_the_log_of_requests_goes_on_and_off(engine: FakeEngine, tmp_path: Path) -> None:
    target = tmp_path / "requests.log"
    config = ObservabilityConfig(log_requests_target=str(target))
    with running_server(engine, HttpConfig(), config) as url, httpx.Client(base_url=url, timeout=20) as http:

        def configure(**body: Any) -> None:
            answer = http.post("/configure_logging", json=body)
            assert (answer.status_code, answer.content) == (200, b"")

        def logged() -> str:
            before = len(target.read_text()) if target.exists() else 0
            http.post("/v1/completions", json=PROMPT).raise_for_status()
            return target.read_text()[before:] if target.exists() else ""

        assert logged() == ""
        configure(log_requests=True)
        assert "received" in (lines := logged())
        assert "prompt=" not in lines
        configure(log_requests_level=3, log_requests_format="json")
        assert '"prompt": ["hi"]' in logged()
        shown = http.get("/server_info").json()
        assert (shown["log_requests"], shown["log_requests_level"]) == (True, 3)
        configure(log_requests=False)
        assert logged() == ""
    assert engine.configured == []


def test_the_level_of_both_processes(http: httpx.Client, engine: FakeEngine) -> None:
    for level, number in (("warning", logging.WARNING), ("DEBUG", logging.DEBUG), ("trace", LOG_LEVELS["trace"])):
        assert http.post("/configure_logging", json={"log_level": level}).status_code == 200
        assert logging.getLogger().level == number
        assert engine.configured[-1] == (number, False)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"log_level": "loud"}, "log_level"),
        ({"log_requests_level": 4}, "log_requests_level"),
        ({"log_requests_format": "xml"}, "log_requests_format"),
        ({"dump_requests_folder": "/tmp"}, "dump_requests_folder"),
        ({"crash_dump_folder": "/tmp"}, "crash_dump_folder"),
        ({"log_request": True}, "log_request"),
    ],
)
def test_what_is_refused(http: httpx.Client, engine: FakeEngine, body: dict[str, Any], param: str) -> None:
    answer = http.post("/configure_logging", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert engine.configured == []


def test_frozen_objects(http: httpx.Client, engine: FakeEngine) -> None:
    gc.unfreeze()
    try:
        answer = http.post("/freeze_gc")
        assert (answer.status_code, answer.text) == (200, "Garbage collection frozen.\n")
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()
    assert engine.configured == [(None, True)]


def test_settings_of_a_process() -> None:
    configure_process(logging.ERROR, freeze_gc=False)
    assert logging.getLogger().level == logging.ERROR
    assert logging.getLogger("httpx").level == logging.ERROR
    configure_process(logging.DEBUG, freeze_gc=False)
    assert logging.getLogger("httpx").level == logging.WARNING


def test_objects_of_a_process_are_frozen() -> None:
    """In a process of its own: what is frozen here would stay so."""
    program = (
        "import gc; from palladio.runtime.telemetry.process_settings import configure_process as configure; "
        "configure(None, freeze_gc=True); print(gc.get_freeze_count())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 0


def test_settings_of_the_tokenizer(http: httpx.Client, serve: Serve, engine: FakeEngine, tmp_path: Path) -> None:
    info = http.get("/tokenizer_info").raise_for_status().json()
    assert engine.tokenizer is not None
    settings = engine.tokenizer.settings
    assert info["tokenizer_class"] == settings["tokenizer_class"]
    assert info["eos_token"] == str(settings["eos_token"])
    assert not [name for name in info if name.endswith(("_file", "_path"))]
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}", encoding="utf-8")
    other = httpx.get(serve(chat_template=str(template)) + "/tokenizer_info", timeout=20).raise_for_status().json()
    assert other == info | {"chat_template": "{{ messages[0].content }}"}
    engine.state = "starting"
    assert http.get("/tokenizer_info").status_code == 503
