"""Embeddings of an offline engine."""

import asyncio
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from palladio.runtime.front.offline.offline_runs import OfflineRuns, Result
from palladio.runtime.front.requests.sglang_results import encode_results
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.embedding import (
    EMBEDDING_PARAMS,
    EmbeddingSpec,
    check_dimensions,
    embedded,
    read_token_vectors,
    read_vectors,
)
from palladio.runtime.interface.request.foreign_fields import refuse_keywords
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.pooling_params import EncodedText, VectorKind
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

VectorType = Literal["float", "sparse", "tokens"]
_KINDS: Mapping[str, VectorKind] = MappingProxyType({"float": "dense", "sparse": "sparse", "tokens": "tokens"})


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of `encode` that say what is embedded, and how."""

    prompt: str | Sequence[str] | None
    input_ids: Sequence[int] | Sequence[Sequence[int]] | None
    dimensions: int | None
    input_type: str | None
    embedding_types: tuple[str, ...]

    @property
    def kinds(self) -> tuple[VectorKind, ...]:
        """
        Raises:
            InvalidRequestError: a type is unknown.
        """
        for name in self.embedding_types:
            if name not in _KINDS:
                message = "{param} must be of {known}, got {name!r}"
                raise InvalidRequestError.of(message, param="embedding_types", known=", ".join(_KINDS), name=name)
        return tuple(dict.fromkeys(_KINDS[name] for name in self.embedding_types))


class OfflineEmbeddings(OfflineRuns):
    """The part of `Engine` that computes embeddings."""

    def encode(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        dimensions: int | None = None,
        input_type: str | None = None,
        embedding_types: Sequence[VectorType] | None = None,
        rid: str | Sequence[str] | None = None,
        extra_key: str | Sequence[str | None] | None = None,
        cache_salt: str | Sequence[str | None] | None = None,
        priority: int | Sequence[int | None] | None = None,
        timeout: float | Sequence[float | None] | None = None,
        show_progress: bool | None = None,
        **others: Any,
    ) -> Result | list[Result]:
        """Computes embeddings; the engine must be started with `is_embedding=True`. Returns SGLang's results.

        Args:
            prompt: a text, or a list of them; or give `input_ids`. The others are as for `generate`.
            dimensions: how many of an embedding's first numbers to keep, if the model was trained for that
                (Matryoshka); default: all.
            input_type: which of the model's prompts stands before each text, such as "query" or "document"; default:
                its default one, if it has one.
            embedding_types: "float", "sparse" (weights of tokens) and "tokens" (a vector for each token), as far as
                the model makes them; default: "float".

        Returns:
            A dict with "embedding", a list of floats, and "meta_info"; a list of them, in order, for a list of prompts.
            "sparse_embedding" has "indices" and "values", "token_embeddings" a list of floats for each token.

        Raises:
            InvalidRequestError: a parameter or a prompt is wrong, or this engine generates text.
            DeadlineError: a prompt's timeout passed; the other prompts end too.
            RequestAbortedError: a prompt was aborted; the other prompts end too.
            EngineDeadError: the engine failed or was shut down.
        """
        refuse_keywords("encode", others)
        options = {"cache_salt": cache_salt, "extra_key": extra_key, "priority": priority, "timeout": timeout}
        asked = _Asked(prompt, input_ids, dimensions, input_type, tuple(embedding_types or ("float",)))
        requests, is_list = self._requests(asked, rid=rid, options=options)
        if show_progress is None:
            show_progress = len(requests) > 1 and sys.stderr.isatty()
        return self._run(self._encode(requests, asked, is_list, show_progress))

    async def async_encode(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        dimensions: int | None = None,
        input_type: str | None = None,
        embedding_types: Sequence[VectorType] | None = None,
        rid: str | Sequence[str] | None = None,
        extra_key: str | Sequence[str | None] | None = None,
        cache_salt: str | Sequence[str | None] | None = None,
        priority: int | Sequence[int | None] | None = None,
        timeout: float | Sequence[float | None] | None = None,
        **others: Any,
    ) -> Result | list[Result]:
        """Do what `encode` does, to be awaited in an event loop."""
        refuse_keywords("async_encode", others)
        options = {"cache_salt": cache_salt, "extra_key": extra_key, "priority": priority, "timeout": timeout}
        asked = _Asked(prompt, input_ids, dimensions, input_type, tuple(embedding_types or ("float",)))
        expand = functools.partial(self._requests, asked, rid=rid, options=options)
        requests, is_list = await asyncio.to_thread(expand)
        work = self._encode(requests, asked, is_list, show_progress=False)
        return await asyncio.wrap_future(self._submit(work))

    def _requests(
        self, asked: _Asked, *, rid: str | Sequence[str] | None, options: dict[str, Any]
    ) -> tuple[list[GenerationRequest], bool]:
        """A request for each text, and whether they were a list.

        Raises:
            InvalidRequestError: an argument is wrong, or this engine generates text.
        """
        spec = self._engine.info.embedding
        if spec is None:
            raise InvalidRequestError("Engine.encode makes embeddings: start the engine with is_embedding=True")
        check_dimensions(asked.dimensions, spec)
        given: dict[str, Any] = {"prompt": asked.prompt, "input_ids": asked.input_ids}
        encoded: list[EncodedText] | None = None
        tokenizer = self._engine.tokenizer
        if asked.prompt is not None and asked.input_ids is None and tokenizer is not None:
            texts = [asked.prompt] if isinstance(asked.prompt, str) else list(asked.prompt)
            if all(isinstance(text, str) for text in texts):
                if not texts:
                    return [], True
                encoded = encode_texts(tokenizer, spec, texts, asked.input_type)
                given = {"prompt": None, "input_ids": [one.ids for one in encoded]}
        elif asked.input_type is not None:
            raise InvalidRequestError.of("{param} is only for texts: token ids get no prompt", param="input_type")
        requests, _, is_list = self._expand(**given, sampling_params=EMBEDDING_PARAMS, rid=rid, options=options)
        pooled = [
            dataclasses.replace(request, pooling=(encoded[place] if encoded else EncodedText([])).pooling(asked.kinds))
            for place, request in enumerate(requests)
        ]
        return pooled, is_list and not isinstance(asked.prompt, str)

    async def _encode(
        self, requests: list[GenerationRequest], asked: _Asked, is_list: bool, show_progress: bool
    ) -> Result | list[Result]:
        spec = self._engine.info.embedding
        assert spec is not None, "see _requests"
        ends = await self._gather([self._embed(request) for request in requests], show_progress)
        names, version = [end.request_id for end in ends], self._engine.model.version
        vectors: Sequence[Any] = [None] * len(ends)
        if "dense" in asked.kinds:
            vectors = read_vectors([end.embedding or b"" for end in ends], asked.dimensions, spec).tolist()
        results = encode_results(names, ends, vectors, version)
        for result, end in zip(results, ends, strict=True):
            if "dense" not in asked.kinds:
                del result["embedding"]
            if end.sparse is not None:
                result["sparse_embedding"] = {"indices": end.sparse.token_ids, "values": end.sparse.weights}
            if end.token_vectors is not None:
                result["token_embeddings"] = read_token_vectors(end.token_vectors, spec).tolist()
        return results if is_list else results[0]

    async def _embed(self, request: GenerationRequest) -> RequestOutput:
        """The prompt's only output, which has an embedding."""
        async with contextlib.aclosing(self._engine.generate(request)) as outputs:
            return embedded(await anext(outputs))


def encode_texts(
    tokenizer: Tokenizer, spec: EmbeddingSpec, texts: Sequence[str], input_type: str | None
) -> list[EncodedText]:
    """Tokenize texts, each with the model's prompt before it.

    Args:
        input_type: see EmbeddingSpec.prompt.

    Raises:
        InvalidRequestError: the model has no such prompt, or none at all.
    """
    if input_type is not None and not spec.prompts:
        raise InvalidRequestError.of("{param}: this model has no prompts", param="input_type")
    prompt, num_skipped = spec.prompt(input_type), 0
    if prompt and not spec.includes_prompt:
        alone, plain = (tokenizer.encode(spec.prepared(prompt), added) for added in (True, False))
        before = next((place for place in range(len(alone)) if alone[place : place + len(plain)] == plain), 0)
        num_skipped = before + len(plain)
    return [EncodedText(tokenizer.encode(spec.prepared(prompt + text)), num_skipped=num_skipped) for text in texts]
