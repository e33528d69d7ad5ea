"""POST /v1/embeddings, and POST /encode, SGLang's native route."""

import time
from typing import Any

from fastapi import Response

from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.embedded_texts import (
    TextInputs,
    embed_texts,
    encode_texts,
    prompt_before,
    require_vectors,
    run_requests,
    text_truncation,
)
from palladio.http.generation.prompts import given_prompts, prompt_names
from palladio.http.generation.vector_forms import (
    VectorForm,
    check_forms,
    in_form,
    json_response,
    kinds_of,
    num_values,
    vectors_of,
)
from palladio.http.prompts.text_encoding import run_encoding
from palladio.http.wire.fields import FieldMap
from palladio.http.wire.protocol import PromptFields
from palladio.http.wire.protocol_embeddings import EmbeddingRequest, EncodeRequest
from palladio.runtime.front.requests.sglang_requests import expand_requests
from palladio.runtime.front.requests.sglang_results import encode_results
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.embedding import EMBEDDING_PARAMS, check_dimensions


async def create_embeddings(context: Context, call: Call, body: EmbeddingRequest) -> Response:
    """
    Raises:
        PalladioError: what went wrong.
        HttpError: the client went away.
    """
    spec = require_vectors(context)
    model = context.names.answering(body.model)
    check_dimensions(body.dimensions, spec)
    if body.embedding_types is not None and body.encoding_format is not None:
        message = "embedding_types and encoding_format must not both be given"
        raise InvalidRequestError(message, param="encoding_format")
    forms: list[VectorForm] = [*dict.fromkeys(body.embedding_types or (body.encoding_format or "float",))]
    check_forms(forms, spec, body.dimensions, "dimensions")
    prompt, call = prompt_before(context, call, spec, body.input_type, body.input)
    texts = TextInputs(
        given=body.input,
        param="input",
        prompt=prompt,
        with_special=body.add_special_tokens is not False,
        truncation=text_truncation(context, spec, body.truncate_prompt_tokens, body.truncation_side),
        kinds=kinds_of(forms),
    )
    ends = await embed_texts(context, call, body, texts, spec)

    def write() -> Response:
        columns = {form: in_form(form, ends, body.dimensions, spec) for form in forms}
        rows: list[Any] = columns[forms[0]]
        if body.embedding_types is not None:
            rows = [{form: column[index] for form, column in columns.items()} for index in range(len(ends))]
        num_tokens = sum(end.prompt_tokens for end in ends)
        return json_response(
            {
                "object": "list",
                "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
                "model": model,
                "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
                **call.warnings.fields(),
            }
        )

    return await run_encoding(write, num_values(ends, spec))


async def encode_natively(context: Context, call: Call, body: EncodeRequest) -> Response:
    """SGLang's results: embeddings, or the logits of classes.

    Raises:
        PalladioError: what went wrong.
        HttpError: the client went away.
    """
    spec, received = context.require_embedding(), time.time()
    context.names.answering(body.model)
    check_dimensions(body.dimensions, spec)
    given, param = given_prompts(body.text, body.input_ids)
    truncation = text_truncation(context, spec, None)
    prompt, _ = prompt_before(context, call, spec, None, given)
    texts = TextInputs(given=given, param=param, prompt=prompt, truncation=truncation)
    each = texts.each
    _, ids = prompt_names(body.rid, call.request_id, len(each))
    names = FieldMap(paths={"prompt": param})
    with names.renaming():
        encoded = await encode_texts(context, spec, texts)
    options = {
        "cache_salt": body.cache_salt,
        "extra_key": body.extra_key,
        "priority": body.priority,
        "timeout": body.timeout,
        "routed_dp_rank": body.routed_dp_rank,
        "owner": call.caller.owner,
    }
    requests, _, _ = expand_requests(
        input_ids=[one.ids for one in encoded],
        sampling_params=EMBEDDING_PARAMS,
        rid=ids,
        options=options,
        pooling=[one.pooling() for one in encoded],
        received=received,
    )
    rid = body.rid if isinstance(body.rid, str) else None
    plain = PromptFields(rid=rid, no_logs=body.no_logs, log_metrics=body.log_metrics)
    ends: list[RequestOutput] = await run_requests(context, call, plain, requests, names)

    def write() -> Response:
        results = encode_results(ids, ends, list(vectors_of(ends, body.dimensions, spec)), context.engine.model.version)
        results[0] |= call.warnings.fields()
        return json_response(results if each is given else results[0])

    return await run_encoding(write, num_values(ends, spec))


EMBEDDINGS = Endpoint("/v1/embeddings", EmbeddingRequest, create_embeddings)
ENCODE = Endpoint("/encode", EncodeRequest, encode_natively)
