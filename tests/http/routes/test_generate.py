"""SGLang's native /generate."""

import base64
import itertools
import json
import re

import httpx
import numpy as np
import pytest

from palladio.runtime.interface.request.input_embeds import EmbedsSpec
from tests.fake_engine import CACHED_TOKENS, EOS_ID, FakeEngine


def events(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_one_text(http: httpx.Client, engine: FakeEngine) -> None:
    params = {"max_new_tokens": 32, "temperature": 0, "min_new_tokens": 1, "sampling_seed": 7, "stop": "\n", "n": None}
    answer = http.post("/generate", json={"text": "The capital of France is", "sampling_params": params}).json()
    meta = answer["meta_info"]
    assert answer["text"] == "Hello, wörld 🎉!"
    assert answer["output_ids"][-1] == EOS_ID
    assert meta["finish_reason"] == {"type": "stop", "matched": EOS_ID}
    assert (meta["completion_tokens"], meta["cached_tokens"]) == (15, CACHED_TOKENS)
    assert 0 < meta["e2e_latency"] < 20
    got = engine.calls[0].params
    assert (got.max_tokens, got.min_tokens, got.seed, got.stop) == (32, 1, 7, ("\n",))


def test_128_tokens_by_default(http: httpx.Client, engine: FakeEngine) -> None:
    http.post("/generate", json={"text": "x"})
    http.post("/generate", json={"input_ids": [5] * 2000})
    http.post("/generate", json={"text": "x", "sampling_params": {"min_new_tokens": 200}})
    assert [call.params.max_tokens for call in engine.calls] == [128, 48, 200]


def test_lists_in_lists_out(http: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = lambda ids, index: f"{ids[0]}:{index}"
    body = {
        "input_ids": [[9], [8]],
        "sampling_params": [{"n": 2, "temperature": 0}, {"n": 2, "temperature": 1}],
        "rid": ["a", "b"],
    }
    answer = http.post("/generate", json=body).json()
    assert [item["text"] for item in answer] == ["9:0", "9:1", "8:0", "8:1"]
    assert {call.request_id: call.params.temperature for call in engine.calls} == {"a": 0, "b": 1}
    body = {"input_ids": [[9], [8]], "sampling_params": [{"n": 1}, {"n": 2}]}
    assert [item["text"] for item in http.post("/generate", json=body).json()] == ["9:0", "8:0", "8:1"]
    assert len(http.post("/generate", json={"text": ["x"]}).json()) == 1
    assert len(http.post("/generate", json={"text": "x", "sampling_params": {"n": 2}}).json()) == 2
    assert isinstance(http.post("/generate", json={"input_ids": [1, 2]}).json(), dict)


def test_stream_is_cumulative(http: httpx.Client) -> None:
    answer = http.post("/generate", json={"text": "x", "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = events(answer.text)
    texts = [part["text"] for part in parts]
    assert texts[-1] == "Hello, wörld 🎉!"
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert parts[0]["meta_info"]["finish_reason"] is None
    assert "index" not in parts[0]


def test_stream_of_a_batch_has_indices(serve, engine: FakeEngine) -> None:
    with httpx.Client(base_url=serve(stream_interval=3)) as client:
        parts = events(client.post("/generate", json={"text": ["x", "y"], "stream": True}).text)
    for index in (0, 1):
        mine = [part for part in parts if part["index"] == index]
        assert mine[-1]["text"] == "Hello, wörld 🎉!"
        assert len(mine) == 6  # tokens 1, 4, 7, 10, 13 and the last


def test_a_stream_of_what_is_new(serve, http: httpx.Client) -> None:
    body = {"text": "x", "sampling_params": {"n": 2}, "return_logprob": True, "top_logprobs_num": 1}
    body |= {"logprob_start_len": 0, "return_text_in_logprobs": True}
    whole = http.post("/generate", json=body).json()
    with httpx.Client(base_url=serve(stream_output=True, stream_interval=3)) as client:
        parts = events(client.post("/generate", json=body | {"stream": True}).text)
    for index in (0, 1):
        mine, all_of_it = [part for part in parts if part["index"] == index], whole[index]
        metas = [part["meta_info"] for part in mine]
        lengths = [1, 3, 3, 3, 3, 2]  # of 15 tokens
        assert [len(part["output_ids"]) for part in mine] == lengths
        assert "".join(part["text"] for part in mine) == all_of_it["text"]
        assert [token for part in mine for token in part["output_ids"]] == all_of_it["output_ids"]
        for name in ("output_token_logprobs", "output_top_logprobs"):
            assert [len(meta[name]) for meta in metas] == lengths
            assert [entry for meta in metas for entry in meta[name]] == all_of_it["meta_info"][name]
        counts = list(itertools.accumulate(lengths))
        assert [meta["completion_tokens"] for meta in metas] == counts
        assert [meta["output_token_logprobs_length"] for meta in metas] == counts
        prompt = all_of_it["meta_info"]["input_token_logprobs"]
        assert [meta["input_token_logprobs"] for meta in metas] == [prompt] * len(metas)


def test_logprobs(http: httpx.Client, engine: FakeEngine) -> None:
    body = {
        "text": "Hello",
        "sampling_params": {"max_new_tokens": 2, "n": 2},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 1,
        "return_text_in_logprobs": True,
    }
    for answer in http.post("/generate", json=body).json():
        meta = answer["meta_info"]
        assert meta["output_token_logprobs"][0] == [-0.5, engine.tokenizer.encode("Hello")[0], "Hello"]
        assert meta["input_token_logprobs"][0][0] is None
        assert len(meta["output_top_logprobs"]) == 2


def test_without_a_tokenizer(http: httpx.Client, engine: FakeEngine) -> None:
    engine.tokenizer = None
    assert http.post("/generate", json={"input_ids": [1]}).json()["output_ids"]
    assert http.post("/generate", json={"text": "x"}).status_code == 400


ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
ENCODED = {"data": base64.b64encode(ROWS.tobytes()).decode(), "shape": [2, 4], "dtype": "float32"}


def test_prompts_of_embeddings(http: httpx.Client, engine: FakeEngine) -> None:
    engine.embeds = EmbedsSpec(4, 1e30)
    engine.reply = lambda ids, index: f"{len(ids)}"
    answer = http.post("/generate", json={"input_embeds": ROWS.tolist(), "rid": "x", "return_logprob": True}).json()
    assert (answer["text"], answer["meta_info"]["prompt_tokens"]) == ("2", 2)
    assert answer["meta_info"]["input_token_logprobs"] == []
    assert (engine.calls[0].request_id, engine.calls[0].params.max_tokens) == ("x", 128)
    many = {"input_embeds": [ENCODED, ROWS[:1].tolist()], "sampling_params": [{"n": 2}, {"n": 1}], "rid": ["a", "b"]}
    assert [item["text"] for item in http.post("/generate", json=many).json()] == ["2", "2", "1"]
    assert isinstance(http.post("/generate", json={"input_embeds": [ENCODED]}).json(), list)
    parts = events(http.post("/generate", json={"input_embeds": ENCODED, "stream": True}).text)
    assert parts[-1]["text"] == "2"
    media = [part for call in engine.calls for part in call.media]
    assert [(part.start, part.length, part.width) for part in media] == [(0, 2, 4)] * 2 + [(0, 1, 4)] + [(0, 2, 4)] * 2
    assert media[0] == media[1], "lists and base64 of the same numbers are the same"
    assert media[0].content == ROWS.tobytes()
    assert "".join(map(str, {tuple(call.prompt_ids) for call in engine.calls})) in ("(0, 0)(0,)", "(0,)(0, 0)")


BAD_EMBEDS = {
    "both": ({"input_embeds": ENCODED, "text": "x"}, "input_embeds", "give one of text, input_ids and input_embeds"),
    "size": ({"input_embeds": [[1, 2]]}, "input_embeds", "rows have 2 numbers; this model's embeddings have 4"),
    "not finite": ({"input_embeds": [[1, 2, 3, 1e31]]}, "input_embeds", "input_embeds: row 0 has a number that is not"),
    "of the second": (
        {"input_embeds": [ENCODED, {**ENCODED, "data": "?"}]}, "input_embeds.1.data", "input_embeds.1.data has 0 bytes"
    ),
    "text": ({"input_embeds": "x"}, "input_embeds", "must be a list of rows of numbers, an object with data"),
    "too long": ({"input_embeds": [[0] * 4] * 2049}, "input_embeds", "has 2049 rows; .* at most 2048 tokens"),
    "no room": ({"input_embeds": [[0] * 4] * 2048}, "input_embeds", "2048 tokens"),
    "prompt logprobs": (
        {"input_embeds": ENCODED, "return_logprob": True, "logprob_start_len": 0},
        "logprob_start_len", "logprob_start_len must be -1 with input_embeds",
    ),
    "echo": ({"input_embeds": ENCODED, "echo": True}, "echo", "echo"),
    "lists of parameters": (
        {"input_embeds": [ENCODED], "sampling_params": [{}, {}]}, "sampling_params", "2 entries for 1 prompts"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_EMBEDS)
def test_bad_prompts_of_embeddings(http: httpx.Client, engine: FakeEngine, case: str) -> None:
    engine.embeds = EmbedsSpec(4, 1e30)
    body, param, words = BAD_EMBEDS[case]
    answer = http.post("/generate", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert re.search(words, error["message"]), error["message"]
    assert not engine.calls


def test_embeddings_need_the_flag(http: httpx.Client, engine: FakeEngine) -> None:
    error = http.post("/generate", json={"input_embeds": ENCODED}).json()["error"]
    assert (error["param"], "--enable-input-embeds" in error["message"]) == ("input_embeds", True)

    def verdict() -> str:
        routes = http.get("/v1/capabilities").json()["routes"]
        return next(one["fields"]["input_embeds"] for one in routes if one["route"] == "POST /generate")

    assert verdict() == "refused"
    engine.embeds = EmbedsSpec(4, 1e30)
    assert verdict() == "applied"
