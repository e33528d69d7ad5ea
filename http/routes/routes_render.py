"""POST /v1/chat/completions/render and /v1/completions/render: a request as token ids, for routers that go by prefixes.

The answer is vLLM's `GenerateRequest`; a completion has a list of those, one a prompt. Nothing goes to the engine.
"""

from typing import Any

import orjson
from fastapi import Response

from palladio.http.chat.chat_run import translate
from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.params import request_name
from palladio.http.prompts.text_encoding import Truncation, run_encoding
from palladio.http.routes.routes_completions import read_completion
from palladio.http.wire.protocol_chat import RenderChatRequest
from palladio.http.wire.protocol_completions import RenderCompletionRequest
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.interface.errors import ContextLengthError
from palladio.runtime.interface.request.generation_request import GenerationRequest

_Body = RenderChatRequest | RenderCompletionRequest
_PARAMS = (  # of SamplingParams, that vLLM's have too
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "stop", "stop_token_ids"),
    *("ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs"),
    *("prompt_logprobs", "skip_special_tokens", "spaces_between_special_tokens", "allowed_token_ids"),
)


async def _render_chat(context: Context, call: Call, body: RenderChatRequest) -> Response:
    context.require_generation()
    model = context.names.answering(body.model)
    name, options = request_name(body, call.request_id), call.options(body)
    chat = await translate(context, body, call.warnings, request_id=name, options=options)
    chat.warnings.note_since(call.warnings, context.note_warning)
    request, text = chat.request, chat.plan.end.text if body.input_ids is None else None
    with chat.names.renaming():
        return _json(
            _rendered(context, request, model, body)
            | {"token_offsets": await _offsets(context, body, request, text, is_framed=bool(body.add_special_tokens))}
            | chat.warnings.fields()
        )


async def _render_completion(context: Context, call: Call, body: RenderCompletionRequest) -> Response:
    context.require_generation()
    model = context.names.answering(body.model)
    read = await read_completion(context, call, body)
    is_framed = body.add_special_tokens is not False
    with read.names.renaming():
        return _json(
            [
                _rendered(context, request, model, body)
                | {"token_offsets": await _offsets(context, body, request, prompt, is_framed=is_framed)}
                for request, prompt in zip(read.requests, read.prompts, strict=True)
            ]
        )


async def _offsets(
    context: Context, body: _Body, request: GenerationRequest, prompt: str | list[int] | None, *, is_framed: bool
) -> list[tuple[int, int]] | None:
    """Return the characters of the text that each token of the prompt covers; None: not asked for, or not known.

    Args:
        is_framed: the tokenizer put its special tokens around the text.
    """
    if not body.return_token_offsets or not isinstance(prompt, str):
        return None
    cut = Truncation(len(request.prompt_ids), keeps_end=body.truncate_prompt_tokens is not None)
    return await run_encoding(lambda: context.encoder.spans(prompt, is_framed, cut), len(prompt))


def _rendered(context: Context, request: GenerationRequest, model: str, body: _Body) -> dict[str, Any]:
    """
    Raises:
        ContextLengthError: the prompt leaves no room for an answer.
        InvalidRequestError: min_tokens is over what the prompt leaves.
    """
    room = LengthLimit.of(context.engine.info)
    params = room.fit(request)
    most = room.limit - len(request.prompt_ids)
    if most < (params.max_tokens or 1):
        message = "The input ({size} tokens) leaves room for {most} tokens of output in {what} ({limit} tokens). "
        raise ContextLengthError.of(
            message + "Send a shorter prompt, or lower {param}.",
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
        "stream": bool(body.stream),
        "stream_options": None if body.stream_options is None else body.stream_options.model_dump(exclude_none=True),
        "cache_salt": request.options.cache_salt,
        "priority": request.options.priority,
        "kv_transfer_params": None,
    }


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), media_type="application/json")


RENDER_CHAT = Endpoint("/v1/chat/completions/render", RenderChatRequest, _render_chat)
RENDER_COMPLETION = Endpoint("/v1/completions/render", RenderCompletionRequest, _render_completion)
