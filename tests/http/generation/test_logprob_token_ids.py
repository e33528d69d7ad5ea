"""Log-probabilities of chosen tokens: vLLM's logprob_token_ids, SGLang's token_ids_logprob."""

import json
from typing import Any

import httpx
import pytest

from tests.fake_engine import FakeEngine

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
NATIVE = {"text": "hi", "sampling_params": {"max_new_tokens": 2}, "return_logprob": True, "logprob_start_len": 0}


def test_chat_has_the_token_and_those_asked_for(http: httpx.Client, engine: FakeEngine) -> None:
    own = engine.tokenizer.encode("Hello")[0]
    body = CHAT | {"logprobs": True, "top_logprobs": 3, "logprob_token_ids": [40, own, 41]}
    for stream in (False, True):
        answer = http.post("/v1/chat/completions", json=body | {"stream": stream})
        assert answer.status_code == 200
        if stream:
            chunks = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
            found = next(chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"])
        else:
            found = answer.json()["choices"][0]["logprobs"]
        first = found["content"][0]
        assert (first["token"], first["logprob"]) == ("Hello", -0.5)
        assert [entry["logprob"] for entry in first["top_logprobs"]] == [-0.5, -40.0, -41.0]
    assert engine.calls[-1].params.logprob_token_ids == (40, own, 41)


def test_completions_have_them_by_name(http: httpx.Client) -> None:
    body = {"prompt": "hi", "max_tokens": 2, "logprobs": 0, "logprob_token_ids": [70, 71], "echo": True}
    arrays = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert arrays["top_logprobs"][0] is None
    assert arrays["token_logprobs"][1:] == [-0.5] * (len(arrays["tokens"]) - 1)
    for name, top in list(zip(arrays["tokens"], arrays["top_logprobs"], strict=True))[1:]:
        assert sorted(top.values()) == [-71.0, -70.0, -0.5]
        assert top[name] == -0.5
    del body["logprob_token_ids"]
    assert http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]["top_logprobs"] is None


def test_generate_has_them_beside_the_likeliest(http: httpx.Client) -> None:
    body = NATIVE | {"token_ids_logprob": [70, 71], "top_logprobs_num": 1, "return_text_in_logprobs": True}
    meta = http.post("/generate", json=body).json()["meta_info"]
    texts = [http.post("/detokenize", json={"tokens": [i]}).json()["text"] for i in (70, 71)]
    expected = [[-70.0, 70, texts[0]], [-71.0, 71, texts[1]]]
    assert meta["output_token_ids_logprobs"] == [expected] * 2
    assert meta["input_token_ids_logprobs"] == [None, *[expected] * (meta["prompt_tokens"] - 1)]
    assert [len(entry) for entry in meta["output_top_logprobs"]] == [1, 1]
    meta = http.post("/generate", json=body | {"logprob_start_len": -1}).json()["meta_info"]
    assert meta["input_token_ids_logprobs"] == []
    assert "output_token_ids_logprobs" not in http.post("/generate", json=NATIVE).json()["meta_info"]


def test_each_prompt_of_a_batch_may_have_its_own(http: httpx.Client) -> None:
    def ids(value: Any) -> list[list[int] | None]:
        body = NATIVE | {"text": ["a", "b"], "token_ids_logprob": value}
        metas = [answer["meta_info"] for answer in http.post("/generate", json=body).raise_for_status().json()]
        found = [meta.get("output_token_ids_logprobs", [None])[0] for meta in metas]
        return [entry and [token_id for _, token_id, _ in entry] for entry in found]

    assert ids([5, 6]) == [[5, 6], [5, 6]]
    assert ids([[5, 6], [7]]) == [[5, 6], [7]]
    assert ids([None, [7]]) == [None, [7]]
    assert ids(5) == [[5], [5]]


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/v1/chat/completions", CHAT | {"logprob_token_ids": [1]}, "logprob_token_ids", "needs logprobs: true"),
        ("/v1/completions", {"prompt": "a", "logprob_token_ids": [1]}, "logprob_token_ids", "needs logprobs"),
        ("/generate", {"text": "a", "token_ids_logprob": [1]}, "token_ids_logprob", "needs return_logprob=true"),
        ("/generate", NATIVE | {"token_ids_logprob": [*range(129)]}, "token_ids_logprob", "at most 128"),
        ("/generate", NATIVE | {"token_ids_logprob": [-1]}, "token_ids_logprob", "token ids ≥ 0"),
        ("/generate", NATIVE | {"token_ids_logprob": ["a"]}, "token_ids_logprob", "must be a list of token ids"),
        ("/generate", NATIVE | {"token_ids_logprob": [[1], [2]]}, "token_ids_logprob", "2 entries for 1 prompts"),
        ("/generate", NATIVE | {"sampling_params": {"logprob_token_ids": [1]}}, None, "logprob_token_ids"),
    ],
)
def test_errors_name_the_field(
    http: httpx.Client, path: str, body: dict[str, Any], param: str | None, words: str
) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert words in error["message"]
    assert param is None or error["param"] == param


@pytest.mark.parametrize("value", [None, []])
def test_none_asked_for_asks_for_nothing(http: httpx.Client, value: Any) -> None:
    assert http.post("/v1/chat/completions", json=CHAT | {"logprob_token_ids": value}).status_code == 200
    assert http.post("/v1/completions", json={"prompt": "a", "logprob_token_ids": value}).status_code == 200
    assert http.post("/generate", json={"text": "a", "token_ids_logprob": value}).status_code == 200
