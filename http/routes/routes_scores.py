"""POST /v1/score and /v1/rerank, and their other paths: scores of pairs of texts, and of next tokens."""

import time
from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import Response

from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.embedded_texts import run_requests, usage_of
from palladio.http.generation.params import request_name
from palladio.http.generation.prompts import MAX_SAMPLES, check_paired_size, encode_prompt, numbered_ids
from palladio.http.generation.scored_pairs import MAX_PAIRS, PairScorer
from palladio.http.prompts.text_encoding import Truncation, run_encoding
from palladio.http.wire.fields import FieldMap
from palladio.http.wire.protocol_scores import RerankRequest, RerankText, ScoreRequest
from palladio.runtime.front.requests.token_scores import (
    check_labels,
    next_token_requests,
    next_token_scores,
    num_requests,
)
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.sampling_params import MAX_LOGPROB_IDS

_PAIR_FIELDS = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))
MAX_SCORES = MAX_SAMPLES * MAX_LOGPROB_IDS  # labels × items of one request
SCORE_SIZE = 8  # characters that a score counts for
_OF_PAIRS = ("use_activation", "activation", "softmax", "instruct")


async def _score(context: Context, call: Call, body: ScoreRequest) -> Response:
    model = context.names.answering(body.model)
    if body.label_token_ids is not None or body.query is not None:
        return await _score_tokens(context, call, body, model)
    for field in ("apply_softmax", "item_first"):
        if vars(body)[field] is not None:
            raise InvalidRequestError(f"{field} can only be used with label_token_ids", param=field)
    pairs, param = _given_pairs(body)
    scorer = PairScorer(context=context, call=call, body=body, param=param, instruction=body.instruct)
    found = await scorer.score(pairs)
    return _json(
        {
            "id": f"score-{request_name(body, call.request_id)}",
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(found.scores)],
            "usage": found.usage,
            **call.warnings.fields(),
        }
    )


def _given_pairs(body: ScoreRequest) -> tuple[list[tuple[str, str]], str]:
    """Return the pairs, and the client's name for the second texts. A single text is paired with each of several.

    Raises:
        InvalidRequestError: they are not given under two names that belong together, one is empty, or they are not as
            many.
    """
    names = dict.fromkeys(name for pair in _PAIR_FIELDS for name in pair)
    given = {name: value for name in names if (value := vars(body)[name]) is not None}
    if tuple(given) not in _PAIR_FIELDS:
        known = ", ".join(" and ".join(pair) for pair in _PAIR_FIELDS)
        said = f"got {' and '.join(given)}" if given else "got none of them"
        raise InvalidRequestError(
            f"give the texts of pairs as one of {known}, or query, items and label_token_ids; {said}",
            param=next(iter(given), "text_1"),
        )
    (first, ones), (second, others) = ((name, _texts(name, value)) for name, value in given.items())
    if len(ones) == 1:
        ones *= len(others)
    if len(ones) != len(others):
        message = f"{first} must be one text, or as many as {second} ({len(others)}); got {len(ones)}"
        raise InvalidRequestError(message, param=first)
    return list(zip(ones, others, strict=True)), second


def _texts(name: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not texts or not all(isinstance(text, str) for text in texts):
        message = f"{name} must be a text or a list of texts" if texts else f"{name} must not be empty"
        raise InvalidRequestError(message, param=name)
    _check_none_empty(name, texts)
    return list(texts)


def _check_none_empty(name: str, texts: Sequence[str]) -> None:
    for index, text in enumerate(texts):
        if not text:
            raise InvalidRequestError(f"{name}.{index} must not be empty", param=f"{name}.{index}")


async def _score_tokens(context: Context, call: Call, body: ScoreRequest, model: str) -> Response:
    """SGLang's: how likely each label comes next after the query and an item."""
    context.require_generation()
    labels = body.label_token_ids
    if labels is None:
        message = "query and items need label_token_ids; for scores of pairs of texts give text_1 and text_2"
        raise InvalidRequestError(message, param="label_token_ids")
    for name in (*_OF_PAIRS, *(name for pair in _PAIR_FIELDS for name in pair if name != "items")):
        if vars(body)[name] is not None:
            raise InvalidRequestError(f"{name} has no effect with label_token_ids", param=name)
    query, items = _query_and_items(body)
    _check_num_scores(len(items) * len(labels))
    check_labels(labels, context.engine.info.vocab_size)
    renamed = FieldMap(paths={"prompt": "items"})
    encoder, truncation = context.encoder, context.facts.truncation(body.truncate_prompt_tokens, 1)
    with_special = body.add_special_tokens is not False

    def encode() -> list[list[int]]:
        """Encode one prompt after the other: a long query with each of many items may not fit in memory."""
        texts_or_ids = ((item + query if body.item_first else query + item) for item in items)
        return [encode_prompt(encoder, prompt, with_special, truncation) for prompt in texts_or_ids]

    size = len(items) * len(query) + sum(map(len, items))
    check_paired_size(size, "items")
    with renamed.renaming():
        prompts = await run_encoding(encode, size)
        ids = numbered_ids(request_name(body, call.request_id), num_requests(len(prompts), labels))
        options = call.options(body)
        requests = next_token_requests(ids, prompts, labels, received=time.time(), options=options)
    outputs = await run_requests(context, call, body, requests, renamed)

    def write() -> Response:
        scores = next_token_scores(outputs, len(prompts), labels, apply_softmax=body.apply_softmax is True)
        content = {"scores": scores, "model": model, "usage": usage_of(outputs), "object": "scoring"}
        return _json(content | call.warnings.fields())

    return await run_encoding(write, SCORE_SIZE * len(prompts) * len(labels))


def _check_num_scores(count: int) -> None:
    if count > MAX_SCORES:
        message = "{param} × {items} ask for {count} scores, over the limit of {most}: send fewer of either"
        fields = {"items": "items"}
        raise InvalidRequestError.of(message, param="label_token_ids", fields=fields, count=count, most=MAX_SCORES)


def _query_and_items(body: ScoreRequest) -> tuple[Any, list[Any]]:
    """Return the query and the items, which are all texts or all token ids."""
    query, items = body.query, body.items
    for name, value in (("query", query), ("items", items)):
        if value is None or value == []:
            raise InvalidRequestError(f"{name} must be given with label_token_ids, and not be empty", param=name)
    items = [items] if isinstance(items, str) else items
    assert items is not None
    if len(items) > MAX_PAIRS:
        raise InvalidRequestError(f"items takes at most {MAX_PAIRS} entries, got {len(items)}", param="items")
    if any(isinstance(item, str) != isinstance(query, str) for item in items):
        raise InvalidRequestError("query and items must both be texts, or both be token ids", param="items")
    if not query and not all(items):
        raise InvalidRequestError("query and item must not both be empty", param="query")
    return query, list(items)


async def _rerank(context: Context, call: Call, body: RerankRequest) -> Response:
    """The form of Jina and Cohere, which vLLM has too; with `texts` that of Text Embeddings Inference."""
    model = context.names.answering(body.model)
    documents, param = _documents(body)
    if not body.query:
        raise InvalidRequestError("query must not be empty", param="query")
    _check_none_empty(param, documents)
    top_n = body.top_n or len(documents)
    if top_n < 0:
        raise InvalidRequestError(f"top_n must be at least 1 (or 0 for all), got {top_n}", param="top_n")
    cut = await _cut_documents(context, documents, body.max_tokens_per_doc)
    asked = body if body.texts is None else _as_documents(body)
    scorer = PairScorer(context=context, call=call, body=asked, param=param, instruction=body.instruct)
    found = await scorer.score([(body.query, document) for document in cut])
    best = sorted(range(len(documents)), key=lambda index: -found.scores[index])[:top_n]
    if body.texts is not None:
        shown = {index: {"text": documents[index]} if body.return_text else {} for index in best}
        return _json([{"index": index, "score": found.scores[index], **shown[index]} for index in best])
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": found.scores[index]} for index in best]
    if body.return_documents is not False:
        for result in results:
            result["document"] = {"text": documents[result["index"]]}
    name = f"rerank-{request_name(body, call.request_id)}"
    return _json({"id": name, "model": model, "usage": found.usage, "results": results, **call.warnings.fields()})


_OF_TEXTS = ("raw_scores", "return_text", "truncate")
_OF_DOCUMENTS = ("top_n", "return_documents", "max_tokens_per_doc", "use_activation", "activation", "softmax")


def _documents(body: RerankRequest) -> tuple[list[str], str]:
    """Return the texts to be sorted, and the client's name for them.

    Raises:
        InvalidRequestError: there are none, they are given under both names, or with fields of the other form.
    """
    if body.documents is None and body.texts is None:
        raise InvalidRequestError("give documents, or texts as Text Embeddings Inference has them", param="documents")
    if body.documents is not None and body.texts is not None:
        raise InvalidRequestError("documents and texts must not both be given", param="texts")
    param, others = ("documents", _OF_TEXTS) if body.texts is None else ("texts", _OF_DOCUMENTS)
    for name in others:
        if vars(body)[name] is not None:
            raise InvalidRequestError(f"{name} has no effect with {param}", param=name)
    given = body.texts if body.documents is None else body.documents
    documents = [text.text if isinstance(text, RerankText) else text for text in given or ()]
    if not documents:
        raise InvalidRequestError(f"{param} must not be empty", param=param)
    return documents, param


def _as_documents(body: RerankRequest) -> RerankRequest:
    """The fields of Text Embeddings Inference's form by the names of the other."""
    cut = -1 if body.truncate and body.truncate_prompt_tokens is None else body.truncate_prompt_tokens
    return body.model_copy(update={"use_activation": not body.raw_scores, "truncate_prompt_tokens": cut})


async def _cut_documents(context: Context, documents: list[str], limit: int | None) -> list[str]:
    """Cut documents to their first tokens.

    Args:
        limit: tokens of each document; None: all.
    """
    if limit is None:
        return documents
    if limit < 1:
        raise InvalidRequestError(f"max_tokens_per_doc must be at least 1, got {limit}", param="max_tokens_per_doc")
    tokenizer, encoder = context.facts.tokenizer, context.encoder
    truncation = Truncation(limit + 1, keeps_end=False)  # one more shows that there is more

    def cut(document: str) -> str:
        ids = encoder.encode(document, False, truncation)
        return document if len(ids) <= limit else tokenizer.decode(ids[:limit])

    return await run_encoding(lambda: [cut(document) for document in documents], sum(map(len, documents)))


def _json(content: object) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


SCORE = Endpoint("/v1/score", ScoreRequest, _score)
RERANK = Endpoint("/v1/rerank", RerankRequest, _rerank)
PAIR_ENDPOINTS = (
    SCORE,
    RERANK,
    Endpoint("/score", ScoreRequest, _score),
    Endpoint("/rerank", RerankRequest, _rerank),
    Endpoint("/v2/rerank", RerankRequest, _rerank),
)
