"""Pairs of texts of an offline engine as requests, and their scores out of the engine's outputs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from palladio.runtime.front.offline.offline_embeddings import encode_texts
from palladio.runtime.front.offline.pair_scores import PairRequests, embedded_pairs, labelled_pairs
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.embedding import ClassSpec, EmbeddingSpec
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_embedding import add_vectors, fake_embedding, fake_token_vectors
from tests.tiny_tokenizer import build_tiny_tokenizer

DENSE = EmbeddingSpec(6, "mean", True)
LABEL = EmbeddingSpec(1, "last", False, ClassSpec(["good"], "sigmoid"))
PROMPTS = {"query": "Q: ", "document": "D: "}
TOKENS = EmbeddingSpec(6, "tokens", True, prompts=PROMPTS, kinds=("tokens",), token_size=4)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def engine_of(spec: EmbeddingSpec | None, tokenizer: Tokenizer | None) -> Any:
    return SimpleNamespace(info=SimpleNamespace(embedding=spec), tokenizer=tokenizer)


def scores_of(pairs: PairRequests) -> list[float]:
    outputs = []
    for request in pairs.requests:
        output = RequestOutput(request.request_id, 0, "", [], None, None, None, len(request.prompt_ids), 0)
        add_vectors(output, request.prompt_ids, request.pooling.kinds, pairs.spec)
        outputs.append(output)
    return pairs.scores(outputs)


def test_the_cosine_of_both_vectors(tokenizer: Tokenizer) -> None:
    pairs = embedded_pairs(engine_of(DENSE, tokenizer), "one", ["two", "one", "three"])
    assert len(pairs.requests) == 3, "each text is computed once"
    one, two, three = (fake_embedding(tokenizer.encode(text), 6) for text in ("one", "two", "three"))
    assert scores_of(pairs) == pytest.approx([one @ two, 1.0, one @ three], abs=1e-6)


def test_the_probability_of_a_label(tokenizer: Tokenizer) -> None:
    """Of both texts in one prompt, each tokenized by itself."""
    engine = engine_of(LABEL, tokenizer)
    pairs = embedded_pairs(engine, ["the cap", "b"], ["ital", "c"])
    assert pairs.requests[0].prompt_ids == tokenizer.encode_pair("the cap", "ital").ids
    logits = [fake_embedding(request.prompt_ids, 1)[0] for request in pairs.requests]
    assert scores_of(pairs) == pytest.approx([1 / (1 + np.exp(-logit)) for logit in logits], abs=1e-6)
    same = labelled_pairs(engine, [("the cap", "ital"), ("b", "c")], None)
    assert [one.prompt_ids for one in same.requests] == [one.prompt_ids for one in pairs.requests]


def test_the_largest_products_of_tokens(tokenizer: Tokenizer) -> None:
    pairs = embedded_pairs(engine_of(TOKENS, tokenizer), "two", "one two")
    query, document = (fake_token_vectors(tokenizer.encode(text), 4) for text in ("Q: two", "D: one two"))
    assert scores_of(pairs) == pytest.approx([(query @ document.T).max(axis=1).sum()], rel=1e-5)


def test_what_is_refused(tokenizer: Tokenizer) -> None:
    several = EmbeddingSpec(2, "last", False, ClassSpec(["a", "b"], "softmax"))
    sparse = EmbeddingSpec(6, "last", False, kinds=("sparse",))
    for spec in (several, sparse):
        with pytest.raises(InvalidRequestError):
            embedded_pairs(engine_of(spec, tokenizer), "a", "b")
    with pytest.raises(InvalidRequestError, match="as many as items") as error:
        embedded_pairs(engine_of(DENSE, tokenizer), ["a", "b"], ["a", "b", "c"])
    assert error.value.param == "query"
    for query, items in (("", ["a"]), ("a", [""]), ("a", [5])):
        with pytest.raises(InvalidRequestError):
            embedded_pairs(engine_of(DENSE, tokenizer), query, items)  # type: ignore[arg-type]
    for spec in (None, DENSE, several):
        with pytest.raises(InvalidRequestError):
            labelled_pairs(engine_of(spec, tokenizer), [("a", "b")], None)
    for spec in (DENSE, LABEL):
        with pytest.raises(InvalidRequestError, match="tokenizer"):
            embedded_pairs(engine_of(spec, None), "a", "b")


def test_prompts_before_texts(tokenizer: Tokenizer) -> None:
    spec = EmbeddingSpec(6, "mean", True, prompts=PROMPTS, default_prompt="document", lowers_case=True)
    for name, text in (("query", "q: hello"), ("search_document", "d: hello"), (None, "d: hello")):
        assert [one.ids for one in encode_texts(tokenizer, spec, ["HELLO"], name)] == [tokenizer.encode(text)]
    skipping = EmbeddingSpec(6, "mean", True, prompts=PROMPTS, includes_prompt=False)
    (found,) = encode_texts(tokenizer, skipping, ["hello"], "query")
    assert found.num_skipped == len(tokenizer.encode("Q: "))
    for wrong in (spec, DENSE):
        with pytest.raises(InvalidRequestError) as error:
            encode_texts(tokenizer, wrong, ["hello"], "nonsense")
        assert error.value.param == "input_type"
