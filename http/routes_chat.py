"""POST /v1/chat/completions."""

import time
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from palladio.http.body import JsonBody, describe_body
from palladio.http.chat_job import ChatJob
from palladio.http.chat_output import ChatMessage
from palladio.http.choices import Choice, Usage, collect, finish_fields
from palladio.http.context import Context
from palladio.http.generation import OutputStream, until_disconnect
from palladio.http.logprobs import chat_logprobs, prompt_logprobs
from palladio.http.message_chunks import MessageChunks
from palladio.http.protocol_chat import ChatRequest
from palladio.http.request_record import Origin
from palladio.http.sampling import client_names, request_name, request_options
from palladio.http.sse import ChatChunks, EventStream, StreamSettings
from palladio.http.text_encoder import run_encoding
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
    name, options = request_name(body, request.state.request_id), request_options(body)
    chat = await ChatJob.prepare(context, body)
    with client_names(chat.client_names | {"prompt": "messages"}, chat.client_names):
        job = Job(name, chat.prompt.token_ids, chat.params, options=options)
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
            if chat.plan.is_plain:
                return EventStream(stream, ChatChunks(settings, tokenizer))
            return EventStream(stream, MessageChunks(settings, tokenizer, chat.plan, chat.params))
        choices, usage = await until_disconnect(request.receive, collect(stream))
    size = sum(len(choice.text) for choice in choices)
    answer: dict[str, Any] = await run_encoding(lambda: head | _read(choices, usage, body, chat, tokenizer), size)
    if body.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(tokenizer, choices[0].prompt_logprobs, body.prompt_logprobs)
    if body.return_token_ids:
        answer["prompt_token_ids"] = chat.prompt.token_ids
    if body.return_timings:
        answer["timings"] = usage.timings()
    return Response(orjson.dumps(answer), media_type="application/json")


def _read(
    choices: list[Choice], usage: Usage, body: ChatRequest, chat: ChatJob, tokenizer: Tokenizer
) -> dict[str, Any]:
    """What is made of the samples' texts, and of their tokens."""
    answers = [_choice(choice, body, chat, tokenizer) for choice in choices]
    _count_reasoning(usage, choices, chat, tokenizer)
    return {"choices": answers, "usage": usage.as_dict()}


def _choice(choice: Choice, body: ChatRequest, chat: ChatJob, tokenizer: Tokenizer) -> dict[str, Any]:
    message = ChatMessage.read(chat.plan.new_parser(), choice.text)
    logprobs = chat_logprobs(tokenizer, choice.logprobs) if chat.params.logprobs is not None else None
    fields: dict[str, Any] = {"index": choice.index, "message": message.as_dict(), "logprobs": logprobs}
    fields |= finish_fields(choice.finish, has_calls=bool(message.calls))
    return fields | {"token_ids": choice.token_ids} if body.return_token_ids else fields


def _count_reasoning(usage: Usage, choices: list[Choice], chat: ChatJob, tokenizer: Tokenizer) -> None:
    for choice in choices:
        counter = chat.plan.new_counter(tokenizer, chat.params)
        if counter is not None:
            counter.add(choice.token_ids)
            usage.reasoning[choice.index] = counter.count
