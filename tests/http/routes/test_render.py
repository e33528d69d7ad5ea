"""POST /v1/chat/completions/render and /v1/completions/render: what the engine would be told."""

from typing import Any

import httpx
import pytest

from palladio.runtime.interface.generation_request import SamplingParams
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SAMPLING = {"temperature": 0.5, "top_p": 0.25, "seed": 7, "stop": ["x"], "logit_bias": {"5": 2.0}, "cache_salt": "s"}
MESSAGES = {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(("path", "body"), [(CHAT, MESSAGES), (COMPLETIONS, {"prompt": "Hello, wörld"})])
def test_it_is_what_the_engine_is_told(http: httpx.Client, engine: FakeEngine, path: str, body: dict[str, Any]) -> None:
    body = body | SAMPLING | {"rid": "mine", "max_tokens": 9, "ignore_eos": True}
    answer = http.post(f"{path}/render", json=body).raise_for_status().json()
    rendered = answer if path == CHAT else answer[0]
    assert engine.calls == []
    http.post(path, json=body).raise_for_status()
    (call,) = engine.calls
    assert rendered["token_ids"] == call.prompt_ids
    assert rendered["request_id"] == "mine"
    assert (rendered["model"], rendered["stream"], rendered["features"]) == (MODEL, False, None)
    assert (rendered["cache_salt"], rendered["priority"]) == ("s", 0)
    assert (rendered["stream_options"], rendered["kv_transfer_params"]) == (None, None)
    assert SamplingParams(**rendered["sampling_params"]) == SamplingParams(
        **{name: getattr(call.params, name) for name in rendered["sampling_params"]}
    )
    assert rendered["sampling_params"]["max_tokens"] == 9
    assert rendered["sampling_params"]["logit_bias"] == {"5": 2.0}


def test_every_prompt_has_its_own(http: httpx.Client) -> None:
    first, second = http.post(f"{COMPLETIONS}/render", json={"prompt": [[7], [5, 6]], "rid": "r"}).json()
    assert second["token_ids"] == [5, 6]
    assert first["request_id"] != second["request_id"]
    assert first["sampling_params"]["max_tokens"] == 16, "the route's default"


def test_without_a_limit_it_is_the_room(http: httpx.Client, engine: FakeEngine) -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    rendered = http.post(f"{CHAT}/render", json=MESSAGES | asked).json()
    assert {name: rendered[name] for name in asked} == asked
    assert rendered["sampling_params"]["max_tokens"] == engine.info.context_length - len(rendered["token_ids"])


def test_what_is_refused(http: httpx.Client, engine: FakeEngine, serve: Serve) -> None:
    room = engine.info.context_length
    for body, param in (
        ({"prompt": [5] * room}, "max_tokens"),
        ({"prompt": [5], "max_tokens": room}, "max_tokens"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "max_tokens": "x"}, "max_tokens"),
        ({}, "prompt"),
    ):
        answer = http.post(f"{COMPLETIONS}/render", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert http.post(f"{CHAT}/render", json=MESSAGES | {"model": "other"}).status_code == 404
    assert http.post(f"{CHAT}/render", json={"messages": []}).json()["error"]["param"] == "messages"
    assert http.get(f"{CHAT}/render").status_code == 404, "no stored completion has this id"
    assert engine.calls == []
    engine.state = "starting"
    assert http.post(f"{CHAT}/render", json=MESSAGES).status_code == 503
    assert httpx.post(serve(api_key="k") + f"{CHAT}/render", json=MESSAGES, timeout=20).status_code == 401
