"""POST /v1/chat/completions/batch: each conversation has the answer that it would have alone."""

import concurrent.futures
from typing import Any

import httpx
import pytest

from palladio.http.wire.protocol_chat import BatchChatRequest, ChatRequest, ToolFields
from palladio.runtime.interface.errors import GenerationError
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve, wait_until

PATH = "/v1/chat/completions"
CONVERSATIONS = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "and you?"}],
    [{"role": "user", "content": "ho"}],
]


@pytest.fixture
def talks(engine: FakeEngine) -> FakeEngine:
    engine.reply = lambda prompt_ids, index: f"Of {len(prompt_ids)} tokens."
    return engine


def test_a_choice_for_each_conversation(http: httpx.Client, talks: FakeEngine) -> None:
    options: dict[str, Any] = {"model": MODEL, "max_tokens": 20, "logprobs": True, "return_token_ids": True}
    answer = http.post(f"{PATH}/batch", json={"messages": CONVERSATIONS, **options}).raise_for_status().json()
    assert answer["object"] == "chat.completion"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    alone = [http.post(PATH, json={"messages": one, **options}).json() for one in CONVERSATIONS]
    for choice, other in zip(answer["choices"], alone, strict=True):
        assert choice.pop("prompt_token_ids") == other["prompt_token_ids"]
        assert choice | {"index": 0} == other["choices"][0]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == sum(other["usage"][name] for other in alone)
    assert len({call.request_id for call in talks.calls[:3]}) == 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [[]]}, "messages.0"),
        ({"messages": CONVERSATIONS[0]}, "messages.0"),
        ({"messages": [*CONVERSATIONS, [{"role": "user"}]]}, "messages.3.0.content"),
        ({"messages": CONVERSATIONS, "n": 2}, "n"),
        ({"messages": CONVERSATIONS, "stream": True}, "stream"),
        ({"messages": CONVERSATIONS, "temperature": -1}, "temperature"),
        ({"messages": CONVERSATIONS, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
def test_what_is_refused(http: httpx.Client, engine: FakeEngine, body: dict[str, Any], param: str) -> None:
    answer = http.post(f"{PATH}/batch", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert engine.calls == []


def test_one_failure_ends_all(serve: Serve, engine: FakeEngine) -> None:
    engine.fail, engine.fail_after = GenerationError("broken"), 2
    answer = httpx.post(f"{serve()}{PATH}/batch", json={"messages": CONVERSATIONS})
    assert answer.status_code == 500
    assert engine.num_running == 0


def test_each_warning_comes_once(http: httpx.Client) -> None:
    answer = http.post(f"{PATH}/batch", json={"messages": CONVERSATIONS, "xyzzy": 1, "verbosity": "low"}).json()
    assert [one["param"] for one in answer["warnings"]] == ["xyzzy", "verbosity"]


def test_fields_are_those_of_a_chat() -> None:
    left_out = ToolFields.model_fields.keys() | {"input_ids"}
    assert BatchChatRequest.model_fields.keys() == ChatRequest.model_fields.keys() - left_out


def test_its_id_aborts_all_conversations(http: httpx.Client, engine: FakeEngine) -> None:
    engine.delay, engine.reply = 0.02, "word " * 200
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        body = {"messages": CONVERSATIONS, "rid": "all", "max_tokens": 150}
        running = pool.submit(http.post, f"{PATH}/batch", json=body)
        wait_until(lambda: len(engine.calls) == len(CONVERSATIONS))
        assert http.post("/abort_requests", json={"request_ids": ["all"]}).json()["aborted"] == len(CONVERSATIONS)
        assert {choice["finish_reason"] for choice in running.result().json()["choices"]} == {"abort"}
