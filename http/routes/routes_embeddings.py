"""POST /v1/embeddings, and POST /encode, SGLang's native route."""

import base64
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from fastapi import Response

from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.output_stream import OutputStream
from palladio.http.generation.params import request_name
from palladio.http.generation.prompts import encode_prompts, given_prompts, numbered_ids, prompt_names, split_prompts
from palladio.http.generation.whole import feed
from palladio.http.prompts.text_encoding import run_encoding
from palladio.http.wire.fields import FieldMap
from palladio.http.wire.protocol_embeddings import EmbeddingRequest, EncodeRequest
from palladio.runtime.front.requests.sglang_requests import expand_requests
from palladio.runtime.front.requests.sglang_results import encode_results
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.embedding import (
    EMBEDDING_PARAMS,
    Vectors,
    check_dimensions,
    embedded,
    read_vectors,
)
from palladio.runtime.interface.request.generation_request import GenerationRequest

MAX_INPUTS = 2048  # OpenAI's


async def create_embeddings(context: Context, call: Call, body: EmbeddingRequest) -> Response:
    """
    Raises:
        PalladioError: what went wrong.
        HttpError: the client went away.
    """
    spec, received = context.require_embedding(), time.time()
    if spec.classes is not None:
        raise InvalidRequestError("this server's model classifies texts: use /v1/classify, /v1/score or /v1/rerank")
    model = context.names.answering(body.model)
    check_dimensions(body.dimensions, spec)
    name, options = request_name(body, call.request_id), call.options(body)
    names = FieldMap(paths={"prompt": "input"})
    with names.renaming():
        prompts = split_prompts(body.input, "input")
        _check_num_inputs(len(prompts), "input")
        truncation = context.facts.truncation(body.truncate_prompt_tokens, 0)
        ids = await encode_prompts(
            context.encoder, prompts, add_special_tokens=body.add_special_tokens is not False, truncation=truncation
        )
    requests = [
        GenerationRequest(
            *(request_id, prompt_ids, EMBEDDING_PARAMS), received=received, options=options, first_index=position
        )
        for position, (request_id, prompt_ids) in enumerate(zip(numbered_ids(name, len(ids)), ids, strict=True))
    ]

    def write(ends: list[RequestOutput], vectors: Vectors) -> dict[str, Any]:
        num_tokens = sum(end.prompt_tokens for end in ends)
        rows: list[Any] = list(vectors)
        if body.encoding_format == "base64":
            rows = [base64.b64encode(row.tobytes()).decode() for row in rows]
        return {
            "object": "list",
            "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
            "model": model,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            **call.warnings.fields(),
        }

    return await _answer(context, call, body, name, requests, names, write)


async def encode_texts(context: Context, call: Call, body: EncodeRequest) -> Response:
    """SGLang's results: embeddings, or the logits of classes.

    Raises:
        PalladioError: what went wrong.
        HttpError: the client went away.
    """
    spec, received = context.require_embedding(), time.time()
    context.names.answering(body.model)
    check_dimensions(body.dimensions, spec)
    given, param = given_prompts(body.text, body.input_ids)
    prompts = split_prompts(given, param)
    _check_num_inputs(len(prompts), param)
    name, ids = prompt_names(body.rid, call.request_id, len(prompts))
    names = FieldMap(paths={"prompt": param})
    with names.renaming():
        prompt_ids = await encode_prompts(context.encoder, prompts, truncation=context.facts.truncation(None, 0))
    options = {
        "cache_salt": body.cache_salt,
        "extra_key": body.extra_key,
        "priority": body.priority,
        "timeout": body.timeout,
        "routed_dp_rank": body.routed_dp_rank,
        "owner": call.caller.owner,
    }
    requests, _, _ = expand_requests(
        input_ids=prompt_ids, sampling_params=EMBEDDING_PARAMS, rid=ids, options=options, received=received
    )

    def write(ends: list[RequestOutput], vectors: Vectors) -> Any:
        results = encode_results(ids, ends, list(vectors), context.engine.model.version)
        results[0] |= call.warnings.fields()
        return results if prompts is given else results[0]

    return await _answer(context, call, body, name, requests, names, write)


async def _answer(
    context: Context,
    call: Call,
    body: EmbeddingRequest | EncodeRequest,
    name: str,
    requests: Sequence[GenerationRequest],
    names: FieldMap,
    write: Callable[[list[RequestOutput], Vectors], Any],
) -> Response:
    """Run the requests, and answer with their embeddings.

    Args:
        names: what the client calls the engine's fields.
        write: (outputs of the prompts, their vectors) → answer; called in a thread.
    """
    spec = context.require_embedding()
    origin = call.origin(no_logs=body.no_logs, log_metrics=body.log_metrics)
    ends: list[RequestOutput] = []  # the only output of each prompt
    stream = OutputStream(context, requests, name=name, origin=origin, names=names)
    await call.wait(feed(stream, lambda output: ends.append(embedded(output))))
    ends.sort(key=lambda end: end.index)

    def encode() -> Response:
        vectors = read_vectors([end.embedding or b"" for end in ends], body.dimensions, spec)
        content = orjson.dumps(write(ends, vectors), option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(content, media_type="application/json")

    return await run_encoding(encode, spec.size * len(ends))


def _check_num_inputs(count: int, param: str) -> None:
    if count > MAX_INPUTS:
        raise InvalidRequestError(f"{param} takes at most {MAX_INPUTS} texts, got {count}", param=param)


EMBEDDINGS = Endpoint("/v1/embeddings", EmbeddingRequest, create_embeddings)
ENCODE = Endpoint("/encode", EncodeRequest, encode_texts)
