"""Routes of Text Embeddings Inference and of Ollama that embed, rerank and classify."""

from typing import Any

import httpx
import numpy as np
import pytest

from palladio.runtime.interface.request.embedding import ClassSpec, EmbeddingSpec
from tests.fake_embedding import fake_embedding
from tests.fake_engine import FakeEngine

SIZE = 8


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response) -> str | None:
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["param"]


def test_text_embeddings_inference(http: httpx.Client, engine: FakeEngine) -> None:
    """Bare lists, of length 1 unless that is not wanted."""
    engine.embedding = EmbeddingSpec(1, "mean", False)
    one = fake_embedding([5, 6], 1)
    assert ok(http.post("/embed", json={"inputs": [5, 6]})) == [[float(np.sign(one[0]))]]
    assert ok(http.post("/embed", json={"inputs": [5, 6], "normalize": False})) == [[pytest.approx(float(one[0]))]]
    engine.embedding = EmbeddingSpec(SIZE, "mean", True)
    rows = ok(http.post("/embed", json={"inputs": [[5, 6], [7]], "dimensions": 4}))
    short = fake_embedding([5, 6], SIZE)[:4]
    np.testing.assert_allclose(rows[0], short / np.linalg.norm(short), rtol=1e-6)
    long = [*range(3, 300)] * 8
    for direction, kept in ((None, long[:2048]), ("Left", long[-2048:]), ("Right", long[:2048])):
        ok(http.post("/embed", json={"inputs": long, "truncate": True, "truncation_direction": direction}))
        assert engine.calls[-1].prompt_ids == kept


def test_its_form_of_rerank(http: httpx.Client, engine: FakeEngine) -> None:
    engine.embedding = EmbeddingSpec(1, "last", False, ClassSpec(["good"], "sigmoid"))
    texts = ["one", "two!", "the third"]
    ours = ok(http.post("/rerank", json={"query": "q", "documents": texts}))["results"]
    theirs = ok(http.post("/rerank", json={"query": "q", "texts": texts, "return_text": True}))
    assert [(one["index"], one["score"], one["text"]) for one in theirs] == [
        (one["index"], one["relevance_score"], texts[one["index"]]) for one in ours
    ]
    raw = ok(http.post("/rerank", json={"query": "q", "texts": texts, "raw_scores": True}))
    assert [list(one) for one in raw] == [["index", "score"]] * 3
    scores = [one["score"] for one in raw]
    assert scores == sorted(scores, reverse=True)
    np.testing.assert_allclose([1 / (1 + np.exp(-score)) for score in scores], [one["score"] for one in theirs])
    ok(http.post("/rerank", json={"query": "q", "texts": ["word " * 3000], "truncate": True}))
    assert len(engine.calls[-1].prompt_ids) == 2048
    for body, param in (
        ({"query": "q"}, "documents"),
        ({"query": "q", "texts": []}, "texts"),
        ({"query": "q", "texts": ["a", ""]}, "texts.1"),
        ({"query": "q", "texts": ["a"], "documents": ["a"]}, "texts"),
        ({"query": "q", "texts": ["a"], "top_n": 1}, "top_n"),
        ({"query": "q", "documents": ["a"], "raw_scores": True}, "raw_scores"),
        ({"query": "q", "texts": ["word " * 3000]}, "texts"),
    ):
        assert refused(http.post("/rerank", json=body)) == param


def test_predict(http: httpx.Client, engine: FakeEngine) -> None:
    labels = ["a", "b", "c"]
    engine.embedding = EmbeddingSpec(3, "last", False, ClassSpec(labels, "softmax"), is_encoder=True)
    one = ok(http.post("/predict", json={"inputs": "hello"}))
    assert engine.tokenizer is not None
    logits = fake_embedding(engine.tokenizer.encode("hello"), 3)
    expected = np.exp(logits) / np.exp(logits).sum()
    assert [item["label"] for item in one] == [labels[index] for index in np.argsort(-expected)]
    np.testing.assert_allclose([item["score"] for item in one], sorted(expected, reverse=True), rtol=1e-5)
    pair = ok(http.post("/predict", json={"inputs": ["hello", "you"], "raw_scores": True}))
    found = engine.tokenizer.encode_pair("hello", "you")
    assert engine.calls[-1].prompt_ids == found.ids
    raw = sorted(map(float, fake_embedding(found.ids, 3)), reverse=True)
    assert [item["score"] for item in pair] == pytest.approx(raw)
    many = ok(http.post("/predict", json={"inputs": [["hello"], ["hello", "you"]]}))
    assert [len(row) for row in many] == [3, 3]
    assert many[0] == one
    for inputs in ([["a", "b", "c"]], [[""]], [[]], [], [5]):
        assert refused(http.post("/predict", json={"inputs": inputs})) == "inputs"


def test_ollamas_embeddings(serve: Any, engine: FakeEngine) -> None:
    engine.embedding = EmbeddingSpec(SIZE, "mean", False)
    assert engine.tokenizer is not None
    with httpx.Client(base_url=serve(served_model_name=("org/some-model",)), timeout=60) as http:
        body = {"model": "some-model:latest", "input": ["Hello", "another"], "options": {"num_ctx": 512}}
        answer = ok(http.post("/api/embed", json=body))
        assert answer["model"] == "some-model:latest"
        expected = [fake_embedding(engine.tokenizer.encode(text), SIZE) for text in ("Hello", "another")]
        np.testing.assert_allclose(answer["embeddings"], expected, rtol=1e-6)
        assert answer["prompt_eval_count"] == sum(len(call.prompt_ids) for call in engine.calls)
        assert answer["total_duration"] > 0
        assert "warnings" not in answer
        short = ok(http.post("/api/embed", json={"model": "some-model", "input": "Hello", "dimensions": 2}))
        assert np.linalg.norm(short["embeddings"][0]) == pytest.approx(1)
        old = ok(http.post("/api/embeddings", json={"model": "some-model", "prompt": "Hello"}))
        np.testing.assert_allclose(old["embedding"], expected[0], rtol=1e-6)
        for path, empty in (("/api/embed", {"embeddings": []}), ("/api/embeddings", {"embedding": []})):
            assert ok(http.post(path, json={"model": "some-model"})).items() >= empty.items()
        sampled = ok(http.post("/api/embed", json=body | {"options": {"temperature": 1, "num_gpu": 1}}))
        assert [one["param"] for one in sampled["warnings"]] == ["options.temperature"]
        ok(http.post("/api/embed", json={"model": "some-model", "input": "word " * 3000}))
        assert engine.calls[-1].prompt_ids == engine.tokenizer.encode("word " * 3000)[:2048]
        refusals = (
            ({"input": "word " * 3000, "truncate": False}, 400),
            ({"input": "a", "dimensions": SIZE + 1}, 400),
            ({"input": 5}, 400),
            ({"model": "other", "input": "a"}, 404),
        )
        for wrong, status in refusals:
            assert http.post("/api/embed", json={"model": "some-model"} | wrong).status_code == status
        engine.embedding = None
        assert http.post("/api/embed", json={"model": "some-model", "input": "a"}).status_code == 400
