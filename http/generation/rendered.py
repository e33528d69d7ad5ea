"""A request as token ids, for routers that go by prefixes: vLLM's `GenerateRequest`."""

from typing import Any

import orjson
from fastapi import Response

from palladio.http.generation.context import Context
from palladio.http.wire.protocol import WireModel
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.interface.errors import ContextLengthError
from palladio.runtime.interface.request.generation_request import GenerationRequest

_PARAMS = (  # of SamplingParams, that vLLM's have too
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "stop", "stop_token_ids"),
    *("ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs"),
    *("prompt_logprobs", "skip_special_tokens", "spaces_between_special_tokens", "allowed_token_ids"),
)


def rendered(
    context: Context, request: GenerationRequest, model: str, stream: bool | None, stream_options: WireModel | None
) -> dict[str, Any]:
    """Return a request as the engine would get it, in the form of vLLM.

    Args:
        model: the name in the answer.
        stream: the request's own field, as is `stream_options`.

    Raises:
        ContextLengthError: the prompt leaves no room for an answer.
        InvalidRequestError: min_tokens is over what the prompt leaves.
    """
    room = LengthLimit.of(context.engine.info)
    params = room.fit(request)
    most = room.limit - len(request.prompt_ids)
    if most < (params.max_tokens or 1):
        raise ContextLengthError.of(
            "The input ({size} tokens) leaves room for {most} tokens of output in {what} ({limit} tokens). Send a "
            "shorter prompt, or lower {param}.",
            param="max_tokens",
            size=len(request.prompt_ids),
            most=max(0, most),
            what=room.name,
            limit=room.limit,
        )
    values = {name: object.__getattribute__(params, name) for name in _PARAMS}
    return {
        "request_id": request.request_id,
        "model": model,
        "token_ids": request.prompt_ids,
        "features": None,
        "sampling_params": values | {"max_tokens": most if params.max_tokens is None else params.max_tokens},
        "stream": bool(stream),
        "stream_options": None if stream_options is None else stream_options.model_dump(exclude_none=True),
        "cache_salt": request.options.cache_salt,
        "priority": request.options.priority,
        "kv_transfer_params": None,
    }


def rendered_response(content: Any) -> Response:
    """The answer of a route that renders."""
    return Response(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), media_type="application/json")
