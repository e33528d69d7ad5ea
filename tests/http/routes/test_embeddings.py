"""/v1/embeddings and /encode, and what a server of the other kind answers."""

import base64
import math
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from palladio.http.generation.embedded_texts import MAX_INPUTS
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from tests.fake_embedding import fake_embedding
from tests.fake_engine import MODEL, FakeEngine
from tests.http.batches.batch_files import both, jsonl, submit, wait_for

SIZE = 6
TEXTS = ["Hello", "another text", "Hello"]


@pytest.fixture
def embedding(engine: FakeEngine) -> FakeEngine:
    engine.embedding = EmbeddingSpec(SIZE, "last", normalized=True)
    return engine


def expected(engine: FakeEngine, prompt: str | list[int]) -> np.ndarray:
    ids = engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    return fake_embedding(ids, SIZE)


def post(http: httpx.Client, **body: Any) -> httpx.Response:
    return http.post("/v1/embeddings", json=body)


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize(
    ("given", "prompts"),
    [("Hello", ["Hello"]), (TEXTS, TEXTS), ([5, 6, 7], [[5, 6, 7]]), ([[5, 6], [7]], [[5, 6], [7]])],
)
def test_the_four_forms_of_input(http: httpx.Client, embedding: FakeEngine, given: Any, prompts: list[Any]) -> None:
    answer = post(http, input=given, model=MODEL).raise_for_status().json()
    assert answer.keys() == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    for index, (item, prompt) in enumerate(zip(answer["data"], prompts, strict=True)):
        assert item.keys() == {"object", "index", "embedding"}
        assert (item["object"], item["index"]) == ("embedding", index)
        np.testing.assert_array_equal(np.float32(item["embedding"]), expected(embedding, prompt))
    count = sum(len(call.prompt_ids) for call in embedding.calls)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert all(call.finished for call in embedding.calls)


def test_the_sdk(client: openai.OpenAI, embedding: FakeEngine) -> None:
    """Which asks for base64 unless it is told otherwise, and decodes it."""
    for options in ({}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model=MODEL, input=TEXTS, user="me", **options)
        for item, text in zip(answer.data, TEXTS, strict=True):
            np.testing.assert_array_equal(np.float32(item.embedding), expected(embedding, text))


def test_base64_is_little_endian_float32(http: httpx.Client, embedding: FakeEngine) -> None:
    item = post(http, input="Hello", encoding_format="base64").json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(item), "<f4"), expected(embedding, "Hello"))


def test_inputs_come_back_in_order_and_run_together(http: httpx.Client, embedding: FakeEngine) -> None:
    embedding.first_delay = 0.3
    texts = [f"text {number}" for number in range(40)]
    answer = http.post("/v1/embeddings", json={"input": texts}, timeout=5).json()
    for item, text in zip(answer["data"], texts, strict=True):
        np.testing.assert_array_equal(np.float32(item["embedding"]), expected(embedding, text))


@pytest.mark.parametrize("normalized", [True, False])
def test_dimensions(http: httpx.Client, engine: FakeEngine, normalized: bool) -> None:
    engine.embedding = EmbeddingSpec(SIZE, "mean", normalized)
    vector = np.float32(post(http, input="Hello", dimensions=4).json()["data"][0]["embedding"])
    first = expected(engine, "Hello")[:4]
    np.testing.assert_allclose(vector, first / np.linalg.norm(first) if normalized else first, rtol=1e-6)
    whole = post(http, input="Hello", dimensions=SIZE).json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.float32(whole), expected(engine, "Hello"))


@pytest.mark.parametrize("dimensions", [0, -1, SIZE + 1])
def test_dimensions_out_of_range(http: httpx.Client, embedding: FakeEngine, dimensions: int) -> None:
    for path, body in (("/v1/embeddings", {"input": "hi"}), ("/encode", {"text": "hi"})):
        error = error_of(http.post(path, json=body | {"dimensions": dimensions}))
        assert error["param"] == "dimensions"
        assert f"1 … {SIZE}" in error["message"]
        assert str(dimensions) in error["message"]
    assert embedding.calls == []


@pytest.mark.parametrize("given", ["", [], [""], ["hi", ""], [[]], [[5], []]])
def test_empty_input(http: httpx.Client, embedding: FakeEngine, given: Any) -> None:
    assert error_of(post(http, input=given))["param"] == "input"


@pytest.mark.parametrize("given", [5, {"text": "hi"}, ["hi", 5], [[5], "hi"], None, [[True]]])
def test_input_of_another_form(http: httpx.Client, embedding: FakeEngine, given: Any) -> None:
    assert error_of(post(http, input=given))["param"] == "input"


def test_too_many_inputs(http: httpx.Client, embedding: FakeEngine) -> None:
    error = error_of(post(http, input=["hi"] * (MAX_INPUTS + 1)))
    assert error["param"] == "input"
    assert "2048" in error["message"]
    assert "2049" in error["message"]
    assert embedding.calls == []


def test_too_long(http: httpx.Client, embedding: FakeEngine) -> None:
    error = error_of(post(http, input=["hi", [5] * 3000][1:]))
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
    assert "3000" in error["message"]
    assert "2048" in error["message"]


def test_a_wrong_id_is_told_of_under_the_clients_name(http: httpx.Client, embedding: FakeEngine) -> None:
    assert error_of(post(http, input=[5, 999]))["param"] == "input"
    assert error_of(http.post("/encode", json={"input_ids": [5, 999]}))["param"] == "input_ids"


@pytest.mark.parametrize(
    ("field", "value"),
    [("encoding_format", "hex"), ("dimensions", "4"), ("timeout", -1), ("priority", 5), ("inpud", 1)],
)
def test_wrong_fields(http: httpx.Client, embedding: FakeEngine, field: str, value: Any) -> None:
    assert error_of(post(http, input="hi", **{field: value}))["param"] == field


def test_options_reach_the_engine(http: httpx.Client, embedding: FakeEngine) -> None:
    post(http, input="hi", rid="mine", cache_salt="s", timeout=7.5, user="me").raise_for_status()
    (call,) = embedding.calls
    assert (call.request_id, call.options.cache_salt, call.options.timeout) == ("mine", "s", 7.5)
    assert call.params.max_tokens == 0


def test_the_model_is_checked(http: httpx.Client, embedding: FakeEngine) -> None:
    assert error_of(post(http, input="hi", model="other"), 404)["code"] == "model_not_found"


def test_an_abort_is_an_error_not_half_an_answer(http: httpx.Client, embedding: FakeEngine) -> None:
    embedding.abort_status = 500
    assert post(http, input=["hi", "ho"]).status_code == 500


def test_encode(http: httpx.Client, embedding: FakeEngine) -> None:
    def encode(**body: Any) -> Any:
        return http.post("/encode", json=body).raise_for_status().json()

    one = encode(text="Hello")
    np.testing.assert_array_equal(np.float32(one["embedding"]), expected(embedding, "Hello"))
    assert one["meta_info"]["prompt_tokens"] == len(embedding.tokenizer.encode("Hello"))
    many = encode(text=TEXTS, rid=["a", "b", "c"])
    assert [item["meta_info"]["id"] for item in many] == ["a", "b", "c"]
    for item, text in zip(many, TEXTS, strict=True):
        np.testing.assert_array_equal(np.float32(item["embedding"]), expected(embedding, text))
    np.testing.assert_array_equal(np.float32(encode(input_ids=[5, 6])["embedding"]), expected(embedding, [5, 6]))
    assert [len(item["embedding"]) for item in encode(input_ids=[[5, 6]], dimensions=2)] == [2]
    assert math.isclose(np.linalg.norm(encode(text="Hello", dimensions=2)["embedding"]), 1, rel_tol=1e-6)


@pytest.mark.parametrize("body", [{}, {"text": "hi", "input_ids": [5]}, {"text": ["hi"], "rid": ["a", "b"]}])
def test_encode_needs_one_kind_of_prompt_and_an_id_for_each(
    http: httpx.Client, embedding: FakeEngine, body: dict[str, Any]
) -> None:
    assert error_of(http.post("/encode", json=body))["param"] in ("text", "rid")


GENERATING = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/generate": {"text": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/api/chat": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    "/api/generate": {"model": MODEL, "prompt": "hi"},
    "/invocations": {"messages": [{"role": "user", "content": "hi"}]},
}
EMBEDDING = {"/v1/embeddings": {"input": "hi"}, "/encode": {"text": "hi"}}


@pytest.mark.parametrize("path", GENERATING)
def test_a_server_of_embeddings_generates_nothing(http: httpx.Client, embedding: FakeEngine, path: str) -> None:
    answer = http.post(path, json=GENERATING[path])
    assert answer.status_code == 400
    assert "--is-embedding" in answer.text
    assert embedding.calls == []


@pytest.mark.parametrize("path", EMBEDDING)
def test_a_server_that_generates_makes_no_embeddings(http: httpx.Client, engine: FakeEngine, path: str) -> None:
    assert "start it with --is-embedding" in error_of(http.post(path, json=EMBEDDING[path]))["message"]
    engine.state = "starting"
    assert http.post(path, json=EMBEDDING[path]).status_code == 503


@pytest.mark.parametrize("embeds", [False, True])
def test_what_the_server_says_of_itself(http: httpx.Client, engine: FakeEngine, embeds: bool) -> None:
    engine.embedding = EmbeddingSpec(SIZE, "mean", normalized=False) if embeds else None
    assert http.get("/get_model_info").json()["is_generation"] is not embeds
    told = http.get("/v1/capabilities").json()
    assert told["modalities"]["output"] == ["embedding" if embeds else "text"]
    expected = {"size": SIZE, "pooling": "mean", "normalized": False, "kinds": ["dense"], "prompts": []}
    assert told["embedding"] == (expected if embeds else None)
    assert (told["grammar_backend"] is None) == embeds
    routes = {route["route"].removeprefix("POST ") for route in told["routes"]}
    served, refused = (EMBEDDING, GENERATING) if embeds else (GENERATING, EMBEDDING)
    assert set(served) <= routes
    assert not set(refused) & routes
    assert http.get("/health_generate").status_code == 200
    assert (engine.calls[-1].params.max_tokens == 0) == embeds


def test_many_numbers_are_written_beside_the_event_loop(http: httpx.Client, embedding: FakeEngine) -> None:
    """As elsewhere, and the numbers are those of the engine to the last bit."""
    embedding.embedding = EmbeddingSpec(4096, "last", normalized=True)
    answer = post(http, input=TEXTS).json()
    for item, text in zip(answer["data"], TEXTS, strict=True):
        vector = fake_embedding(embedding.tokenizer.encode(text), 4096)
        np.testing.assert_array_equal(np.float32(item["embedding"]), vector)


def test_without_a_tokenizer_ids_still_work(serve: Callable[..., str], embedding: FakeEngine) -> None:
    embedding.tokenizer = None
    with httpx.Client(base_url=serve(), timeout=20) as http:
        assert post(http, input=[5, 6]).status_code == 200
        assert post(http, input="hi").status_code == 400


def test_a_batch(client: openai.OpenAI, embedding: FakeEngine) -> None:
    def line(number: int, given: object) -> dict[str, Any]:
        body = {"model": MODEL, "input": given}
        return {"custom_id": str(number), "method": "POST", "url": "/v1/embeddings", "body": body}

    lines = [line(0, TEXTS), line(1, [5, 6]), line(2, "")]
    batch = wait_for(client, submit(client, jsonl(lines), endpoint="/v1/embeddings").id)
    (good, bad) = both(client, batch)
    assert [one["custom_id"] for one in good] == ["0", "1"]
    assert [len(one["response"]["body"]["data"]) for one in good] == [3, 1]
    vector = np.float32(good[1]["response"]["body"]["data"][0]["embedding"])
    np.testing.assert_array_equal(vector, expected(embedding, [5, 6]))
    assert [one["response"]["body"]["error"]["param"] for one in bad] == ["input"]
    assert all(call.options.background for call in embedding.calls)
    assert batch.usage is not None
    tokens = sum(len(call.prompt_ids) for call in embedding.calls)
    assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens) == (tokens, 0, tokens)
