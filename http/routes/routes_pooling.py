"""POST /pooling, vLLM's: the model's embeddings or classes; and POST /v2/embed, of Cohere's second API."""

import base64
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import Response

from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.params import request_name
from palladio.http.generation.prompts import encode_prompts, numbered_ids, split_prompts
from palladio.http.generation.scored_pairs import embedding_requests, run_requests, usage_of, uses_activation
from palladio.http.prompts.text_encoding import Truncation, run_encoding
from palladio.http.routes.routes_embeddings import check_num_inputs
from palladio.http.wire.fields import FieldMap, WarningList
from palladio.http.wire.protocol_embeddings import CohereEmbedRequest, EmbeddingType, PoolingRequest
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.embedding import Vectors, check_dimensions, read_vectors


async def _pool(context: Context, call: Call, body: PoolingRequest) -> Response:
    spec = context.require_embedding()
    task = "embed" if spec.classes is None else "classify"
    if body.task not in (None, task):
        message = f"task {body.task[:100]!r} is not supported: this server's model does {task}"
        raise InvalidRequestError(message, param="task")
    activates = uses_activation(body)
    if spec.classes is None and spec.normalized and not activates:
        message = "use_activation: false is not supported: this model's embeddings have length 1"
        raise InvalidRequestError(message, param="use_activation", code="unsupported_parameter")
    check_dimensions(body.dimensions, spec)
    model, name = context.names.answering(body.model), request_name(body, call.request_id)
    ends = await _run(context, call, body, "input", context.facts.truncation(body.truncate_prompt_tokens, 0))

    def write() -> Response:
        rows: Any = _vectors(context, ends, body.dimensions)
        if spec.classes is not None:
            rows = spec.classes.values(rows, activates)
        if body.encoding_format == "base64":
            rows = _base64(rows)
        data = [{"index": index, "object": "pooling", "data": row} for index, row in enumerate(rows)]
        head = {"id": f"pool-{name}", "object": "list", "created": int(time.time()), "model": model}
        return _json(head | {"data": data, "usage": usage_of(ends)} | call.warnings.fields())

    return await run_encoding(write, spec.size * len(ends))


async def _embed(context: Context, call: Call, body: CohereEmbedRequest) -> Response:
    spec = context.require_embedding()
    if spec.classes is not None:
        raise InvalidRequestError("this server's model classifies texts: use /v1/classify, /v1/score or /v1/rerank")
    for name in ("images", "inputs"):
        if vars(body)[name] is not None:
            raise InvalidRequestError(f"{name} are not supported: give texts", param=name, code="unsupported_parameter")
    if body.texts is None:
        raise InvalidRequestError("texts is missing", param="texts")
    warnings = WarningList(call.warnings)
    if body.input_type is not None:
        message = "{param} has no effect: this server puts no prefix of the model before texts; write it yourself"
        warnings.warn(InvalidRequestError.of(message, param="input_type", code="unsupported_parameter"))
        warnings.found.note_since(call.warnings, context.note_warning)
    plain = PoolingRequest(input=body.texts, model=body.model, dimensions=body.output_dimension, priority=body.priority)
    context.names.answering(body.model)
    with FieldMap(paths={"dimensions": "output_dimension"}).renaming():
        check_dimensions(body.output_dimension, spec)
    kinds: Sequence[EmbeddingType] = body.embedding_types or ("float",)
    if {"binary", "ubinary"} & {*kinds} and (body.output_dimension or spec.size) % 8:
        message = "binary and ubinary need embeddings of a multiple of 8 numbers: give output_dimension"
        raise InvalidRequestError(message, param="output_dimension")
    ends = await _run(context, call, plain, "texts", _truncation(context, body), body.max_tokens)

    def write() -> Response:
        vectors = _vectors(context, ends, body.output_dimension)
        num_tokens = sum(end.prompt_tokens for end in ends)
        return _json(
            {
                "id": f"embd-{call.request_id}",
                "embeddings": {kind: _as_type(vectors, kind) for kind in kinds},
                "texts": body.texts,
                "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": num_tokens}},
                "response_type": "embeddings_by_type",
                **warnings.found.fields(),
            }
        )

    return await run_encoding(write, spec.size * len(ends))


async def _run(
    context: Context,
    call: Call,
    body: PoolingRequest,
    param: str,
    truncation: Truncation | None,
    max_tokens: int | None = None,
) -> list[RequestOutput]:
    """The output of each text.

    Args:
        param: what the client calls the texts.
        truncation: of long texts; None: they are refused.
        max_tokens: of each text, if none are cut; None: as many as the model takes.

    Raises:
        PalladioError: what went wrong.
        HttpError: the client went away.
    """
    names = FieldMap(paths={"prompt": param})
    with names.renaming():
        prompts = split_prompts(body.input, param)
        check_num_inputs(len(prompts), param)
        with_special = body.add_special_tokens is not False
        ids = await encode_prompts(context.encoder, prompts, add_special_tokens=with_special, truncation=truncation)
        longest = max(map(len, ids))
        if truncation is None and max_tokens is not None and longest > max_tokens:
            raise InvalidRequestError(f"a text has {longest} tokens, over max_tokens ({max_tokens})", param=param)
        name = request_name(body, call.request_id)
        requests = embedding_requests(numbered_ids(name, len(ids)), ids, call, body)
    return await run_requests(context, call, body, requests, names)


def _truncation(context: Context, body: CohereEmbedRequest) -> Truncation | None:
    """What becomes of long texts; None: they are refused."""
    if body.truncate == "NONE":
        return None
    room = context.facts.room.limit
    return Truncation(min(room, body.max_tokens or room), keeps_end=body.truncate == "START")


def _vectors(context: Context, ends: Sequence[RequestOutput], dimensions: int | None) -> Vectors:
    return read_vectors([end.embedding or b"" for end in ends], dimensions, context.require_embedding())


def _as_type(vectors: Vectors, kind: EmbeddingType) -> Any:
    """The vectors in one of Cohere's types; of the binary ones, a bit says whether a number is not negative."""
    match kind:
        case "float":
            return list(vectors)
        case "base64":
            return _base64(vectors)
        case "ubinary":
            return np.packbits(vectors >= 0, axis=-1).tolist()
        case "binary":
            return (np.packbits(vectors >= 0, axis=-1).astype(np.int16) - 128).tolist()


def _base64(vectors: Any) -> list[str]:
    return [base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode() for row in vectors]


def _json(content: dict[str, Any]) -> Response:
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


POOLING = Endpoint("/pooling", PoolingRequest, _pool)
COHERE_EMBED = Endpoint("/v2/embed", CohereEmbedRequest, _embed)
