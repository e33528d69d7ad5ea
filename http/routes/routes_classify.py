"""POST /v1/classify and /classify: the class of texts, and with `text` or `input_ids` SGLang's raw logits."""

import time

import numpy as np
from fastapi import Response

from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.embedded_texts import TextInputs, embed_texts, text_truncation, usage_of
from palladio.http.generation.params import request_name
from palladio.http.generation.scored_pairs import uses_activation
from palladio.http.generation.vector_forms import json_response, vectors_of
from palladio.http.routes.routes_embeddings import encode_natively
from palladio.http.wire.protocol_embeddings import EncodeRequest
from palladio.http.wire.protocol_scores import ClassifyRequest
from palladio.runtime.interface.errors import InvalidRequestError

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
    use_activation = uses_activation(body)
    texts = TextInputs(
        given=body.input,
        param="input",
        with_special=body.add_special_tokens is not False,
        truncation=text_truncation(context, spec, body.truncate_prompt_tokens),
    )
    ends = await embed_texts(context, call, body, texts, spec)
    values = classes.values(vectors_of(ends, None, spec), use_activation)
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
    return json_response(content)


async def _logits(context: Context, call: Call, body: ClassifyRequest) -> Response:
    if body.text is None and body.input_ids is None:
        raise InvalidRequestError("give one of input, text and input_ids", param="input")
    for name in _OF_INPUT:
        if vars(body)[name] is not None:
            raise InvalidRequestError(f"{name} is only for texts that are given as input", param=name)
    fields = {name: vars(body)[name] for name in EncodeRequest.model_fields if name in ClassifyRequest.model_fields}
    return await encode_natively(context, call, EncodeRequest(**fields))


CLASSIFY = Endpoint("/v1/classify", ClassifyRequest, _classify)
NATIVE_CLASSIFY = Endpoint("/classify", ClassifyRequest, _classify)
