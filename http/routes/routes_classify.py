"""POST /v1/classify and /classify: the class of texts, and with `text` or `input_ids` SGLang's raw logits."""

import time

import numpy as np
import orjson
from fastapi import Response

from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.params import request_name
from palladio.http.generation.prompts import encode_prompts, numbered_ids, split_prompts
from palladio.http.generation.scored_pairs import MAX_PAIRS, embedding_requests, run_requests, usage_of, uses_activation
from palladio.http.routes.routes_embeddings import encode_texts
from palladio.http.wire.fields import FieldMap
from palladio.http.wire.protocol_embeddings import EncodeRequest
from palladio.http.wire.protocol_scores import ClassifyRequest
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.embedding import read_vectors

_OF_INPUT = ("use_activation", "activation", "softmax", "add_special_tokens", "truncate_prompt_tokens", "request_id")


async def _classify(context: Context, call: Call, body: ClassifyRequest) -> Response:
    spec = context.require_classes()
    classes = spec.classes
    assert classes is not None
    if body.input is None:
        return await _logits(context, call, body)
    for name in ("text", "input_ids"):
        if vars(body)[name] is not None:
            raise InvalidRequestError(f"input and {name} must not both be given", param=name)
    model, name = context.names.answering(body.model), request_name(body, call.request_id)
    names = FieldMap(paths={"prompt": "input"})
    with names.renaming():
        prompts = split_prompts(body.input, "input")
        if len(prompts) > MAX_PAIRS:
            raise InvalidRequestError(f"input takes at most {MAX_PAIRS} texts, got {len(prompts)}", param="input")
        use_activation = uses_activation(body)
        truncation = context.facts.truncation(body.truncate_prompt_tokens, 0)
        with_special = body.add_special_tokens is not False
        ids = await encode_prompts(context.encoder, prompts, add_special_tokens=with_special, truncation=truncation)
        requests = embedding_requests(numbered_ids(name, len(ids)), ids, call, body)
    ends = await run_requests(context, call, body, requests, names)
    values = classes.values(read_vectors([end.embedding or b"" for end in ends], None, spec), use_activation)
    data = [
        {"index": index, "label": classes.labels[int(np.argmax(row))], "probs": row, "num_classes": len(row)}
        for index, row in enumerate(values)
    ]
    content = {
        "id": f"classify-{name}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": usage_of(ends),
        **call.warnings.fields(),
    }
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


async def _logits(context: Context, call: Call, body: ClassifyRequest) -> Response:
    if body.text is None and body.input_ids is None:
        raise InvalidRequestError("give one of input, text and input_ids", param="input")
    for name in _OF_INPUT:
        if vars(body)[name] is not None:
            raise InvalidRequestError(f"{name} is only for texts that are given as input", param=name)
    fields = {name: vars(body)[name] for name in EncodeRequest.model_fields if name in ClassifyRequest.model_fields}
    return await encode_texts(context, call, EncodeRequest(**fields))


CLASSIFY = Endpoint("/v1/classify", ClassifyRequest, _classify)
NATIVE_CLASSIFY = Endpoint("/classify", ClassifyRequest, _classify)
