"""Clients that go away, and clients that abort."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from palladio.http.app import create_app
from palladio.http.settings.http_config import HttpConfig
from tests.fake_engine import FakeEngine
from tests.http.conftest import wait_until


def send_and_hang_up(url: str, path: str, body: dict, wait: Callable[[], None]) -> None:
    """A raw request whose connection closes once `wait()` returns."""
    parts = urlsplit(url)
    raw = json.dumps(body).encode()
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(raw)}\r\n\r\n"
        )
        connection.sendall(head.encode() + raw)
        wait()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
@pytest.mark.parametrize("when", ["before the first token", "after it"])
def test_disconnect_aborts(serve, engine: FakeEngine, path: str, stream: bool, when: str) -> None:
    engine.reply = "x" * 1000
    if when == "before the first token":
        engine.first_delay = 30
    else:
        engine.delay = 0.02
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 500},
        "/generate": {"text": "x", "sampling_params": {"max_new_tokens": 500}},
    }
    prompts = 2 if path == "/v1/completions" else 1
    send_and_hang_up(
        serve(), path, bodies[path] | {"stream": stream}, lambda: wait_until(lambda: len(engine.calls) == prompts)
    )
    wait_until(lambda: all(call.aborted for call in engine.calls) and not engine._running)


def test_a_client_that_goes_away_before_its_body_is_read_is_no_defect(engine: FakeEngine, caplog) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [(b"content-length", b"100")],
        "http_version": "1.1",
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "root_path": "",
    }
    sent = []

    async def receive() -> dict:
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        sent.append(message)

    asyncio.run(create_app(engine, HttpConfig())(scope, receive, send))
    assert sent[0]["status"] == 499
    assert not caplog.records
    assert not engine.calls


@pytest.mark.parametrize("stream", [False, True])
def test_abort_request(http: httpx.Client, engine: FakeEngine, stream: bool) -> None:
    engine.reply, engine.delay = "x" * 1000, 0.01
    answers = []
    body = {"prompt": ["a", "b"], "max_tokens": 900, "rid": "mine", "stream": stream}
    thread = threading.Thread(target=lambda: answers.append(http.post("/v1/completions", json=body)))
    thread.start()
    wait_until(lambda: len(engine._running) == 2)
    assert http.post("/abort_request", json={"rid": "other"}).json() == {"aborted": 0}
    assert http.post("/abort_request", json={"rid": "mine"}).json() == {"aborted": 2}
    thread.join(10)
    (answer,) = answers
    assert answer.status_code == 200
    assert '"finish_reason":"abort"' in answer.text


def test_abort_all(http: httpx.Client, engine: FakeEngine) -> None:
    engine.reply, engine.delay = "x" * 1000, 0.01
    thread = threading.Thread(target=lambda: http.post("/generate", json={"text": "x"}))
    thread.start()
    wait_until(lambda: bool(engine._running))
    assert http.post("/abort_request", json={"abort_all": True}).json() == {"aborted": 1}
    thread.join(10)
    assert http.post("/abort_request", json={"rid": "", "abort_all": True}).json() == {"aborted": 0}  # as verl sends it
    for body in ({}, {"rid": ""}, {"rid": "", "abort_all": False}):
        assert http.post("/abort_request", json=body).status_code == 400
