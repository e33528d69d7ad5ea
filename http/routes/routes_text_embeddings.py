"""POST /embed, /embed_all, /embed_sparse and /predict: the routes of Text Embeddings Inference. Its /rerank is in
routes_scores."""

from typing import Any

import numpy as np
from fastapi import Response

from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.embedded_texts import (
    TextInputs,
    check_num_inputs,
    embed_texts,
    embedding_requests,
    prompt_before,
    require_vectors,
    run_requests,
    text_truncation,
)
from palladio.http.generation.vector_forms import (
    VectorForm,
    check_forms,
    in_form,
    json_response,
    num_values,
    vectors_of,
)
from palladio.http.prompts.text_encoding import Truncation, run_encoding
from palladio.http.wire.fields import FieldMap
from palladio.http.wire.protocol_text_embeddings import EmbedRequest, PredictRequest, SparseRequest, TextFields
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.outputs.request_output import RequestOutput
from palladio.runtime.interface.request.embedding import EmbeddingSpec, Vectors, check_dimensions, normalized
from palladio.runtime.interface.request.pooling_params import EncodedText, VectorKind


async def _embed(context: Context, call: Call, body: EmbedRequest) -> Response:
    spec = require_vectors(context)
    check_dimensions(body.dimensions, spec)
    normalizes = body.normalize is not False
    if spec.normalized and not normalizes:
        message = "normalize: false is not supported: this model's embeddings have length 1"
        raise InvalidRequestError(message, param="normalize", code="unsupported_parameter")
    ends = await _run(context, call, body, spec, "float", "dense")

    def write() -> Response:
        vectors = vectors_of(ends, body.dimensions, spec)
        return json_response(list(normalized(vectors) if normalizes and not spec.normalized else vectors))

    return await run_encoding(write, num_values(ends, spec))


async def _embed_all(context: Context, call: Call, body: SparseRequest) -> Response:
    """The vector of each token of each text."""
    spec = require_vectors(context)
    ends = await _run(context, call, body, spec, "tokens", "tokens")
    return await run_encoding(lambda: json_response(in_form("tokens", ends, None, spec)), num_values(ends, spec))


async def _embed_sparse(context: Context, call: Call, body: SparseRequest) -> Response:
    """The tokens of the vocabulary that each text is about, with their weights."""
    spec = require_vectors(context)
    ends = await _run(context, call, body, spec, "sparse", "sparse")

    def write() -> Response:
        rows = in_form("sparse", ends, None, spec)
        pairs = [zip(row["indices"], row["values"], strict=True) for row in rows]
        return json_response([[{"index": index, "value": value} for index, value in row] for row in pairs])

    return await run_encoding(write, num_values(ends, spec))


async def _run(
    context: Context,
    call: Call,
    body: EmbedRequest | SparseRequest,
    spec: EmbeddingSpec,
    form: VectorForm,
    kind: VectorKind,
) -> list[RequestOutput]:
    context.names.answering(body.model)
    check_forms([form], spec, None, "inputs")
    if body.prompt_name is not None and body.prompt_name not in spec.prompts:
        names = ", ".join(spec.prompts) or "none"
        message = f"prompt_name {body.prompt_name[:100]!r} is not one of this model's prompts: {names}"
        raise InvalidRequestError(message, param="prompt_name")
    with FieldMap(paths={"input_type": "prompt_name"}).renaming():
        prompt, call = prompt_before(context, call, spec, body.prompt_name, body.inputs)
    texts = TextInputs(
        given=body.inputs,
        param="inputs",
        prompt=prompt,
        with_special=body.add_special_tokens is not False,
        truncation=_truncation(context, spec, body),
        kinds=(kind,),
    )
    return await embed_texts(context, call, body, texts, spec)


def _truncation(context: Context, spec: EmbeddingSpec, body: TextFields) -> Truncation | None:
    """What becomes of long texts: refused, unless they are to be truncated; the end goes by default."""
    asked = body.truncate_prompt_tokens
    if asked is None and body.truncate:
        asked = -1
    side = (body.truncation_direction or "right").lower()
    return text_truncation(context, spec, asked, side)


async def _predict(context: Context, call: Call, body: PredictRequest) -> Response:
    """Classes, the likeliest first. A list of two texts is a pair; a list of lists holds texts and pairs."""
    spec = context.require_classes()
    classes = spec.classes
    assert classes is not None
    context.names.answering(body.model)
    is_many = isinstance(body.inputs, list) and bool(body.inputs) and isinstance(body.inputs[0], list)
    inputs: list[Any] = list(body.inputs) if is_many else [body.inputs]
    check_num_inputs(len(inputs), "inputs")
    each = [(one,) if isinstance(one, str) else tuple(one) for one in inputs]
    for index, texts in enumerate(each):
        if not 1 <= len(texts) <= 2 or not all(texts):
            message = f"inputs.{index} must be a text or two texts, none of them empty"
            raise InvalidRequestError(message, param="inputs")
    truncation = _truncation(context, spec, body)
    with_special = body.add_special_tokens is not False

    def encode() -> list[EncodedText]:
        return [_encode(context, spec, texts, with_special, truncation) for texts in each]

    names = FieldMap(paths={"prompt": "inputs"})
    with names.renaming():
        encoded = await run_encoding(encode, sum(len(text) for texts in each for text in texts))
        requests = embedding_requests(encoded, call, body)
    ends = await run_requests(context, call, body, requests, names)
    values = classes.values(vectors_of(ends, None, spec), use_activation=not body.raw_scores)
    rows = [_sorted(row, classes.labels) for row in values]
    return json_response(rows if is_many else rows[0])


def _encode(
    context: Context, spec: EmbeddingSpec, texts: tuple[str, ...], with_special: bool, truncation: Truncation | None
) -> EncodedText:
    first, *others = (spec.prepared(text) for text in texts)
    if not others:
        return EncodedText(context.encoder.encode(first, with_special, truncation))
    limit = None if truncation is None else truncation.limit
    found = context.encoder.encode_pair(first, others[0], with_special, limit)
    return found if spec.is_encoder else EncodedText(found.ids)


def _sorted(row: Vectors, labels: list[str]) -> list[dict[str, Any]]:
    return [{"score": float(row[index]), "label": labels[index]} for index in np.argsort(-row, kind="stable")]


EMBED = Endpoint("/embed", EmbedRequest, _embed)
EMBED_ALL = Endpoint("/embed_all", SparseRequest, _embed_all)
EMBED_SPARSE = Endpoint("/embed_sparse", SparseRequest, _embed_sparse)
PREDICT = Endpoint("/predict", PredictRequest, _predict)
TEXT_EMBEDDINGS = (EMBED, EMBED_ALL, EMBED_SPARSE, PREDICT)
