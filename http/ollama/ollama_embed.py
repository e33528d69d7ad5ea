"""Ollama's /api/embed and /api/embeddings: vectors of texts, always of length 1."""

import dataclasses
import time
from typing import Any

from fastapi import Response

from palladio.http.generation.context import Call, Context
from palladio.http.generation.embedded_texts import TextInputs, embed_texts, prompt_before, require_vectors
from palladio.http.generation.vector_forms import check_forms, json_response, num_values, vectors_of
from palladio.http.ollama.ollama_lines import NANOSECONDS
from palladio.http.ollama.protocol_ollama import LOADING, OllamaEmbeddingsRequest, OllamaEmbedRequest
from palladio.http.prompts.text_encoding import Truncation, run_encoding
from palladio.http.wire.fields import WarningList
from palladio.http.wire.protocol import PromptFields
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.embedding import EmbeddingSpec, Vectors, check_dimensions, normalized


async def embed(context: Context, call: Call, body: OllamaEmbedRequest) -> Response:
    """Answer /api/embed. Without texts it gives no vectors: so clients of Ollama load a model.

    Raises:
        PalladioError: what went wrong.
        HttpError: the client went away.
    """
    begun, spec = time.perf_counter(), require_vectors(context)
    check_dimensions(body.dimensions, spec)
    call = _warned(context, call, body)
    texts = [body.input] if isinstance(body.input, str) else body.input
    count, vectors = 0, None
    if texts:
        truncates = body.truncate is not False
        vectors, count = await _vectors(context, call, spec, texts, "input", truncates, body.dimensions)
    answer: dict[str, Any] = {"model": body.model, "embeddings": [] if vectors is None else list(vectors)}
    nanoseconds = int((time.perf_counter() - begun) * NANOSECONDS)
    answer |= {"total_duration": nanoseconds, "load_duration": 0, "prompt_eval_count": count}
    return json_response(answer | call.warnings.fields())


async def embed_one(context: Context, call: Call, body: OllamaEmbeddingsRequest) -> Response:
    """Answer /api/embeddings, the older route, which takes one text.

    Raises:
        PalladioError: what went wrong.
        HttpError: the client went away.
    """
    spec = require_vectors(context)
    call = _warned(context, call, body)
    if not body.prompt:
        return json_response({"embedding": []} | call.warnings.fields())
    vectors, _ = await _vectors(context, call, spec, [body.prompt], "prompt", True, None)
    return json_response({"embedding": vectors[0]} | call.warnings.fields())


async def _vectors(
    context: Context,
    call: Call,
    spec: EmbeddingSpec,
    given: list[str],
    param: str,
    truncates: bool,
    dimensions: int | None,
) -> tuple[Vectors, int]:
    """The vectors of texts, and how many tokens these have.

    Args:
        param: the client's name of the texts.
        truncates: long texts lose their end, as Ollama's do by default.
    """
    check_forms(["float"], spec, dimensions, "dimensions")
    prompt, call = prompt_before(context, call, spec, None, given)
    truncation = Truncation(context.facts.room.limit, keeps_end=False) if truncates else None
    texts = TextInputs(given=given, param=param, prompt=prompt, truncation=truncation)
    ends = await embed_texts(context, call, PromptFields(), texts, spec)

    def read() -> Vectors:
        return normalized(vectors_of(ends, dimensions, spec))

    vectors = await run_encoding(read, num_values(ends, spec))
    return vectors, sum(end.prompt_tokens for end in ends)


def _warned(context: Context, call: Call, body: OllamaEmbedRequest | OllamaEmbeddingsRequest) -> Call:
    """The call with a warning for each option that says how tokens are sampled, of which there are none."""
    given = {} if body.options is None else body.options.model_dump(exclude_none=True)
    warnings = WarningList(call.warnings)
    for name in given:
        if name not in LOADING:
            message = "{param} has no effect: embeddings are not sampled"
            warnings.warn(InvalidRequestError.of(message, param=f"options.{name}", code="unsupported_parameter"))
    warnings.found.note_since(call.warnings, context.note_warning)
    return dataclasses.replace(call, warnings=warnings.found)
