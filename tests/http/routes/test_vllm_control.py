"""vLLM's control routes: what they ask of the engine, what they answer, and who may use them."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from palladio.runtime.interface.errors import InvalidRequestError
from tests.fake_engine import FakeEngine
from tests.http.conftest import Serve, wait_until
from tests.http.routes.test_model_control import ADMIN, PROXY, SECRET

CONTROL = ("/pause", "/resume", "/sleep", "/wake_up", "/release_kv_cache_memory", "/freeze_gc", "/configure_logging")
ALL_TAGS = ["kv_cache", "weights"]


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_pause(http: httpx.Client, engine: FakeEngine) -> None:
    assert ok(http.get("/is_paused")) == {"is_paused": False}
    assert ok(http.post("/pause")) == {"status": "paused", "cache_cleared": True}
    assert ok(http.get("/is_paused")) == {"is_paused": True}
    assert ok(http.get("/is_sleeping")) == {"is_sleeping": True}
    assert engine.steered == [("SetPause", "abort")]
    assert engine.num_flushes == 1
    ok(http.post("/pause?mode=keep"))
    ok(http.post("/pause?mode=abort&clear_cache=false"))
    assert engine.steered[1:] == [("SetPause", "in_place"), ("SetPause", "abort")]
    assert engine.num_flushes == 1
    assert ok(http.post("/resume")) == {"status": "resumed"}
    assert ok(http.get("/is_paused")) == {"is_paused": False}


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(("mode", "paused"), [("abort", "abort"), ("keep", "retract")])
def test_sleeping_and_waking_up(http: httpx.Client, engine: FakeEngine, level: int, mode: str, paused: str) -> None:
    assert ok(http.post(f"/sleep?level={level}&mode={mode}")) == {"status": "sleeping", "level": level}
    assert engine.steered == [("SetPause", paused), ("SetReleased", ALL_TAGS)]
    assert ok(http.post("/wake_up?tags=weights")) == {"status": "sleeping", "tags": ["weights"]}
    assert engine.steered[2:] == [("SetReleased", ["kv_cache"])]
    assert ok(http.get("/is_paused")) == {"is_paused": True}
    assert ok(http.post("/wake_up?tags=kv_cache&tags=scheduling"))["status"] == "awake"
    assert engine.steered[3:] == [("SetReleased", []), ("SetPause", None)]
    assert ok(http.get("/is_paused")) == {"is_paused": False}


def test_level_0_is_a_pause(http: httpx.Client, engine: FakeEngine) -> None:
    assert ok(http.post("/sleep?level=0&mode=keep")) == {"status": "sleeping", "level": 0}
    assert ok(http.post("/wake_up?tags=scheduling")) == {"status": "awake", "tags": ["scheduling"]}
    assert engine.steered == [("SetPause", "in_place"), ("SetPause", None)]
    ok(http.post("/sleep"))
    assert ok(http.post("/wake_up")) == {"status": "awake", "tags": None}


def test_a_refused_release_ends_its_own_pause(http: httpx.Client, engine: FakeEngine) -> None:
    engine.steer_error = "requests run"
    assert http.post("/release_kv_cache_memory").status_code == 400
    assert engine.model.released == frozenset()
    engine.steer_error, engine.model.paused = "", None
    engine.model.release = refuse = Refusal()  # type: ignore[method-assign]
    assert http.post("/sleep").status_code == 400
    assert refuse.calls == 1
    assert engine.steered[-2:] == [("SetPause", "abort"), ("SetPause", None)]
    ok(http.post("/pause"))
    assert http.post("/sleep").status_code == 400
    assert engine.model.paused == "abort", "it was paused before"


class Refusal:
    calls = 0

    async def __call__(self, tags: object = None) -> None:
        self.calls += 1
        raise InvalidRequestError("no")


def test_the_memory_of_the_cache(http: httpx.Client, engine: FakeEngine) -> None:
    assert ok(http.post("/release_kv_cache_memory")) == {"status": "kv_cache_released"}
    assert engine.steered == [("SetReleased", ["kv_cache"])]
    assert ok(http.post("/wake_up?tags=kv_cache")) == {"status": "awake", "tags": ["kv_cache"]}


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/pause?mode=wait", "mode"),
        ("/pause?mode=retract", "mode"),
        ("/sleep?mode=wait", "mode"),
        ("/sleep?level=3", "level"),
        ("/sleep?level=one", "level"),
        ("/wake_up?tags=everything", "tags"),
        ("/pause?clear_cache=maybe", "clear_cache"),
        ("/reset_prefix_cache?reset_running_requests=true", "reset_running_requests"),
    ],
)
def test_what_is_refused(http: httpx.Client, engine: FakeEngine, path: str, param: str) -> None:
    answer = http.post(path)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert engine.steered == []


def test_the_prefix_cache(http: httpx.Client, engine: FakeEngine) -> None:
    assert ok(http.post("/reset_prefix_cache?reset_external=true")) == {"success": True}
    assert engine.num_flushes == 1


def test_aborting(http: httpx.Client, engine: FakeEngine, in_thread: Callable[..., Any]) -> None:
    engine.delay, engine.reply = 0.02, "word " * 200
    running = [in_thread(http.post, "/v1/completions", json=PROMPT | {"rid": name}) for name in ("a", "b", "c")]
    wait_until(lambda: len(engine.calls) == 3)
    assert ok(http.post("/reset_prefix_cache")) == {"success": False}
    assert ok(http.post("/abort_requests", json={"request_ids": ["a", "none"]})) == {"status": "aborted", "aborted": 1}
    assert running[0]().status_code == 200, "it has ended, so the next call does not count it"
    assert ok(http.post("/abort_requests")) == {"status": "aborted", "aborted": 2}
    reasons = {answer().json()["choices"][0]["finish_reason"] for answer in running}
    assert reasons == {"abort"}
    wrong = http.post("/abort_requests", json={"request_ids": "a"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "request_ids")


PROMPT = {"prompt": "hi", "max_tokens": 150}


@pytest.fixture
def in_thread() -> Any:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        yield lambda call, *args, **kwargs: pool.submit(call, *args, **kwargs).result


@pytest.mark.parametrize(
    ("flags", "headers", "status"),
    [
        ({}, PROXY, 403),
        ({"api_key": "secret"}, SECRET, 403),
        ({"api_key": "secret"}, {}, 401),
        ({"api_key": "secret", "admin_api_key": "admin"}, SECRET, 401),
        ({"admin_api_key": "admin"}, {}, 401),
    ],
)
def test_who_may_not(serve: Serve, engine: FakeEngine, flags: dict, headers: dict, status: int) -> None:
    with httpx.Client(base_url=serve(**flags), headers=headers) as client:
        for path in CONTROL:
            assert client.post(path, json={}).status_code == status, path
    assert (engine.steered, engine.configured) == ([], [])


def test_who_may(serve: Serve, engine: FakeEngine) -> None:
    with httpx.Client(base_url=serve(api_key="secret", admin_api_key="admin")) as client:
        for path in (*CONTROL, "/reset_prefix_cache", "/abort_requests"):
            assert client.post(path, json={}, headers=ADMIN | PROXY).status_code == 200, path
            assert client.post(path, json={}, headers=SECRET).status_code == 401, path
        assert client.get("/is_paused", headers=SECRET).status_code == 200
