"""Embeddings of an offline engine."""

import asyncio
import contextlib
import functools
import sys
from collections.abc import Sequence
from typing import Any

from palladio.runtime.front.offline.offline_runs import OfflineRuns, Result
from palladio.runtime.front.requests.sglang_results import encode_results
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.embedding import EMBEDDING_PARAMS, check_dimensions, embedded, read_vectors
from palladio.runtime.interface.request.foreign_fields import refuse_keywords
from palladio.runtime.interface.request.generation_request import GenerationRequest


class OfflineEmbeddings(OfflineRuns):
    """The part of `Engine` that computes embeddings."""

    def encode(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        dimensions: int | None = None,
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

        Returns:
            A dict with "embedding", a list of floats, and "meta_info"; a list of them, in order, for a list of prompts.

        Raises:
            InvalidRequestError: a parameter or a prompt is wrong, or this engine generates text.
            DeadlineError: a prompt's timeout passed; the other prompts end too.
            RequestAbortedError: a prompt was aborted; the other prompts end too.
            EngineDeadError: the engine failed or was shut down.
        """
        refuse_keywords("encode", others)
        options = {"cache_salt": cache_salt, "extra_key": extra_key, "priority": priority, "timeout": timeout}
        asked = {"prompt": prompt, "input_ids": input_ids, "sampling_params": EMBEDDING_PARAMS}
        requests, _, is_list = self._expand(**asked, rid=rid, options=options)
        if show_progress is None:
            show_progress = len(requests) > 1 and sys.stderr.isatty()
        return self._run(self._encode(requests, is_list, dimensions, show_progress))

    async def async_encode(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        dimensions: int | None = None,
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
        asked = {"prompt": prompt, "input_ids": input_ids, "sampling_params": EMBEDDING_PARAMS}
        expand = functools.partial(self._expand, **asked, rid=rid, options=options)
        requests, _, is_list = await asyncio.to_thread(expand)
        work = self._encode(requests, is_list, dimensions, show_progress=False)
        return await asyncio.wrap_future(self._submit(work))

    async def _encode(
        self, requests: list[GenerationRequest], is_list: bool, dimensions: int | None, show_progress: bool
    ) -> Result | list[Result]:
        spec = self._engine.info.embedding
        if spec is None:
            raise InvalidRequestError("Engine.encode makes embeddings: start the engine with is_embedding=True")
        check_dimensions(dimensions, spec)
        ends = await self._gather([self._embed(request) for request in requests], show_progress)
        vectors = read_vectors([end.embedding or b"" for end in ends], dimensions, spec)
        results = encode_results([end.request_id for end in ends], ends, vectors.tolist(), self._engine.model.version)
        return results if is_list else results[0]

    async def _embed(self, request: GenerationRequest) -> RequestOutput:
        """The prompt's only output, which has an embedding."""
        async with contextlib.aclosing(self._engine.generate(request)) as outputs:
            return embedded(await anext(outputs))
