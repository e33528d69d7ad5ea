"""/v1/score, /v1/rerank and /v1/classify, on their other paths too, over each kind of model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from palladio.http.generation import scored_pairs
from palladio.http.generation.scored_pairs import MAX_PAIRS
from palladio.runtime.interface.request.embedding import ClassSpec, EmbeddingSpec
from palladio.runtime.text.tokenizers.pair_prompts import DEFAULT_INSTRUCTION, JUDGE_MARK, pair_prompt
from tests.fake_embedding import fake_embedding
from tests.fake_engine import MODEL, FakeEngine
from tests.http.batches.batch_files import both, jsonl, submit, wait_for

SIZE = 6
DOCUMENTS = ["one", "two!", "the third"]
SCORES, RERANKS, CLASSIFIES = (
    ("/v1/score", "/score"),
    ("/v1/rerank", "/rerank", "/v2/rerank"),
    ("/v1/classify", "/classify"),
)


def fake_logprob(token_id: int) -> float:
    """Of tokens that are asked for, see FakeEngine."""
    return -float(token_id)


def sigmoid(value: Any) -> Any:
    return 1 / (1 + np.exp(-np.float64(value)))


@pytest.fixture
def embedding(engine: FakeEngine) -> FakeEngine:
    engine.embedding = EmbeddingSpec(SIZE, "last", normalized=True)
    return engine


@pytest.fixture
def judge(engine: FakeEngine) -> FakeEngine:
    engine.embedding = EmbeddingSpec(1, "last", False, ClassSpec(["LABEL_0"], "sigmoid", judges=True))
    return engine


@pytest.fixture
def reward(engine: FakeEngine) -> FakeEngine:
    engine.embedding = EmbeddingSpec(1, "last", False, ClassSpec(["good"], "sigmoid"))
    return engine


@pytest.fixture
def classes(engine: FakeEngine) -> FakeEngine:
    engine.embedding = EmbeddingSpec(3, "last", False, ClassSpec(["a", "b", "c"], "softmax"))
    return engine


def logits_of(engine: FakeEngine, text: str, document: str = "") -> np.ndarray:
    """Args: document: tokenized by itself."""
    assert engine.tokenizer is not None
    assert engine.embedding is not None
    ids = engine.tokenizer.encode_pair(text, document).ids if document else engine.tokenizer.encode(text)
    return fake_embedding(ids, engine.embedding.size)


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize("path", SCORES)
@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")]
)
def test_scores_of_one_label(http: httpx.Client, reward: FakeEngine, path: str, names: tuple[str, str]) -> None:
    answer = post(http, path, model=MODEL, **dict(zip(names, ("the query t", DOCUMENTS), strict=True)))
    assert answer.keys() == {"id", "object", "created", "model", "data", "usage"}
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    for index, (item, document) in enumerate(zip(answer["data"], DOCUMENTS, strict=True)):
        assert (item["index"], item["object"]) == (index, "score")
        assert item["score"] == pytest.approx(sigmoid(logits_of(reward, "the query t", document)[0]), abs=1e-6)
    count = sum(len(call.prompt_ids) for call in reward.calls)
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]) == (count, count)


def test_scores_of_tokens_in_place_of_a_head(http: httpx.Client, reward: FakeEngine) -> None:
    """Query and document are one text, which is divided otherwise than both by themselves."""
    tokenizer = reward.tokenizer
    assert tokenizer is not None
    assert tokenizer.encode_pair("the cap", "ital").ids != tokenizer.encode("the capital")
    for joins, texts in ((False, ("the cap", "ital")), (True, ("the capital",))):
        reward.embedding = EmbeddingSpec(1, "last", False, ClassSpec(["good"], "sigmoid", joins=joins))
        answer = post(http, "/score", text_1="the cap", text_2="ital")
        assert answer["data"][0]["score"] == pytest.approx(sigmoid(logits_of(reward, *texts)[0]), abs=1e-6)


@pytest.mark.parametrize("name", ["use_activation", "activation", "softmax"])
def test_raw_scores(http: httpx.Client, reward: FakeEngine, name: str) -> None:
    answer = post(http, "/score", text_1=["a", "b"], text_2=["c", "d"], **{name: False})
    for item, texts in zip(answer["data"], ["ac", "bd"], strict=True):
        assert item["score"] == pytest.approx(float(logits_of(reward, *texts)[0]), abs=1e-6)


def test_scores_of_embeddings_are_cosines(http: httpx.Client, embedding: FakeEngine) -> None:
    answer = post(http, "/score", text_1=["x", "y", "x"], text_2=["y", "y", "x"])
    x, y = logits_of(embedding, "x"), logits_of(embedding, "y")
    assert [item["score"] for item in answer["data"]] == pytest.approx([float(x @ y), 1.0, 1.0], abs=1e-6)
    assert len(embedding.calls) == 2, "each text is computed once"


@pytest.mark.parametrize("path", RERANKS)
def test_rerank(http: httpx.Client, reward: FakeEngine, path: str) -> None:
    answer = post(http, path, model=MODEL, query="q", documents=DOCUMENTS)
    assert answer.keys() == {"id", "model", "usage", "results"}
    expected = {index: sigmoid(logits_of(reward, "q", text)[0]) for index, text in enumerate(DOCUMENTS)}
    assert [one["index"] for one in answer["results"]] == sorted(expected, key=lambda index: -expected[index])
    for one in answer["results"]:
        assert one["relevance_score"] == pytest.approx(expected[one["index"]], abs=1e-6)
        assert one["document"] == {"text": DOCUMENTS[one["index"]]}
    best = post(
        http, path, query="q", documents=[{"text": text} for text in DOCUMENTS], top_n=2, return_documents=False
    )
    assert best["results"] == [{k: one[k] for k in ("index", "relevance_score")} for one in answer["results"][:2]]
    assert len(post(http, path, query="q", documents=DOCUMENTS, top_n=9)["results"]) == 3


def test_long_documents_are_cut(http: httpx.Client, reward: FakeEngine) -> None:
    tokenizer = reward.tokenizer
    assert tokenizer is not None
    answer = post(http, "/rerank", query="q", documents=["word " * 50, "hi"], max_tokens_per_doc=4)
    cut = tokenizer.decode(tokenizer.encode("word " * 50, False)[:4])
    scores = {one["index"]: one["relevance_score"] for one in answer["results"]}
    assert scores[0] == pytest.approx(sigmoid(logits_of(reward, "q", cut)[0]), abs=1e-6)
    assert answer["results"][scores[0] < scores[1]]["document"] == {"text": "word " * 50}
    post(http, "/rerank", query="q" * 5, documents=["x" * 40], truncate_prompt_tokens=9)
    assert reward.calls[-1].prompt_ids == tokenizer.encode_pair("q" * 5, "x" * 40).ids[:9]


def test_a_judge_sees_its_own_prompt(http: httpx.Client, judge: FakeEngine) -> None:
    """Which is whole where the document is cut, and is not written twice."""
    tokenizer = judge.tokenizer
    assert tokenizer is not None
    post(http, "/rerank", query="q", documents=["d"])
    text = tokenizer.decode(judge.calls[-1].prompt_ids, skip_special_tokens=False)
    assert f"<Instruct>: {DEFAULT_INSTRUCTION}\n<Query>: q\n<Document>: d" in text
    post(http, "/rerank", query="q", documents=["d" * 3000], instruct="Find it", truncate_prompt_tokens=-1)
    ids = judge.calls[-1].prompt_ids
    prompt = pair_prompt("judged", "q", "d" * 3000, "Find it")
    head, body, tail = (tokenizer.encode(part, False) for part in (prompt.head, prompt.body, prompt.tail))
    room = 2048 - len(head) - len(tail)
    assert ids == head + body[:room] + tail
    post(http, "/score", text_1=prompt.head + "q", text_2="d" + prompt.tail)
    assert judge.calls[-1].prompt_ids == tokenizer.encode(prompt.head + "qd" + prompt.tail)


def test_a_generating_reranker(serve: Callable[..., str], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of yes in yes and no, of the next token. The tiny tokenizer has none of both, but letters."""
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    no, yes = (fake_logprob(tokenizer.encode(word, False)[0]) for word in ("b", "a"))
    with httpx.Client(base_url=serve(served_model_name=("Qwen3-Reranker-tiny",)), timeout=20) as http:
        body = {"query": "q", "documents": DOCUMENTS}
        assert "no tokens" in error_of(http.post("/rerank", json=body))["message"]
        monkeypatch.setattr(scored_pairs, "JUDGE_WORDS", ("b", "a"))
        for activation, expected in ((True, sigmoid(yes - no)), (False, yes - no)):
            answer = post(http, "/rerank", **body, use_activation=activation)
            scores = [one["relevance_score"] for one in answer["results"]]
            assert scores == [pytest.approx(expected, abs=1e-6)] * 3
        assert {*RERANKS} <= {
            route["route"].removeprefix("POST ") for route in http.get("/v1/capabilities").json()["routes"]
        }
    prompt = pair_prompt("judged", "q", "two!")
    expected_ids = [
        token for part in (prompt.head, prompt.body, prompt.tail) for token in tokenizer.encode(part, False)
    ]
    assert expected_ids in [call.prompt_ids for call in engine.calls]
    assert all(call.params.max_tokens == 1 for call in engine.calls)


def test_a_template_that_tells_a_reranker(serve: Callable[..., str], engine: FakeEngine, tmp_path: Path) -> None:
    template = tmp_path / "reranker.jinja"
    template.write_text(f"Note that {JUDGE_MARK}. {{{{ messages[0].content }}}}")
    with httpx.Client(base_url=serve(chat_template=str(template)), timeout=20) as http:
        answer = http.post("/rerank", json={"query": "q", "documents": DOCUMENTS})
    assert "no tokens" in error_of(answer)["message"]


@pytest.mark.parametrize("path", SCORES)
@pytest.mark.parametrize(("query", "items"), [("q", ["a", "b"]), ([5, 6], [[7], [8, 9]])])
def test_scores_of_tokens(http: httpx.Client, engine: FakeEngine, path: str, query: Any, items: Any) -> None:
    body = {"query": query, "items": items, "label_token_ids": [5, 9, 5], "model": MODEL}
    answer = post(http, path, **body)
    assert answer.keys() == {"scores", "model", "usage", "object"}
    assert answer["object"] == "scoring"
    p, q = (float(np.exp(fake_logprob(token))) for token in (5, 9))
    assert answer["scores"] == [pytest.approx([p, q, p])] * 2
    shares = post(http, path, **body, apply_softmax=True, item_first=True)["scores"]
    assert shares == [pytest.approx([p / (2 * p + q), q / (2 * p + q), p / (2 * p + q)])] * 2
    encode = (lambda given: given) if isinstance(query, list) else engine.tokenizer.encode  # type: ignore[union-attr]
    prompts = [call.prompt_ids for call in engine.calls]
    assert prompts == [encode(query + item) for item in items] + [encode(item + query) for item in items]


def test_scores_of_many_tokens(http: httpx.Client, engine: FakeEngine) -> None:
    """More than one request can ask for."""
    labels = list(range(10, 300))
    scores = post(http, "/score", query="q", items=["a", "b"], label_token_ids=labels)["scores"]
    assert scores == [pytest.approx([np.exp(fake_logprob(label)) for label in labels])] * 2
    assert len(engine.calls) == 6


@pytest.mark.parametrize("path", CLASSIFIES)
def test_classify(http: httpx.Client, classes: FakeEngine, path: str) -> None:
    answer = post(http, path, model=MODEL, input=DOCUMENTS)
    assert answer.keys() == {"id", "object", "created", "model", "data", "usage"}
    for index, (item, text) in enumerate(zip(answer["data"], DOCUMENTS, strict=True)):
        weights = np.exp(logits_of(classes, text))
        assert item["probs"] == pytest.approx(weights / weights.sum(), abs=1e-6)
        assert (item["index"], item["num_classes"], item["label"]) == (index, 3, "abc"[int(weights.argmax())])
    raw = post(http, path, input=[5, 6], use_activation=False)["data"][0]["probs"]
    np.testing.assert_array_equal(np.float32(raw), fake_embedding([5, 6], 3))


def test_several_labels_at_once(http: httpx.Client, engine: FakeEngine) -> None:
    engine.embedding = EmbeddingSpec(2, "last", False, ClassSpec(["x", "y"], "sigmoid"))
    (item,) = post(http, "/classify", input="hi")["data"]
    assert item["probs"] == pytest.approx(sigmoid(logits_of(engine, "hi")), abs=1e-6)


def test_sglangs_form_has_logits(http: httpx.Client, classes: FakeEngine) -> None:
    one: Any = post(http, "/classify", text="Hello", rid="mine")
    np.testing.assert_array_equal(np.float32(one["embedding"]), logits_of(classes, "Hello"))
    assert one["meta_info"]["id"] == "mine"
    many: Any = post(http, "/classify", input_ids=[[5], [6, 7]])
    assert [len(item["embedding"]) for item in many] == [3, 3]
    assert post(http, "/encode", text="Hello")["embedding"] == one["embedding"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/score", {}, "text_1"),
        ("/score", {"text_1": "a"}, "text_1"),
        ("/score", {"text_1": "a", "documents": ["b"]}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/score", {"text_1": "a", "text_2": ["b", ""]}, "text_2.1"),
        ("/score", {"text_1": "a", "text_2": "b", "apply_softmax": True}, "apply_softmax"),
        ("/score", {"text_1": "a", "text_2": "b", "instruct": "c"}, "instruct"),
        ("/score", {"text_1": "a", "text_2": "b", "use_activation": True, "softmax": False}, "softmax"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/rerank", {"query": "a", "documents": ["a", ""]}, "documents.1"),
        ("/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
        ("/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ("/rerank", {"query": "a", "documents": ["a"] * (MAX_PAIRS + 1)}, "documents"),
        ("/rerank", {"query": "a", "documents": ["b" * 5000]}, "documents"),
        ("/rerank", {"query": "a", "documents": [5]}, "documents"),
        ("/classify", {}, "input"),
        ("/classify", {"input": "a", "text": "b"}, "text"),
        ("/classify", {"input": []}, "input"),
        ("/classify", {"input": ["a"] * (MAX_PAIRS + 1)}, "input"),
        ("/classify", {"text": "a", "use_activation": False}, "use_activation"),
        ("/classify", {"input": "a" * 5000}, "input"),
    ],
)
def test_wrong_fields(http: httpx.Client, reward: FakeEngine, path: str, body: dict[str, Any], param: str) -> None:
    found = error_of(http.post(path, json=body))["param"]
    assert found == param or found.startswith(f"{param}."), found
    assert reward.calls == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": "a", "items": ["b"]}, "label_token_ids"),
        ({"query": "a", "items": ["b"], "label_token_ids": []}, "label_token_ids"),
        ({"query": "a", "items": ["b"], "label_token_ids": [5, 384]}, "label_token_ids"),
        ({"query": "a", "items": ["b"], "label_token_ids": [-1]}, "label_token_ids"),
        ({"query": "a", "items": [], "label_token_ids": [5]}, "items"),
        ({"query": "a", "items": [[5]], "label_token_ids": [5]}, "items"),
        ({"items": ["b"], "label_token_ids": [5]}, "query"),
        ({"query": "a", "items": ["b"], "label_token_ids": [5], "text_1": "c"}, "text_1"),
        ({"query": "a", "items": ["b"], "label_token_ids": [5], "instruct": "c"}, "instruct"),
    ],
)
def test_wrong_labels(http: httpx.Client, engine: FakeEngine, body: dict[str, Any], param: str) -> None:
    assert error_of(http.post("/v1/score", json=body))["param"] == param
    assert engine.calls == []


BODIES = {
    **{path: {"text_1": "a", "text_2": "b"} for path in SCORES},
    **{path: {"query": "a", "documents": ["b"]} for path in RERANKS},
    **{path: {"input": "a"} for path in CLASSIFIES},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_model_that_generates(http: httpx.Client, engine: FakeEngine, path: str) -> None:
    message = error_of(http.post(path, json=BODIES[path]))["message"]
    assert "--is-embedding" in message
    assert ("no classes" in message) == (path in CLASSIFIES)
    assert engine.calls == []
    engine.state = "starting"
    assert http.post(path, json=BODIES[path]).status_code == 503


def test_other_models(http: httpx.Client, classes: FakeEngine) -> None:
    for path in (*SCORES, *RERANKS):
        assert "one label, and this one has 3" in error_of(http.post(path, json=BODIES[path]))["message"]
    assert "use /v1/classify" in error_of(http.post("/v1/embeddings", json={"input": "a"}))["message"]
    assert error_of(http.post("/encode", json={"text": "a", "dimensions": 2}))["param"] == "dimensions"
    tokens = {"query": "a", "items": ["b"], "label_token_ids": [5]}
    assert "generates no text" in error_of(http.post("/score", json=tokens))["message"]
    classes.embedding = EmbeddingSpec(SIZE, "last", normalized=True)
    for path in CLASSIFIES:
        assert "makes embeddings" in error_of(http.post(path, json=BODIES[path]))["message"]
    assert error_of(http.post("/score", json={"text_1": "a", "text_2": "b", "model": "x"}), 404)


def test_what_the_server_says_of_itself(http: httpx.Client, engine: FakeEngine) -> None:
    def told() -> tuple[dict[str, Any], set[str]]:
        found = http.get("/v1/capabilities").json()
        return found, {route["route"].removeprefix("POST ") for route in found["routes"]} & BODIES.keys()

    assert told()[1] == set(SCORES), "of tokens"
    engine.embedding = EmbeddingSpec(SIZE, "last", normalized=True)
    assert told()[1] == {*SCORES, *RERANKS}
    engine.embedding = EmbeddingSpec(1, "last", False, ClassSpec(["good"], "sigmoid"))
    found, routes = told()
    assert routes == {*BODIES}
    assert found["modalities"]["output"] == ["classes"]
    assert found["embedding"] is None
    assert found["classes"] == {"labels": ["good"], "activation": "sigmoid"}
    engine.embedding = EmbeddingSpec(2, "last", False, ClassSpec(["a", "b"], "softmax"))
    assert told()[1] == {*CLASSIFIES}


def test_a_batch(client: openai.OpenAI, reward: FakeEngine) -> None:
    body = {"model": MODEL, "query": "q", "documents": DOCUMENTS}
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/rerank", "body": body | extra}
        for n, extra in enumerate(({}, {"top_n": -1}))
    ]
    batch = wait_for(client, submit(client, jsonl(lines), endpoint="/v1/rerank").id)
    (good, bad) = both(client, batch)
    assert [len(one["response"]["body"]["results"]) for one in good] == [3]
    assert [one["response"]["body"]["error"]["param"] for one in bad] == ["top_n"]
    assert all(call.options.background for call in reward.calls)
