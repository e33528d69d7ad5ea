"""SGLang's `score`: how likely tokens come next after a query and an item.

The next token's probability is the log-probability of a prompt that ends with it. So a score takes no more from the
engine than /generate does, and is exact for any token, likely or not.
"""

import asyncio
import contextlib
import math
import operator
import time
import uuid
from collections.abc import Sequence
from typing import Any

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.engine_protocol import EngineClient
from palladio.runtime.front.loop_thread import LoopThread, all_or_none
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.generation_request import GenerationRequest, SamplingParams

_PARAMS = SamplingParams(max_tokens=0, prompt_logprobs=0, temperature=0.0)


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

        Each pair of item and label is one prompt, which is computed in full.

        Args:
            query: a text, or token ids; items: a text, a list of texts, or a list of token ids each, as the query is.
            label_token_ids: the tokens.
            apply_softmax: scores of an item add up to 1; else they are the tokens' probabilities.
            item_first: the item stands before the query.

        Returns:
            For each item a list with each token's score, from 0 to 1.

        Raises:
            InvalidRequestError: a value is wrong, or this engine makes embeddings.
            EngineDeadError: the engine failed or was shut down.
        """
        requests = _requests(self._engine, query, items, label_token_ids, item_first=item_first)
        return self._run(self._score(requests, apply_softmax))

    async def async_score(
        self,
        query: str | Sequence[int] | None = None,
        items: str | Sequence[str] | Sequence[Sequence[int]] | None = None,
        label_token_ids: Sequence[int] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> list[list[float]]:
        """As `score`, to be awaited in an event loop."""
        requests = _requests(self._engine, query, items, label_token_ids, item_first=item_first)
        return await asyncio.wrap_future(self._submit(self._score(requests, apply_softmax)))

    async def _score(self, requests: list[list[GenerationRequest]], apply_softmax: bool) -> list[list[float]]:
        tasks = [[asyncio.create_task(self._logprob(request)) for request in row] for row in requests]
        await all_or_none([task for row in tasks for task in row])
        return [_scores([task.result() for task in row], apply_softmax) for row in tasks]

    async def _logprob(self, request: GenerationRequest) -> float:
        """Of the prompt's last token."""
        async with contextlib.aclosing(self._engine.generate(request)) as outputs:
            found = [entry.logprob async for output in outputs for entry in output.prompt_logprobs or ()]
        logprob = found[-1]
        assert logprob is not None, "only the first token has none, and no prompt is that short"
        return logprob


def _scores(logprobs: Sequence[float], apply_softmax: bool) -> list[float]:
    if not apply_softmax:
        return [math.exp(logprob) for logprob in logprobs]
    most = max(logprobs)
    weights = [math.exp(logprob - most) for logprob in logprobs]
    return [weight / sum(weights) for weight in weights]


def _requests(
    engine: EngineClient,
    query: str | Sequence[int] | None,
    items: str | Sequence[str] | Sequence[Sequence[int]] | None,
    label_token_ids: Sequence[int] | None,
    *,
    item_first: bool,
) -> list[list[GenerationRequest]]:
    """For each item a request for each label.

    Raises:
        InvalidRequestError: a value is wrong or missing, or the engine makes embeddings.
    """
    if engine.info.embedding is not None:
        raise InvalidRequestError("Engine.score needs a model that generates: start the engine without is_embedding")
    if not label_token_ids:
        raise InvalidRequestError("label_token_ids must be a list of token ids", param="label_token_ids")
    vocab_size = engine.info.vocab_size
    labels = _ids("label_token_ids", label_token_ids)
    for label in labels:
        if not 0 <= label < vocab_size:
            message = f"label_token_ids: {label} is not a token id of this model (0 … {vocab_size - 1})"
            raise InvalidRequestError(message, param="label_token_ids")
    now = time.time()
    return [
        [GenerationRequest(uuid.uuid4().hex, [*prompt, label], _PARAMS, received=now) for label in labels]
        for prompt in _prompts(engine, query, items, item_first)
    ]


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
