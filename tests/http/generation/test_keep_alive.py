"""Comments in quiet streams of server-sent events, and progress of prompts in them; the SDKs read both."""

import json
import time
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest

from palladio.http.generation.event_stream import COMMENT
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError, OverloadedError
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve, wait_until
from tests.http.security.limited_server import limited_server

USER: Any = [{"role": "user", "content": "hi"}]
STREAMS = [
    ("/v1/chat/completions", {"messages": USER}),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 99}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/responses", {"input": "hi", "background": True}),
    ("/v1/messages", {"messages": USER, "max_tokens": 99}),
    ("/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 99}}),
]
OLLAMA: list[tuple[str, dict[str, Any]]] = [("/api/chat", {"messages": USER}), ("/api/generate", {"prompt": "hi"})]
INTERVAL = 0.05
PROGRESS = {"total", "cache", "processed", "time_ms"}


def ask(url: str, path: str, body: dict[str, Any], **more: Any) -> httpx.Response:
    return httpx.post(url + path, json={"model": MODEL, "stream": True, **body, **more}, timeout=20)


def comments(answer: httpx.Response) -> int:
    """How many there are, each between two events."""
    assert answer.status_code == 200, answer.text
    events = answer.content.split(b"\n\n")
    assert all(event in (COMMENT.strip(), b"") or event.startswith((b"data: ", b"event: ")) for event in events)
    return events.count(COMMENT.strip())


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_comments_before_the_first_event_and_between_events(
    serve: Serve, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    url = serve(sse_keep_alive_interval=INTERVAL)
    engine.reply, engine.first_delay, engine.delay = "Hi", 5 * INTERVAL, 3 * INTERVAL
    answer = ask(url, path, body)
    assert comments(answer) >= 5
    assert b"finish" in answer.content or b"end_turn" in answer.content or b"response.completed" in answer.content
    if not body.get("background"):
        assert answer.content.startswith(COMMENT)


def test_none_comes_while_events_do(serve: Serve, engine: FakeEngine) -> None:
    engine.reply, engine.delay = "Hello, " * 20, 0.02
    assert comments(ask(serve(sse_keep_alive_interval=0.25), *STREAMS[0])) <= 1  # on a busy machine


def test_none_with_an_interval_of_zero(serve: Serve, engine: FakeEngine) -> None:
    engine.first_delay = 3 * INTERVAL
    assert comments(ask(serve(sse_keep_alive_interval=0.0), *STREAMS[0])) == 0


@pytest.mark.parametrize(("path", "body"), OLLAMA)
def test_none_in_lines_of_json(serve: Serve, engine: FakeEngine, path: str, body: dict[str, Any]) -> None:
    engine.first_delay, engine.delay = 3 * INTERVAL, 2 * INTERVAL
    engine.reply = "Hi"
    answer = ask(serve(sse_keep_alive_interval=INTERVAL), path, body)
    assert [json.loads(line) for line in answer.text.splitlines()][-1]["done"] is True


def test_through_the_real_connections(engine: FakeEngine) -> None:
    """Where events go past ASGI, they count, too; and a client that goes away ends its request."""
    with limited_server(engine, sse_keep_alive_interval=INTERVAL) as (host, port):
        url = f"http://{host}:{port}"
        engine.reply, engine.delay = "Hello, " * 150, INTERVAL / 10
        assert comments(ask(url, *STREAMS[0])) <= 2, "a second and more of events"
        engine.reply, engine.delay, engine.first_delay = "Hi", 3 * INTERVAL, 3 * INTERVAL
        assert comments(ask(url, *STREAMS[0])) >= 3
        engine.holds, engine.calls = True, []
        path, body = STREAMS[0]
        with httpx.stream("POST", url + path, json={"model": MODEL, "stream": True, **body}, timeout=20) as answer:
            assert next(answer.iter_raw()) == COMMENT
        wait_until(lambda: not engine.num_running)
        assert engine.calls[0].aborted


@pytest.mark.parametrize("first_delay", [0.0, INTERVAL / 10])
def test_an_error_before_the_first_byte_keeps_its_status(serve: Serve, engine: FakeEngine, first_delay: float) -> None:
    engine.first_delay, engine.fail = first_delay, OverloadedError("full")
    for path, body in STREAMS[:3]:
        assert ask(serve(sse_keep_alive_interval=20.0), path, body).status_code == 503


@pytest.mark.parametrize(("path", "body"), [STREAMS[0], STREAMS[2], STREAMS[4], STREAMS[5]])
def test_an_error_after_a_comment_is_an_event(
    serve: Serve, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.first_delay, engine.fail = 4 * INTERVAL, OverloadedError("full")
    answer = ask(serve(sse_keep_alive_interval=INTERVAL), path, body)
    assert comments(answer) >= 1
    failures = [event for event in events(answer) if "error" in event or event.get("type") == "error"]
    assert "overloaded" in json.dumps(failures)


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(text) for text in data]


def test_the_interval_is_a_number_of_seconds() -> None:
    assert HttpConfig().sse_keep_alive_interval == 15.0
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="--sse-keep-alive-interval"):
            HttpConfig(sse_keep_alive_interval=wrong)


def progress_of(found: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    told = [event["prompt_progress"] for event in found if "prompt_progress" in event]
    assert all(one.keys() == PROGRESS for one in told)
    return [(one["total"], one["cache"], one["processed"]) for one in told]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("asked", [{"return_progress": True}, {"stream_options": {"include_progress": True}}])
def test_progress_in_chunks(serve: Serve, engine: FakeEngine, asked: dict[str, Any], n: int) -> None:
    url = serve()
    for path, body in STREAMS[:2]:
        found = events(ask(url, path, body, n=n, **asked))
        size = len(engine.calls[-1].prompt_ids)
        assert progress_of(found) == [(size, 3, 3), (size, 3, size)] * n
        assert all("prompt_progress" in event for event in found[: 2 * n])
        assert [event["choices"][0]["index"] for event in found[: 2 * n]] == [i for i in range(n) for _ in range(2)]
        plain = events(ask(url, path, body, n=n))
        assert progress_of(plain) == []
        assert [without_id(event) for event in found[2 * n :]] == [without_id(event) for event in plain]


def without_id(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("id", "created")}


def test_progress_of_the_other_routes(serve: Serve, engine: FakeEngine) -> None:
    url = serve()
    for path, body in [*STREAMS[2:], *OLLAMA]:
        answer = ask(url, path, body, return_progress=True)
        found = [json.loads(line) for line in answer.text.splitlines()] if path.startswith("/api") else events(answer)
        size = len(engine.calls[-1].prompt_ids)
        assert progress_of(found) == [(size, 3, 3), (size, 3, size)], path
    listed = events(ask(url, "/generate", {"text": ["hi", "ho"]}, return_progress=True))
    assert sorted(event["index"] for event in listed if "prompt_progress" in event) == [0, 0, 1, 1]
    again = events(ask(url, "/v1/responses", {"input": "hi", "stream_options": {"include_progress": True}}))
    assert len(progress_of(again)) == 2


def test_no_progress_without_a_stream(http: httpx.Client, engine: FakeEngine) -> None:
    for path, body in [*STREAMS, *OLLAMA]:
        answer = http.post(path, json={"model": MODEL, "stream": False, "return_progress": True, **body})
        assert answer.status_code == 200
        assert "prompt_progress" not in answer.text
    assert not any(call.options.progress for call in engine.calls)
    wrong = http.post("/v1/completions", json={"prompt": "hi", "stream": True, "return_progress": "yes"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "return_progress")


def test_progress_comes_before_the_first_token(serve: Serve, engine: FakeEngine) -> None:
    engine.prefill_delay = 0.2
    url, (path, body) = serve(), STREAMS[1]
    asked = {"model": MODEL, "stream": True, "return_progress": True, **body}
    with httpx.stream("POST", url + path, json=asked, timeout=20) as answer:
        begun = time.monotonic()
        first = next(answer.iter_lines())
        assert "prompt_progress" in first
        assert time.monotonic() - begun < 0.2, "it does not wait for the rest"


@pytest.fixture
def slow(serve: Serve, engine: FakeEngine) -> Callable[[], str]:
    """A server whose streams have comments before, between and behind events."""
    engine.reply = "Hi you"
    engine.first_delay, engine.prefill_delay, engine.delay = 3 * INTERVAL, 2 * INTERVAL, 2 * INTERVAL
    return lambda: serve(sse_keep_alive_interval=INTERVAL)


def test_openais_sdk_reads_both(slow: Callable[[], str]) -> None:
    client = openai.OpenAI(base_url=slow() + "/v1", api_key="x", timeout=20, _strict_response_validation=True)
    asked: Any = {"model": MODEL, "messages": USER, "extra_body": {"return_progress": True}}
    chunks = list(client.chat.completions.create(stream=True, **asked))
    reports = [chunk.model_extra["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk.model_extra]
    assert [one["processed"] for one in reports] == [3, reports[-1]["total"]]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi you"
    with client.chat.completions.stream(**asked) as stream:
        assert stream.get_final_completion().choices[0].message.content == "Hi you"
    with client.responses.stream(model=MODEL, input="hi", extra_body={"return_progress": True}) as stream:
        assert stream.get_final_response().output_text == "Hi you"


def test_anthropics_sdk_reads_both(slow: Callable[[], str]) -> None:
    client = anthropic.Anthropic(base_url=slow(), api_key="x", timeout=20, _strict_response_validation=True)
    asked: Any = {"model": MODEL, "max_tokens": 99, "messages": USER, "extra_body": {"return_progress": True}}
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == "Hi you"
    kinds = [event.type for event in client.messages.create(stream=True, **asked)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
