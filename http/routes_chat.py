"""POST /v1/chat/completions."""

import time
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from palladio.http.body import JsonBody, describe_body
from palladio.http.choices import Choice, collect
from palladio.http.context import Context
from palladio.http.generation import OutputStream, until_disconnect
from palladio.http.logprobs import chat_logprobs, prompt_logprobs
from palladio.http.protocol_chat import ChatRequest
from palladio.http.request_record import Origin
from palladio.http.sampling import check_scoring_only, client_names, request_name, request_options, sampling_params
from palladio.http.sse import ChatChunks, EventStream, StreamSettings
from palladio.runtime.errors import InvalidRequestError
from palladio.runtime.sampling_params import SamplingParams
from palladio.runtime.sglang_format import Job
from palladio.runtime.tokenizer import Tokenizer


def chat_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=describe_body(ChatRequest), response_model=None)
    async def chat_completions(
        request: Request, body: Annotated[ChatRequest, Depends(JsonBody(ChatRequest))]
    ) -> Response:
        context.require_ready()
        return await _complete(context, request, body)

    return router


async def _complete(context: Context, request: Request, body: ChatRequest) -> Response:
    received = time.time()
    origin = Origin.of(request, no_logs=body.no_logs, log_metrics=body.log_metrics)
    model = context.model_name(body.model)
    tokenizer = context.tokenizer
    limit_name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    if len({body.max_tokens, body.max_completion_tokens} - {None}) > 1:
        raise InvalidRequestError("max_tokens and max_completion_tokens differ; give one", param="max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    fields = {"max_tokens": limit_name, "logprobs": "top_logprobs"}
    with client_names(fields | {"prompt": "messages"}, fields):
        params, options = _params(body, context, limit_name), request_options(body)
        name = request_name(body, request.state.request_id)
        prompt_ids = await context.chat_template.encode(
            context.encoder,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=body.add_special_tokens,
            kwargs=body.chat_template_kwargs,
        )
        job = Job(name, prompt_ids, params, options=options)
        stream = OutputStream(context, [job], name=name, received=received, origin=origin)
        head = {
            "id": name,
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(received),
            "model": model,
            "system_fingerprint": context.system_fingerprint,
        }
        if body.stream:
            settings = StreamSettings.of(body, head, context.config.stream_interval, stream)
            await until_disconnect(request.receive, stream.start())
            return EventStream(stream, ChatChunks(settings, tokenizer))
        choices, usage = await until_disconnect(request.receive, collect(stream))
    answer: dict[str, Any] = head | {
        "choices": [_choice(choice, body, params, tokenizer) for choice in choices],
        "usage": usage.as_dict(),
    }
    if body.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(tokenizer, choices[0].prompt_logprobs, body.prompt_logprobs)
    if body.return_token_ids:
        answer["prompt_token_ids"] = prompt_ids
    if body.return_timings:
        answer["timings"] = usage.timings()
    return Response(orjson.dumps(answer), media_type="application/json")


def _params(body: ChatRequest, context: Context, limit_name: str) -> SamplingParams:
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    check_scoring_only(body, max_tokens, limit_name)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling_params(body, context.sampling_defaults, max_tokens=max_tokens, logprobs=logprobs)


def _choice(choice: Choice, body: ChatRequest, params: SamplingParams, tokenizer: Tokenizer) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": choice.text,
        "reasoning_content": None,
        "tool_calls": None,
        "refusal": None,
    }
    logprobs = chat_logprobs(tokenizer, choice.logprobs) if params.logprobs is not None else None
    fields = {"index": choice.index, "message": message, "logprobs": logprobs} | choice.end()
    return fields | {"token_ids": choice.token_ids} if body.return_token_ids else fields
