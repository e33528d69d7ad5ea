"""SGLang's `score`: how likely tokens come next after a query and an item.

Each prompt generates one token, which gives the log-probabilities of the labels. So a score takes no more
from the engine than /generate does, and is exact for any token, likely or not.
"""

import asyncio
import contextlib
import operator
import time
import uuid
from collections.abc import Sequence
from typing import Any

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.offline.loop_thread import LoopThread, all_or_none
from palladio.runtime.front.offline.pair_scores import PairRequests, embedded_pairs, labelled_pairs
from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.front.requests.sglang_results import encode_results
from palladio.runtime.front.requests.token_scores import (
    check_labels,
    next_token_requests,
    next_token_scores,
    num_requests,
)
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.embedding import embedded
from palladio.runtime.interface.request.generation_request import GenerationRequest


class Scoring(LoopThread):
    """The part of `Engine` that scores."""

    _engine: AsyncEngine

    def score(
        self,
        query: str | Sequence[int] | None = None,
        items: str | Sequence[str] | Sequence[Sequence[int]] | None = None,
        label_token_ids: Sequence[int] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> list[list[float]]:
        """How likely each of these tokens comes next after the query and an item, as SGLang's `score`.

            query, items = "Is this city in France? ", ["Paris. Answer:", "London. Answer:"]
            engine.score(query, items, label_token_ids=[yes, no])  # [[0.7, 0.1], [0.2, 0.6]]

        Each item is one prompt, whose beginning may be cached.

        An engine of `is_embedding=True` scores the query with each item, without `label_token_ids`: a reranker by its
        label's probability, a model of embeddings by their cosine. Each item then has one score.

        Args:
            query: a text, or token ids; with `is_embedding=True` also a text for each item.
            items: a text, a list of texts, or a list of token ids each, as the query is.
            label_token_ids: the tokens.
            apply_softmax: scores of an item add up to 1; else they are the tokens' probabilities.
            item_first: the item stands before the query.

        Returns:
            For each item a list with each token's score, from 0 to 1; or with its only score.

        Raises:
            InvalidRequestError: a value is wrong, or this engine does not do what is asked for.
            EngineDeadError: the engine failed or was shut down.
        """
        if label_token_ids is None and self._engine.info.embedding is not None:
            pairs = _pairs(self._engine, query, items, apply_softmax or item_first)
            return [[score] for score in self._run(self._score_pairs(pairs))] if pairs.places else []
        labels = _labels(self._engine, label_token_ids)
        prompts = _prompts(self._engine, query, items, item_first)
        return self._run(self._score(prompts, labels, apply_softmax)) if prompts else []

    async def async_score(
        self,
        query: str | Sequence[int] | None = None,
        items: str | Sequence[str] | Sequence[Sequence[int]] | None = None,
        label_token_ids: Sequence[int] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> list[list[float]]:
        """Do what `score` does, to be awaited in an event loop."""
        if label_token_ids is None and self._engine.info.embedding is not None:
            pairs = _pairs(self._engine, query, items, apply_softmax or item_first)
            scores = await asyncio.wrap_future(self._submit(self._score_pairs(pairs))) if pairs.places else []
            return [[score] for score in scores]
        labels = _labels(self._engine, label_token_ids)
        prompts = _prompts(self._engine, query, items, item_first)
        if not prompts:
            return []
        return await asyncio.wrap_future(self._submit(self._score(prompts, labels, apply_softmax)))

    def rerank(self, prompt: Sequence[Sequence[str]], instruct: str | None = None) -> list[dict[str, Any]]:
        """How well each document meets its query, as SGLang's `rerank`; the model must have one label.

        Args:
            prompt: pairs of a query and a document.
            instruct: what Qwen3-Reranker looks for; None: passages that answer a web search.

        Returns:
            For each pair, in order, its score as "embedding", and "meta_info".

        Raises:
            InvalidRequestError: a value is wrong, or the model does not score pairs.
            EngineDeadError: the engine failed or was shut down.
        """
        pairs = labelled_pairs(self._engine, prompt, instruct)
        return self._run(self._rerank(pairs)) if pairs.places else []

    async def _rerank(self, pairs: PairRequests) -> list[dict[str, Any]]:
        ends = await self._ends(pairs)
        names = [end.request_id for end in ends]
        return encode_results(names, ends, pairs.scores(ends), self._engine.model.version)

    async def _score_pairs(self, pairs: PairRequests) -> list[float]:
        return pairs.scores(await self._ends(pairs))

    async def _ends(self, pairs: PairRequests) -> list[RequestOutput]:
        """The outputs of the pairs' requests, in order."""
        tasks = [asyncio.create_task(self._answer(request)) for request in pairs.requests]
        await all_or_none(tasks)
        return [embedded(task.result()) for task in tasks]

    async def _score(self, prompts: list[list[int]], labels: list[int], apply_softmax: bool) -> list[list[float]]:
        names = [uuid.uuid4().hex for _ in range(num_requests(len(prompts), labels))]
        requests = next_token_requests(names, prompts, labels, received=time.time())
        tasks = [asyncio.create_task(self._answer(request)) for request in requests]
        await all_or_none(tasks)
        outputs = [task.result() for task in tasks]
        return next_token_scores(outputs, len(prompts), labels, apply_softmax=apply_softmax)

    async def _answer(self, request: GenerationRequest) -> RequestOutput:
        """The whole output."""
        async with contextlib.aclosing(self._engine.generate(request)) as outputs:
            whole = await anext(outputs)
            async for output in outputs:
                whole.extend(output)
        return whole


def _pairs(engine: EngineClient, query: Any, items: Any, has_others: bool) -> PairRequests:
    """
    Raises:
        InvalidRequestError: the texts are wrong, or arguments for labels are given with them.
    """
    if has_others:
        raise InvalidRequestError("apply_softmax and item_first need label_token_ids", param="apply_softmax")
    if query is None or items is None:
        raise InvalidRequestError("query and items must both be given", param="items" if query else "query")
    return embedded_pairs(engine, query, items)


def _labels(engine: EngineClient, label_token_ids: Sequence[int] | None) -> list[int]:
    """
    Raises:
        InvalidRequestError: one is wrong, there are none, or the engine makes embeddings.
    """
    if engine.info.embedding is not None:
        message = "Engine.score with label_token_ids needs a model that generates: leave is_embedding out"
        raise InvalidRequestError(message)
    labels = _ids("label_token_ids", label_token_ids or ())
    check_labels(labels, engine.info.vocab_size)
    return labels


def _prompts(engine: EngineClient, query: object, items: object, item_first: bool) -> list[list[int]]:
    if isinstance(query, str) and isinstance(items, str):
        items = [items]
    if not isinstance(items, list | tuple) or query is None:
        raise InvalidRequestError("query and items must both be given", param="items" if query else "query")
    if isinstance(query, str) and all(isinstance(item, str) for item in items):
        if engine.tokenizer is None:
            raise InvalidRequestError("without a tokenizer, query and items must be token ids", param="query")
        texts = [item + query if item_first else query + item for item in items]
        prompts = [engine.tokenizer.encode(text) for text in texts]
    elif isinstance(query, str) or any(isinstance(item, str) for item in items):
        raise InvalidRequestError("query and items must both be texts, or both be token ids", param="items")
    else:
        first, rows = _ids("query", query), [_ids("items", item) for item in items]
        prompts = [row + first if item_first else first + row for row in rows]
    if not all(prompts):
        raise InvalidRequestError("query and item must not both be empty", param="query")
    return prompts


def _ids(name: str, values: Any) -> list[int]:
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise InvalidRequestError.of("{param}: token ids must be a list of integers", param=name) from None
