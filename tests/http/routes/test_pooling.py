"""/pooling, as vLLM has it, and /v2/embed, as Cohere's second API has it."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest

from palladio.http.generation.embedded_texts import MAX_INPUTS
from palladio.runtime.interface.request.embedding import ClassSpec, EmbeddingSpec
from tests.fake_embedding import fake_embedding
from tests.fake_engine import MODEL, FakeEngine

SIZE = 8
TEXTS = ["Hello", "another text"]


@pytest.fixture
def embedding(engine: FakeEngine) -> FakeEngine:
    engine.embedding = EmbeddingSpec(SIZE, "last", normalized=True)
    return engine


@pytest.fixture
def classes(engine: FakeEngine) -> FakeEngine:
    engine.embedding = EmbeddingSpec(3, "last", normalized=False, classes=ClassSpec(["a", "b", "c"], "softmax"))
    return engine


def vectors(engine: FakeEngine, size: int = SIZE) -> np.ndarray:
    return np.array([fake_embedding(call.prompt_ids, size) for call in engine.calls])


def refused(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["param"]


def test_embeddings(http: httpx.Client, embedding: FakeEngine) -> None:
    answer = http.post("/pooling", json={"input": TEXTS, "model": MODEL, "task": "embed"}).raise_for_status().json()
    assert answer["id"].startswith("pool-")
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    assert [(item["index"], item["object"]) for item in answer["data"]] == [(0, "pooling"), (1, "pooling")]
    np.testing.assert_array_equal(np.float32([item["data"] for item in answer["data"]]), vectors(embedding))
    assert answer["usage"]["prompt_tokens"] == sum(len(call.prompt_ids) for call in embedding.calls)
    body = {"input": [5, 6, 7], "encoding_format": "base64", "dimensions": 4}
    (item,) = http.post("/pooling", json=body).raise_for_status().json()["data"]
    short = fake_embedding([5, 6, 7], SIZE)[:4]
    found = np.frombuffer(base64.b64decode(item["data"]), "<f4")
    np.testing.assert_allclose(found, short / np.linalg.norm(short), rtol=1e-6)


def test_classes(http: httpx.Client, classes: FakeEngine) -> None:
    (item,) = http.post("/pooling", json={"input": "Hello"}).raise_for_status().json()["data"]
    logits = vectors(classes, 3)[0]
    np.testing.assert_allclose(item["data"], np.exp(logits) / np.exp(logits).sum(), rtol=1e-5)
    body = {"input": "Hello", "use_activation": False, "task": "classify"}
    (item,) = http.post("/pooling", json=body).raise_for_status().json()["data"]
    np.testing.assert_array_equal(np.float32(item["data"]), logits)
    assert http.post("/v2/embed", json={"texts": TEXTS}).status_code == 400
    assert refused(http.post("/pooling", json={"input": "Hello", "task": "embed"})) == (400, "task")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/pooling", {"input": "a", "task": "token_embed"}, "task"),
        ("/pooling", {"input": "a", "use_activation": False}, "use_activation"),
        ("/pooling", {"input": "a", "dimensions": SIZE + 1}, "dimensions"),
        ("/pooling", {"input": ""}, "input"),
        ("/pooling", {"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ("/v2/embed", {}, "texts"),
        ("/v2/embed", {"texts": []}, "texts"),
        ("/v2/embed", {"texts": ["a"] * (MAX_INPUTS + 1)}, "texts"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types.0"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 0}, "output_dimension"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 4, "embedding_types": ["binary"]}, "output_dimension"),
        ("/v2/embed", {"texts": ["a word and another"], "truncate": "NONE", "max_tokens": 2}, "texts"),
        ("/v2/embed", {"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
        ("/v2/embed", {"images": ["data:image/png;base64,x"]}, "images"),
        ("/v2/embed", {"inputs": [{"content": []}]}, "inputs"),
    ],
)
def test_what_is_refused(
    http: httpx.Client, embedding: FakeEngine, path: str, body: dict[str, Any], param: str
) -> None:
    assert refused(http.post(path, json=body)) == (400, param)
    assert embedding.calls == []


@pytest.mark.parametrize(("path", "body"), [("/pooling", {"input": "a"}), ("/v2/embed", {"texts": ["a"]})])
def test_a_server_that_generates(http: httpx.Client, engine: FakeEngine, path: str, body: dict[str, Any]) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400
    assert "--is-embedding" in answer.json()["error"]["message"]


def test_coheres_form(http: httpx.Client, embedding: FakeEngine) -> None:
    kinds = ["float", "base64", "ubinary", "binary"]
    body = {"model": MODEL, "texts": TEXTS, "embedding_types": kinds, "input_type": "search_query"}
    answer = http.post("/v2/embed", json=body).raise_for_status().json()
    assert answer["id"].startswith("embd-")
    assert (answer["texts"], answer["response_type"]) == (TEXTS, "embeddings_by_type")
    num_tokens = sum(len(call.prompt_ids) for call in embedding.calls)
    assert answer["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": num_tokens}}
    found, expected = answer["embeddings"], vectors(embedding)
    assert list(found) == kinds
    np.testing.assert_array_equal(np.float32(found["float"]), expected)
    decoded = [np.frombuffer(base64.b64decode(text), "<f4") for text in found["base64"]]
    np.testing.assert_array_equal(decoded, expected)
    bits = [int("".join(str(int(value >= 0)) for value in row), 2) for row in expected]
    assert found["ubinary"] == [[number] for number in bits]
    assert found["binary"] == [[number - 128] for number in bits]
    assert [one["param"] for one in answer["warnings"]] == ["input_type"]
    plain = http.post("/v2/embed", json={"texts": TEXTS}).json()
    assert list(plain["embeddings"]) == ["float"]
    assert "warnings" not in plain


def test_long_texts_are_cut(http: httpx.Client, embedding: FakeEngine) -> None:
    assert embedding.tokenizer is not None
    text = "one two three four five"
    ids = embedding.tokenizer.encode(text, False)
    for truncate, kept in (("END", ids[:4]), ("START", ids[-4:]), (None, ids[:4])):
        body = {"texts": [text], "max_tokens": 4} | ({"truncate": truncate} if truncate else {})
        http.post("/v2/embed", json=body).raise_for_status()
        assert embedding.calls[-1].prompt_ids == kept
    http.post("/v2/embed", json={"texts": ["word " * 3000]}).raise_for_status()
    assert len(embedding.calls[-1].prompt_ids) == embedding.info.context_length
    assert refused(http.post("/v2/embed", json={"texts": ["word " * 3000], "truncate": "NONE"})) == (400, "texts")
