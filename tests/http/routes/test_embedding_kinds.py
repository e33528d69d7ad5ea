"""Prompts before texts, and vectors of other kinds: sparse ones, and one for each token."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import processors

from palladio.runtime.interface.request.embedding import ClassSpec, EmbeddingSpec
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_embedding import fake_embedding, fake_sparse, fake_token_vectors
from tests.fake_engine import FakeEngine
from tests.tiny_tokenizer import build_tiny_tokenizer

SIZE, TOKEN_SIZE = 8, 4
PROMPTS = {"query": "Find: ", "passage": "Text: ", "other": "x "}
ALL = EmbeddingSpec(SIZE, "cls", True, kinds=("dense", "sparse", "tokens"), token_size=TOKEN_SIZE)
OF_TOKENS = EmbeddingSpec(SIZE, "tokens", True, prompts=PROMPTS, kinds=("tokens",), token_size=TOKEN_SIZE)


@pytest.fixture
def prompted(engine: FakeEngine) -> FakeEngine:
    engine.embedding = EmbeddingSpec(SIZE, "mean", True, prompts=dict(PROMPTS))
    return engine


@pytest.fixture
def of_all_kinds(engine: FakeEngine) -> FakeEngine:
    engine.embedding = ALL
    return engine


@pytest.fixture
def of_tokens(engine: FakeEngine) -> FakeEngine:
    engine.embedding = OF_TOKENS
    return engine


@pytest.fixture
def typed(engine: FakeEngine, tmp_path: Any) -> None:
    """A tokenizer that marks the second text of a pair."""
    build_tiny_tokenizer(tmp_path)
    theirs = HfTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    first, last = ("<|endoftext|>", 0), ("<|im_end|>", 2)
    theirs.post_processor = processors.TemplateProcessing(
        single=f"{first[0]} $A {last[0]}",
        pair=f"{first[0]} $A {last[0]} $B:1 {last[0]}:1",
        special_tokens=[first, last],
    )
    theirs.save(str(tmp_path / "tokenizer.json"))
    engine.tokenizer = Tokenizer.load(tmp_path)


def texts_of(engine: FakeEngine) -> list[str]:
    assert engine.tokenizer is not None
    return [engine.tokenizer.decode(call.prompt_ids) for call in engine.calls]


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response) -> str | None:
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["param"]


def bodies(text: str) -> dict[str, dict[str, Any]]:
    return {
        "/v1/embeddings": {"input": text},
        "/pooling": {"input": text},
        "/v2/embed": {"texts": [text]},
        "/encode": {"text": text},
        "/embed": {"inputs": text},
        "/api/embed": {"model": "any", "input": text},
        "/api/embeddings": {"model": "any", "prompt": text},
    }


TYPED = ("/v1/embeddings", "/pooling", "/v2/embed")


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("query", "Find: "),
        ("search_query", "Find: "),
        ("document", "Text: "),
        ("search_document", "Text: "),
        ("other", "x "),
        ("clustering", ""),  # a usual kind of text, for which this model has none
    ],
)
def test_input_type_picks_the_prompt(http: httpx.Client, prompted: FakeEngine, name: str, prompt: str) -> None:
    for path in TYPED:
        assert "warnings" not in ok(http.post(path, json=bodies("hi there")[path] | {"input_type": name}))
    assert texts_of(prompted) == [f"{prompt}hi there"] * len(TYPED)


def test_the_prompt_of_text_embeddings_inference(http: httpx.Client, prompted: FakeEngine) -> None:
    ok(http.post("/embed", json={"inputs": ["a", "b"], "prompt_name": "other"}))
    assert sorted(texts_of(prompted)) == ["x a", "x b"]
    assert refused(http.post("/embed", json={"inputs": "a", "prompt_name": "document"})) == "prompt_name"
    assert refused(http.post("/embed", json={"inputs": [5, 6], "prompt_name": "other"})) == "prompt_name"


def test_the_default_prompt_stands_before_every_text(serve: Any, prompted: FakeEngine) -> None:
    prompted.embedding = EmbeddingSpec(SIZE, "mean", True, prompts=dict(PROMPTS), default_prompt="other")
    with httpx.Client(base_url=serve(served_model_name=("any",)), timeout=60) as http:
        for path, body in bodies("hi there").items():
            ok(http.post(path, json=body))
        assert texts_of(prompted) == ["x hi there"] * len(bodies(""))
        ok(http.post("/v1/embeddings", json={"input": [5, 6]}))
        assert prompted.calls[-1].prompt_ids == [5, 6], "token ids are as the client wants them"
        ok(http.post("/v1/score", json={"text_1": "one", "text_2": "two"}))
        assert sorted(texts_of(prompted)[-2:]) == ["x one", "x two"]


def test_a_model_without_prompts_warns(http: httpx.Client, of_all_kinds: FakeEngine) -> None:
    for path in TYPED:
        answer = ok(http.post(path, json=bodies("hi")[path] | {"input_type": "query"}))
        assert [one["param"] for one in answer["warnings"]] == ["input_type"]


def test_wrong_input_types(http: httpx.Client, prompted: FakeEngine) -> None:
    for path in TYPED:
        assert refused(http.post(path, json=bodies("hi")[path] | {"input_type": "nonsense"})) == "input_type"
    assert refused(http.post("/v1/embeddings", json={"input": [5], "input_type": "query"})) == "input_type"
    assert prompted.calls == []


def test_a_prompt_that_does_not_count(http: httpx.Client, prompted: FakeEngine) -> None:
    prompted.embedding = EmbeddingSpec(SIZE, "mean", True, prompts=dict(PROMPTS), includes_prompt=False)
    ok(http.post("/v1/embeddings", json={"input": ["hi there", "a"], "input_type": "query"}))
    assert prompted.tokenizer is not None
    assert {call.pooling.num_skipped for call in prompted.calls} == {len(prompted.tokenizer.encode("Find: "))}
    ok(http.post("/v1/embeddings", json={"input": "hi there"}))
    assert prompted.calls[-1].pooling.num_skipped == 0


def test_texts_in_lower_case(http: httpx.Client, engine: FakeEngine) -> None:
    engine.embedding = EmbeddingSpec(SIZE, "mean", True, prompts=dict(PROMPTS), lowers_case=True)
    ok(http.post("/v1/embeddings", json={"input": "Hello THERE", "input_type": "query"}))
    assert texts_of(engine) == ["find: hello there"]


def test_several_kinds_at_once(http: httpx.Client, of_all_kinds: FakeEngine) -> None:
    kinds = ["float", "base64", "ubinary", "sparse", "tokens"]
    answer = ok(http.post("/v1/embeddings", json={"input": [[5, 6, 5], [7]], "embedding_types": kinds}))
    for item, ids in zip(answer["data"], ([5, 6, 5], [7]), strict=True):
        found, dense = item["embedding"], fake_embedding(ids, SIZE)
        assert list(found) == kinds
        np.testing.assert_array_equal(np.float32(found["float"]), dense)
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(found["base64"]), "<f4"), dense)
        sparse = fake_sparse(ids)
        assert found["sparse"] == {"indices": sparse.token_ids, "values": sparse.weights}
        np.testing.assert_array_equal(np.float32(found["tokens"]), fake_token_vectors(ids, TOKEN_SIZE))
    assert {call.pooling.kinds for call in of_all_kinds.calls} == {("dense", "sparse", "tokens")}
    cohere = ok(http.post("/v2/embed", json={"texts": ["a"], "embedding_types": ["sparse"]}))
    assert list(cohere["embeddings"]) == ["sparse"]
    assert of_all_kinds.calls[-1].pooling.kinds == ("sparse",)


def test_kinds_by_their_own_routes(http: httpx.Client, of_all_kinds: FakeEngine) -> None:
    sparse = ok(http.post("/embed_sparse", json={"inputs": [[5, 6, 5], [7]]}))
    assert sparse == [[{"index": 5, "value": 2.0}, {"index": 6, "value": 1.0}], [{"index": 7, "value": 1.0}]]
    rows = ok(http.post("/embed_all", json={"inputs": [5, 6]}))
    np.testing.assert_array_equal(np.float32(rows), [fake_token_vectors([5, 6], TOKEN_SIZE)])
    pooled = ok(http.post("/pooling", json={"input": [5, 6], "task": "token_embed"}))
    np.testing.assert_array_equal(np.float32(pooled["data"][0]["data"]), fake_token_vectors([5, 6], TOKEN_SIZE))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": "a", "embedding_types": ["sparse"]}, "embedding_types"),
        ("/v1/embeddings", {"input": "a", "embedding_types": []}, "embedding_types"),
        ("/v1/embeddings", {"input": "a", "embedding_types": ["int4"]}, "embedding_types.0"),
        ("/v1/embeddings", {"input": "a", "embedding_types": ["float"], "encoding_format": "float"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "embedding_types": ["binary"], "dimensions": 4}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "truncation_side": "middle"}, "truncation_side"),
        ("/embed_sparse", {"inputs": "a"}, "embedding_types"),
        ("/embed_all", {"inputs": "a"}, "embedding_types"),
        ("/pooling", {"input": "a", "task": "token_embed"}, "task"),
        ("/embed", {"inputs": []}, "inputs"),
        ("/embed", {"inputs": ["a"] * 2049}, "inputs"),
        ("/embed", {"inputs": {"text": "a"}}, "inputs"),
        ("/embed", {"inputs": "a", "normalize": False}, "normalize"),
        ("/embed", {"inputs": "a", "dimensions": SIZE + 1}, "dimensions"),
        ("/embed", {"inputs": [5] * 3000}, "inputs"),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, "truncation_direction"),
        ("/predict", {"inputs": "a"}, None),
    ],
)
def test_what_is_refused(http: httpx.Client, prompted: FakeEngine, path: str, body: dict[str, Any], param: str) -> None:
    assert refused(http.post(path, json=body)) == param
    assert prompted.calls == []


def test_a_model_of_tokens_alone(http: httpx.Client, of_tokens: FakeEngine) -> None:
    """Its vectors have to be asked for; pairs are scored by MaxSim, with the marks of queries and documents."""
    assert refused(http.post("/v1/embeddings", json={"input": "a"})) == "embedding_types"
    documents = ["one two", "three"]
    answer = ok(http.post("/rerank", json={"query": "two", "documents": documents}))
    assert sorted(texts_of(of_tokens)) == ["Find: two", "Text: one two", "Text: three"]
    tokenizer = of_tokens.tokenizer
    assert tokenizer is not None
    query, *others = (
        fake_token_vectors(tokenizer.encode(text), TOKEN_SIZE) for text in ("Find: two", "Text: one two", "Text: three")
    )
    expected = [float((query @ other.T).max(axis=1).sum()) for other in others]
    assert {one["index"]: one["relevance_score"] for one in answer["results"]} == {
        index: pytest.approx(score, rel=1e-5) for index, score in enumerate(expected)
    }
    scored = ok(http.post("/score", json={"text_1": "two", "text_2": documents}))["data"]
    assert [one["score"] for one in scored] == pytest.approx(expected, rel=1e-5)


def test_a_model_of_weights_alone(http: httpx.Client, engine: FakeEngine) -> None:
    engine.embedding = EmbeddingSpec(SIZE, "last", False, kinds=("sparse",))
    assert http.post("/score", json={"text_1": "a", "text_2": "b"}).status_code == 400
    assert http.post("/pooling", json={"input": "a"}).status_code == 400
    assert ok(http.post("/v1/embeddings", json={"input": [5], "embedding_types": ["sparse"]}))["data"][0][
        "embedding"
    ] == {"sparse": {"indices": [5], "values": [1.0]}}


def test_what_the_server_says_of_its_kinds(http: httpx.Client, of_tokens: FakeEngine) -> None:
    told = ok(http.get("/v1/capabilities"))
    assert (told["embedding"]["kinds"], told["embedding"]["prompts"]) == (["tokens"], list(PROMPTS))
    routes = {route["route"] for route in told["routes"]}
    assert "POST /embed_all" in routes
    assert not {"POST /embed_sparse", "POST /predict", "POST /generate"} & routes


ENCODER = EmbeddingSpec(1, "cls", False, ClassSpec(["good"], "sigmoid"), is_encoder=True)


def test_tokens_of_a_pair_have_types(http: httpx.Client, engine: FakeEngine, typed: None) -> None:
    """On an encoder, whose model knows the texts of a pair by them; a decoder's has no use for them."""
    assert engine.tokenizer is not None
    found = engine.tokenizer.encode_pair("the query", "a document")
    assert set(found.token_types) == {0, 1}
    for spec, types in ((ENCODER, found.token_types), (EmbeddingSpec(1, "last", False, ENCODER.classes), b"")):
        engine.embedding = spec
        for path, body in (
            ("/rerank", {"query": "the query", "documents": ["a document"]}),
            ("/score", {"text_1": "the query", "text_2": "a document"}),
            ("/predict", {"inputs": ["the query", "a document"]}),
        ):
            ok(http.post(path, json=body))
            assert (engine.calls[-1].prompt_ids, engine.calls[-1].pooling.token_types) == (found.ids, types)
    engine.embedding = ENCODER
    ok(http.post("/rerank", json={"query": "the query", "documents": ["a document " * 9], "truncate_prompt_tokens": 9}))
    call = engine.calls[-1]
    assert len(call.prompt_ids) == len(call.pooling.token_types) == 9
    ok(http.post("/classify", json={"input": "the query"}))
    assert engine.calls[-1].pooling.token_types == b""


def test_an_empty_text_is_its_special_tokens(http: httpx.Client, engine: FakeEngine, typed: None) -> None:
    engine.embedding = EmbeddingSpec(SIZE, "cls", True, is_encoder=True)
    ok(http.post("/v1/embeddings", json={"input": ["", "a"]}))
    assert [0, 2] in [call.prompt_ids for call in engine.calls]


def test_an_encoders_texts_lose_their_end(serve: Any, engine: FakeEngine, typed: None) -> None:
    """As in sentence-transformers, unless the client wants the other side; their special tokens stay."""
    assert engine.tokenizer is not None
    text = "one two three four five"
    ids = engine.tokenizer.encode(text, False)
    cases: tuple[tuple[bool, str | None, list[int]], ...] = (
        (True, None, ids[:4]),
        (True, "left", ids[-4:]),
        (True, "right", ids[:4]),
        (False, None, ids[-4:]),
        (False, "right", ids[:4]),
    )
    url = serve(served_model_name=("an-encoder",))  # whose app has seen no other tokenizer
    with httpx.Client(base_url=url, timeout=60) as http:
        for is_encoder, side, kept in cases:
            engine.embedding = EmbeddingSpec(SIZE, "cls", True, is_encoder=is_encoder)
            body = {"input": text, "truncate_prompt_tokens": 6} | ({} if side is None else {"truncation_side": side})
            ok(http.post("/v1/embeddings", json=body))
            assert engine.calls[-1].prompt_ids == [0, *kept, 2]
