"""Values that other clients write in another way, and mean the same."""

import codecs
import json
from typing import Any

import httpx
import pytest

from palladio.http.wire.protocol import WireModel, with_whole_numbers
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.runtime.interface.errors import InvalidRequestError
from tests.fake_engine import MODEL, FakeEngine

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def client(serve: Any) -> Any:
    with httpx.Client(base_url=serve()) as client:
        yield client


def test_whole_numbers_are_integers(client: httpx.Client, engine: FakeEngine) -> None:
    """JSON does not tell 4.0 from 4. Clients whose language has one type of number write all like that."""
    fields = {"max_tokens": 4.0, "n": 2.0, "top_k": 5.0, "seed": 7.0, "temperature": 1.0, "top_logprobs": 2.0}
    assert client.post("/v1/chat/completions", json=CHAT | fields | {"logprobs": True}).status_code == 200
    params = engine.calls[-1].params
    assert (params.max_tokens, params.n, params.top_k, params.seed, params.logprobs) == (4, 2, 5, 7, 2)
    assert type(params.max_tokens) is int
    assert client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 4.0}).status_code == 200
    native = {"text": "hi", "sampling_params": {"max_new_tokens": 4.0, "top_k": 3.0}, "top_logprobs_num": 1.0}
    native["return_logprob"] = True
    answer = client.post("/generate", json=native)
    assert answer.status_code == 200, answer.text
    assert (engine.calls[-1].params.max_tokens, engine.calls[-1].params.top_k) == (4, 3)
    message = {"max_tokens": 4.0, "messages": CHAT["messages"], "model": MODEL}
    assert client.post("/v1/messages", json=message).status_code == 200


@pytest.mark.parametrize("value", [4.5, "4", True, 1e300, float(2**53 + 2), [4.0]])
def test_other_numbers_are_none(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens: "):
        ChatRequest.parse(CHAT | {"max_tokens": value})


def test_a_number_that_may_have_a_fraction_stays_what_it_is() -> None:
    class Fields(WireModel):
        count: int | None = None
        share: float | None = None
        either: int | float | None = None

    parsed = Fields.parse({"count": 2.0, "share": 2.0, "either": 2.0})
    assert [type(value) for value in (parsed.count, parsed.share, parsed.either)] == [int, float, float]
    assert with_whole_numbers({"a": 2.0, "b": 2.0}, {"a"}) == {"a": 2, "b": 2.0}


def test_a_byte_order_mark_is_skipped(client: httpx.Client) -> None:
    body = codecs.BOM_UTF8 + json.dumps(CHAT).encode()
    headers = {"content-type": "application/json"}
    assert client.post("/v1/chat/completions", content=body, headers=headers).status_code == 200
    empty = client.post("/v1/chat/completions", content=codecs.BOM_UTF8, headers=headers)
    assert "empty" in empty.json()["error"]["message"]


SECOND_NAMES = {
    **dict.fromkeys(("n_predict", "num_predict", "max_new_tokens"), "max_tokens"),
    "min_new_tokens": "min_tokens",
    "random_seed": "seed",
    "sampling_seed": "seed",
    "stopping_strings": "stop",
    **dict.fromkeys(("repeat_penalty", "rep_pen"), "repetition_penalty"),
}


@pytest.mark.parametrize(("name", "same"), SECOND_NAMES.items())
def test_a_second_name_of_a_field_passes_with_its_value(client: httpx.Client, name: str, same: str) -> None:
    """SillyTavern sends the names of all servers at once."""
    value, other = (["x"], ["y"]) if same == "stop" else (2, 3)
    for given, status in ((value, 200), (other, 400)):
        body = {"prompt": "hi", same: value, name: given}
        assert client.post("/v1/completions", json=body).status_code == status, given


def test_best_of_as_many_as_are_answered(client: httpx.Client) -> None:
    for fields, status in (({"n": 2, "best_of": 2}, 200), ({"best_of": 1}, 200), ({"n": 2, "best_of": 3}, 400)):
        assert client.post("/v1/completions", json={"prompt": "hi"} | fields).status_code == status, fields
    assert client.post("/v1/chat/completions", json=CHAT | {"n": 3, "best_of": 3}).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": "hi", "prompt_logprobs": -1}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "hi", "logprobs": -1}, "logprobs"),
        ("/v1/chat/completions", CHAT | {"prompt_logprobs": -1}, "prompt_logprobs"),
        ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ],
)
def test_all_tokens_of_the_vocabulary_are_too_many(
    client: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    """vLLM refuses them alike unless it is started with a higher limit; ours is part of the compiled sampler."""
    answer = client.post(path, json=fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert (
        f"{param} -1 asks for all tokens of the vocabulary; there are at most 20" in answer.json()["error"]["message"]
    )


def test_the_white_space_of_guided_json(http: httpx.Client, engine: FakeEngine) -> None:
    schema = {"type": "object"}
    for fields in (
        {"guided_json": schema, "guided_whitespace_pattern": "[ ]?"},
        {"structured_outputs": {"json": schema, "whitespace_pattern": "[ ]?"}},
    ):
        http.post("/v1/completions", json={"prompt": "hi"} | fields).raise_for_status()
    older, newer = [call.params.grammar for call in engine.calls]
    assert older == newer
    assert older is not None
    assert "[ ]?" in older.text
