"""POST /v1/chat/completions/render and /v1/completions/render: what the engine would be told."""

from typing import Any

import httpx
import pytest

from palladio.runtime.interface.request.sampling_params import SamplingParams
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


def test_which_characters_each_token_is_of(http: httpx.Client, engine: FakeEngine) -> None:
    assert engine.tokenizer is not None
    text = "Hello, wörld 🎉!"
    asked = {"prompt": [text, "hi"], "return_token_offsets": True}
    first, second = http.post(f"{COMPLETIONS}/render", json=asked).raise_for_status().json()
    assert len(first["token_offsets"]) == len(first["token_ids"]) > 4
    pieces = [text[begin:end] for begin, end in first["token_offsets"]]
    whole = [place for place, (begin, end) in enumerate(first["token_offsets"]) if pieces.count(text[begin:end]) == 1]
    assert len(whole) > 4
    for place in whole:  # others are bytes of one character
        assert engine.tokenizer.token_text(first["token_ids"][place]) == pieces[place]
    assert second["token_offsets"][-1][1] == 2
    chat = http.post(f"{CHAT}/render", json=MESSAGES | {"return_token_offsets": True}).raise_for_status().json()
    prompt = engine.tokenizer.render_chat(MESSAGES["messages"])
    special = engine.tokenizer.added_id("<|im_start|>")
    begin, end = chat["token_offsets"][chat["token_ids"].index(special)]
    assert prompt[begin:end] == "<|im_start|>"
    assert chat["token_offsets"][-1][1] == len(prompt)


@pytest.mark.parametrize(("keeps_end", "extra"), [(True, {"truncate_prompt_tokens": 3}), (False, {})])
def test_offsets_of_a_prompt_that_was_cut(
    serve: Serve, engine: FakeEngine, *, keeps_end: bool, extra: dict[str, int]
) -> None:
    text = " ".join(f"n{number}" for number in range(engine.info.context_length))
    address = f"{serve(allow_auto_truncate=True)}{COMPLETIONS}/render"
    body = {"prompt": text, "max_tokens": 1, "return_token_offsets": True, **extra}
    (cut,) = httpx.post(address, json=body, timeout=20).raise_for_status().json()
    assert len(cut["token_offsets"]) == len(cut["token_ids"]) < engine.info.context_length
    edge = cut["token_offsets"][-1][1] == len(text), cut["token_offsets"][0][0] == 0
    assert edge == (keeps_end, not keeps_end)
    begin = 0 if not keeps_end else cut["token_offsets"][0][0]
    assert engine.tokenizer is not None
    assert engine.tokenizer.encode(text[begin : cut["token_offsets"][-1][1]])[:3] == cut["token_ids"][:3]


def test_there_are_no_offsets_without_a_text(http: httpx.Client) -> None:
    asked: dict[str, Any] = {"return_token_offsets": True}
    (given,) = http.post(f"{COMPLETIONS}/render", json=asked | {"prompt": [5, 6]}).json()
    ids = http.post(f"{CHAT}/render", json=asked | {"input_ids": [5, 6]}).json()
    (unasked,) = http.post(f"{COMPLETIONS}/render", json={"prompt": "hi", "return_token_offsets": False}).json()
    assert [answer["token_offsets"] for answer in (given, ids, unasked)] == [None] * 3
    refused = http.post(COMPLETIONS, json=asked | {"prompt": "hi"})
    assert (refused.status_code, "/render" in refused.json()["error"]["message"]) == (400, True)


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


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi", "instructions": "be brief", "max_output_tokens": 9, "temperature": 0.5}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "system": "be brief", "max_tokens": 9}),
    ],
)
def test_responses_and_messages(http: httpx.Client, engine: FakeEngine, path: str, body: dict[str, Any]) -> None:
    rendered = http.post(f"{path}/render", json=body | {"stream": True, "xyzzy": 1}).raise_for_status().json()
    assert engine.calls == []
    http.post(path, json=body).raise_for_status()
    (call,) = engine.calls
    assert rendered["token_ids"] == call.prompt_ids
    assert rendered["sampling_params"]["max_tokens"] == call.params.max_tokens == 9
    assert rendered["sampling_params"]["temperature"] == call.params.temperature
    assert (rendered["model"], rendered["stream"], rendered["features"]) == (MODEL, True, None)
    assert [one["param"] for one in rendered["warnings"]] == ["xyzzy"]
    assert http.get("/v1/responses/render").status_code == 404


def test_a_response_that_goes_on(http: httpx.Client, engine: FakeEngine) -> None:
    first = http.post("/v1/responses", json={"input": "hi"}).raise_for_status().json()
    asked = {"input": "and", "previous_response_id": first["id"]}
    rendered = http.post("/v1/responses/render", json=asked).raise_for_status().json()
    http.post("/v1/responses", json=asked).raise_for_status()
    assert rendered["token_ids"] == engine.calls[-1].prompt_ids


def test_errors_of_responses_and_messages_name_their_fields(http: httpx.Client, engine: FakeEngine) -> None:
    wrong = http.post("/v1/responses/render", json={"input": [{"role": "user", "content": 5}]}).json()["error"]
    assert wrong["param"].startswith("input.0")
    long = [{"role": "user", "content": "word " * 3000}]
    answer = http.post("/v1/messages/render", json={"messages": long, "max_tokens": 5})
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    short = [{"role": "user", "content": "hi"}]
    lowered = http.post("/v1/messages/render", json={"messages": short, "max_tokens": 10**6})
    params = lowered.raise_for_status().json()["sampling_params"]
    assert params["max_tokens"] == engine.info.context_length - len(lowered.json()["token_ids"])
