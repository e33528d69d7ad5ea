"""POST /pooling, vLLM's: the model's embeddings or classes; and POST /v2/embed, of Cohere's second API."""

import time
from typing import Any

from fastapi import Response

from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.embedded_texts import (
    TextInputs,
    embed_texts,
    prompt_before,
    require_vectors,
    text_truncation,
    usage_of,
)
from palladio.http.generation.params import request_name
from palladio.http.generation.scored_pairs import uses_activation
from palladio.http.generation.vector_forms import (
    VectorForm,
    as_base64,
    check_forms,
    in_form,
    json_response,
    kinds_of,
    num_values,
    vectors_of,
)
from palladio.http.prompts.text_encoding import Truncation, run_encoding
from palladio.http.wire.fields import FieldMap
from palladio.http.wire.protocol import PromptFields
from palladio.http.wire.protocol_embeddings import CohereEmbedRequest, PoolingRequest
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.embedding import EmbeddingSpec, check_dimensions
from palladio.runtime.interface.request.pooling_params import VectorKind

_TASKS: dict[VectorKind, str] = {"dense": "embed", "tokens": "token_embed"}


async def _pool(context: Context, call: Call, body: PoolingRequest) -> Response:
    spec = context.require_embedding()
    kind = _kind_of(spec, body.task)
    activates = uses_activation(body)
    if spec.classes is None and spec.normalized and not activates:
        message = "use_activation: false is not supported: this model's embeddings have length 1"
        raise InvalidRequestError(message, param="use_activation", code="unsupported_parameter")
    check_dimensions(body.dimensions, spec)
    model, name = context.names.answering(body.model), request_name(body, call.request_id)
    prompt, call = prompt_before(context, call, spec, body.input_type, body.input)
    texts = TextInputs(
        given=body.input,
        param="input",
        prompt=prompt,
        with_special=body.add_special_tokens is not False,
        truncation=text_truncation(context, spec, body.truncate_prompt_tokens),
        kinds=(kind,),
    )
    ends = await embed_texts(context, call, body, texts, spec)

    def write() -> Response:
        rows: Any = in_form("tokens", ends, None, spec) if kind == "tokens" else vectors_of(ends, body.dimensions, spec)
        if spec.classes is not None:
            rows = spec.classes.values(rows, activates)
        if body.encoding_format == "base64":
            rows = as_base64(rows)
        data = [{"index": index, "object": "pooling", "data": row} for index, row in enumerate(rows)]
        head = {"id": f"pool-{name}", "object": "list", "created": int(time.time()), "model": model}
        return json_response(head | {"data": data, "usage": usage_of(ends)} | call.warnings.fields())

    return await run_encoding(write, num_values(ends, spec))


def _kind_of(spec: EmbeddingSpec, task: str | None) -> VectorKind:
    """What vLLM's task asks for.

    Raises:
        InvalidRequestError: the model does something else.
    """
    tasks = {name: kind for kind, name in _TASKS.items() if kind in spec.kinds}
    if spec.classes is not None:
        tasks = {"classify": "dense"}
    if not tasks:
        raise InvalidRequestError("this model makes sparse vectors alone: use /v1/embeddings with embedding_types")
    if task is None:
        return next(iter(tasks.values()))
    if task not in tasks:
        message = f"task {task[:100]!r} is not supported: this server's model does {', '.join(tasks)}"
        raise InvalidRequestError(message, param="task")
    return tasks[task]


async def _embed(context: Context, call: Call, body: CohereEmbedRequest) -> Response:
    spec = require_vectors(context)
    for name in ("images", "inputs"):
        if vars(body)[name] is not None:
            raise InvalidRequestError(f"{name} are not supported: give texts", param=name, code="unsupported_parameter")
    if body.texts is None:
        raise InvalidRequestError("texts is missing", param="texts")
    prompt, call = prompt_before(context, call, spec, body.input_type, body.texts)
    context.names.answering(body.model)
    with FieldMap(paths={"dimensions": "output_dimension"}).renaming():
        check_dimensions(body.output_dimension, spec)
    forms: list[VectorForm] = [*dict.fromkeys(body.embedding_types or ("float",))]
    check_forms(forms, spec, body.output_dimension, "output_dimension")
    plain = PromptFields(model=body.model, priority=body.priority)
    texts = TextInputs(
        given=body.texts,
        param="texts",
        prompt=prompt,
        truncation=_truncation(context, body),
        max_tokens=body.max_tokens,
        kinds=kinds_of(forms),
    )
    ends = await embed_texts(context, call, plain, texts, spec)

    def write() -> Response:
        num_tokens = sum(end.prompt_tokens for end in ends)
        return json_response(
            {
                "id": f"embd-{call.request_id}",
                "embeddings": {form: in_form(form, ends, body.output_dimension, spec) for form in forms},
                "texts": body.texts,
                "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": num_tokens}},
                "response_type": "embeddings_by_type",
                **call.warnings.fields(),
            }
        )

    return await run_encoding(write, num_values(ends, spec))


def _truncation(context: Context, body: CohereEmbedRequest) -> Truncation | None:
    """What becomes of long texts; None: they are refused."""
    if body.truncate == "NONE":
        return None
    room = context.facts.room.limit
    return Truncation(min(room, body.max_tokens or room), keeps_end=body.truncate == "START")


POOLING = Endpoint("/pooling", PoolingRequest, _pool)
COHERE_EMBED = Endpoint("/v2/embed", CohereEmbedRequest, _embed)
