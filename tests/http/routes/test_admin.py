"""Probes, information, control, models, tokenize, keys, CORS."""

import asyncio
import concurrent.futures
import threading

import httpx
import openai
import pytest

from palladio import __version__
from palladio.http.observability.metrics.engine_stats import SharedCall
from palladio.http.routes.routes_admin import FLUSH_POLL
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError, EngineDeadError, OverloadedError
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.interface.messages.engine_stats import EngineStats
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import wait_until


def test_while_the_engine_starts(http: httpx.Client, engine: FakeEngine) -> None:
    engine.state, engine.progress = "starting", LoadProgress("compile", 3, 10)
    for method, path in (
        ("GET", "/v1/models"),
        ("POST", "/v1/completions"),
        ("GET", "/health_generate"),
        ("GET", "/get_model_info"),
        ("POST", "/tokenize"),
        ("POST", "/flush_cache"),
    ):
        response = http.request(method, path, json={"prompt": "x"} if method == "POST" else None)
        assert response.status_code == 503, path
        assert response.headers["retry-after"]
    assert (http.get("/health").status_code, http.get("/health").json()) == (503, {"state": "starting"})
    ready = http.get("/ready")
    assert (ready.status_code, ready.json()) == (
        503,
        {"state": "starting", "phase": "compile", "done": 3, "total": 10, "eta_seconds": None},
    )
    assert "compile: 3 of 10" in http.get("/v1/models").json()["error"]["message"]


PROBES = ("/health", "/healthz", "/ping", "/ready", "/readyz", "/livez", "/version", "/metrics", "/health_generate")


@pytest.mark.parametrize("state", ["starting", "ready", "restarting", "draining", "dead"])
def test_kubernetes_names_of_probes(http: httpx.Client, engine: FakeEngine, state: str) -> None:
    engine.state, engine.failure = state, "gone"
    for path in ("/healthz", "/readyz"):
        assert http.get(path).status_code == (200 if state == "ready" else 503), path
    live = http.get("/livez")
    assert (live.status_code, live.json()) == (503 if state == "dead" else 200, {"state": state})


@pytest.mark.parametrize("state", ["starting", "ready"])
def test_head_on_probes_is_get_without_a_body(serve, engine: FakeEngine, state: str) -> None:
    engine.state = state
    with httpx.Client(base_url=serve(api_key="k", max_connections=100), timeout=20) as http:
        for path in PROBES:
            head = http.head(path)
            assert (head.status_code, head.content) == (http.get(path).status_code, b""), path
        assert http.head("/v1/models").status_code == 401
        assert http.head("/v1/models", headers={"x-api-key": "k"}).status_code == (200 if state == "ready" else 503)


def test_while_it_is_restarted(http: httpx.Client, engine: FakeEngine) -> None:
    engine.state, engine.failure, engine.progress = "restarting", "out of memory", LoadProgress("load", 1, 2)
    assert (http.get("/health").status_code, http.get("/health").json()) == (
        503,
        {"state": "restarting", "failure": "out of memory"},
    )
    assert http.get("/ready").json() == {
        "state": "restarting",
        "failure": "out of memory",
        "phase": "load",
        "done": 1,
        "total": 2,
        "eta_seconds": None,
    }
    refused = http.post("/v1/completions", json={"prompt": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_not_ready")
    assert refused.headers["retry-after"] == "5"


@pytest.mark.parametrize("state", ["draining", "dead"])
def test_when_it_ends(http: httpx.Client, engine: FakeEngine, state: str) -> None:
    engine.state, engine.failure = state, "out of memory"
    for path in ("/health", "/ready", "/v1/models"):
        assert http.get(path).status_code == 503
    assert ("out of memory" in http.get("/health").text) == (state == "dead")


def test_ready(http: httpx.Client, engine: FakeEngine) -> None:
    assert http.get("/health").json() == http.get("/ready").json() == {"state": "ready"}
    assert http.get("/health_generate").status_code == 200
    assert engine.calls[0].params.max_tokens == 1


def test_what_the_check_of_the_start_found_is_in_the_health(http: httpx.Client, engine: FakeEngine) -> None:
    engine.degraded = "the first answer differs by 3.4"
    for path in ("/health", "/ready"):
        answer = http.get(path)
        assert (answer.status_code, answer.json()) == (200, {"state": "ready", "degraded": engine.degraded})
    engine.state = "draining"
    assert http.get("/health").json() == {"state": "draining"}


def test_health_generate_times_out(http: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palladio.http.routes.routes_admin.HEALTH_TIMEOUT", 0.05)
    engine.first_delay = 5
    assert http.get("/health_generate").status_code == 503
    assert engine.calls[0].aborted


def test_information(serve, engine: FakeEngine) -> None:
    url, key = "postgresql://u:secret@db/palladio", {"authorization": "Bearer secret"}
    with httpx.Client(base_url=serve(api_key="secret", database_url=url), headers=key) as client:
        for path in ("/get_model_info", "/model_info"):
            info = client.get(path).json()
            assert (info["model_path"], info["is_generation"]) == (MODEL, True)
        for path in ("/get_server_info", "/server_info"):
            response = client.get(path)
            info = response.json()
            assert (info["context_length"], info["page_size"], info["stream_interval"]) == (2048, 16, 1)
            state = info["internal_states"][0]
            assert (state["num_running"], state["cache"]["enabled"], state["cache"]["hit_rate"]) == (0, True, 0.25)
            assert (state["device_idle"]["p50"], state["device_idle"]["p99"]) == (0.01, 0.01)
            assert "secret" not in response.text
        assert client.get("/version").json()["version"] == __version__
        assert client.get("/openapi.json").json()["paths"]["/v1/chat/completions"]["post"]["requestBody"]
        assert client.get("/docs").status_code == 200


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by, model.max_model_len) == (MODEL, "model", "palladio", 2048)
    assert client.models.retrieve(MODEL).root == MODEL


def test_flush_cache(http: httpx.Client, engine: FakeEngine) -> None:
    for method in ("GET", "POST"):
        response = http.request(method, "/flush_cache")
        assert (response.status_code, response.text) == (200, "Cache flushed.\n")
    engine.first_delay = 0.5
    thread = threading.Thread(target=lambda: http.post("/v1/completions", json={"prompt": "x"}))
    thread.start()
    wait_until(lambda: bool(engine._running))
    assert http.post("/flush_cache").status_code == 400
    assert http.post("/flush_cache?timeout=abc").json()["error"]["param"] == "timeout"
    assert http.post("/flush_cache?timeout=5").status_code == 200
    thread.join()


def test_tokenize_and_back(http: httpx.Client, engine: FakeEngine) -> None:
    for prefix in ("", "/v1"):
        answer = http.post(f"{prefix}/tokenize", json={"prompt": "Hello wörld", "return_token_strs": True}).json()
        assert answer["count"] == len(answer["tokens"])
        assert answer["max_model_len"] == 2048
        assert answer["token_strs"][0] == "Hello"
        back = http.post(f"{prefix}/detokenize", json={"tokens": answer["tokens"]}).json()
        assert back == {"text": "Hello wörld", "prompt": "Hello wörld"}
    batch = http.post("/tokenize", json={"prompt": ["a", "bb"]}).json()
    assert batch["count"] == [len(ids) for ids in batch["tokens"]]
    assert http.post("/detokenize", json={"tokens": batch["tokens"]}).json()["text"] == ["a", "bb"]
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]}).json()
    assert engine.tokenizer.decode(chat["tokens"], False).endswith("<|im_start|>assistant\n")
    for body in ({}, {"prompt": "x", "messages": []}, {"prompt": "x", "add_generation_prompt": True}, {"prompt": []}):
        assert http.post("/tokenize", json=body).status_code == 400
    for tokens in ([-1], [384], "x", [["a"]]):
        error = http.post("/detokenize", json={"tokens": tokens}).json()["error"]
        assert error["param"] == "tokens"


def test_api_keys(serve, engine: FakeEngine) -> None:
    url = serve(api_key="one, two")
    for key in ("one", "two"):
        openai.OpenAI(base_url=url + "/v1", api_key=key).models.list()
    with pytest.raises(openai.AuthenticationError) as caught:
        openai.OpenAI(base_url=url + "/v1", api_key="three").models.list()
    assert caught.value.code == "invalid_api_key"
    with httpx.Client(base_url=url) as client:
        for header in ({}, {"authorization": "one"}, {"authorization": "Basic one"}, {"authorization": b"Bearer \xff"}):
            assert client.get("/v1/models", headers=header).status_code == 401
        for path in ("/health", "/ready", "/version"):
            assert client.get(path).status_code == 200
        preflight = {"origin": "http://x.org", "access-control-request-method": "POST"}
        assert client.options("/v1/models", headers=preflight).status_code == 200


def test_cors(serve) -> None:
    origin = {"origin": "http://x.org"}
    assert httpx.get(serve(api_key="k") + "/health", headers=origin).headers["access-control-allow-origin"] == "*"
    url = serve(allowed_origins=("http://y.org",), api_key="k")
    assert "access-control-allow-origin" not in httpx.get(url + "/v1/models", headers=origin).headers
    refused = httpx.get(url + "/v1/models", headers={"origin": "http://y.org"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "http://y.org"


def test_request_id_goes_back(http: httpx.Client, engine: FakeEngine) -> None:
    body = {"prompt": "x"}
    assert http.post("/v1/completions", json=body, headers={"x-request-id": "abc"}).headers["x-request-id"] == "abc"
    answer = http.post("/v1/completions", json=body)
    assert answer.headers["x-request-id"] == answer.json()["id"] == engine.calls[-1].request_id


def test_root_path(serve) -> None:
    with httpx.Client(base_url=serve(root_path="/llm", api_key="k")) as client:
        assert client.get("/llm/health").status_code == client.get("/health").status_code == 200
        assert client.get("/openapi.json", headers={"authorization": "Bearer k"}).json()["servers"] == [{"url": "/llm"}]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"port": 70000}, "--port"),
        ({"stream_interval": 0}, "--stream-interval"),
        ({"max_request_bytes": 0}, "--max-request-bytes"),
        ({"allowed_origins": ('["https://a"]',)}, "--allowed-origins takes words, not a JSON list"),
        ({"drain_timeout": -1}, "--drain-timeout"),
        ({"api_key": " , "}, "--api-key"),
        ({"served_model_name": ()}, "--served-model-name"),
        ({"log_level_http": "loud"}, "--log-level-http"),
        ({"default_chat_template_kwargs": "[]"}, "--default-chat-template-kwargs"),
        ({"default_chat_template_kwargs": "{"}, "--default-chat-template-kwargs"),
        ({"preferred_sampling_params": "[]"}, "--preferred-sampling-params must be a JSON object"),
        ({"preferred_sampling_params": '{"temperature": -1}'}, "--preferred-sampling-params: temperature"),
        ({"preferred_sampling_params": '{"temprature": 1}'}, "--preferred-sampling-params: unknown .*'temprature'"),
        (
            {"preferred_sampling_params": '{"n": 2}'},
            "--preferred-sampling-params: n cannot have a default: each request sets it",
        ),
        ({"preferred_sampling_params": '{"regex": "a"}'}, "--preferred-sampling-params: regex cannot have a default"),
    ],
)
def test_wrong_flags_are_named(flags: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        HttpConfig(**flags)


def test_an_engine_that_does_not_answer_is_not_healthy(http: httpx.Client, engine: FakeEngine) -> None:
    engine.liveness.heard_busy("compiling decode[bs=8]")
    assert http.get("/health").json() == {"state": "ready", "busy": "compiling decode[bs=8]"}
    for _ in range(6):
        engine.liveness.tick()
    for path in ("/health", "/ping", "/ready"):
        answer = http.get(path)
        assert (answer.status_code, answer.json()["state"]) == (503, "unresponsive")
        assert "has not responded for 5 s (--health-timeout 4)" in answer.json()["failure"]
    engine.liveness.heard()
    assert (http.get("/health").status_code, http.get("/health").json()) == (200, {"state": "ready"})


def test_probes_at_the_same_time_share_a_token(http: httpx.Client, engine: FakeEngine) -> None:
    engine.first_delay = 0.5
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: http.get("/health_generate").status_code, range(8)))
    assert answers == [200] * 8
    assert len(engine.calls) < 4
    http.get("/health_generate")
    assert not engine.calls[-1].aborted


async def test_a_question_is_put_once_at_a_time() -> None:
    asked: list[asyncio.Event] = []

    async def ask() -> int:
        asked.append(asyncio.Event())
        await asked[-1].wait()
        if len(asked) == 2:
            raise EngineDeadError("it ended")
        return len(asked)

    call = SharedCall(ask)
    first, second, gone = (asyncio.create_task(call.get()) for _ in range(3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gone.cancel()
    asked[0].set()
    assert (await first, await second, len(asked)) == (1, 1, 1)
    third, fourth = (asyncio.create_task(call.get()) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asked[1].set()
    for task in (third, fourth):
        with pytest.raises(EngineDeadError):
            await task
    assert len(asked) == 2


def test_the_engine_is_asked_once_however_many_want_to_know(
    http: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = engine.stats

    async def slow(*args: float, **options: bool) -> EngineStats:
        await asyncio.sleep(0.5)
        return await stats(*args, **options)

    monkeypatch.setattr(engine, "stats", slow)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: http.get("/server_info").status_code, range(8)))
    assert answers == [200] * 8
    assert len(engine.asked_stats) < 4


def test_those_who_wait_for_an_idle_engine_ask_in_turn(
    http: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_asked = 0

    async def busy() -> None:
        nonlocal num_asked
        num_asked += 1
        raise OverloadedError("requests are running")

    monkeypatch.setattr(engine, "flush_cache", busy)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: http.post("/flush_cache?timeout=1").status_code, range(8)))
    assert answers == [400] * 8
    assert num_asked <= 8 + 2 * (1 / FLUSH_POLL)  # one each, and then one at a time; eight would ask 160 times
