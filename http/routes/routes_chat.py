"""POST /v1/chat/completions."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from palladio.http.chat.chat_output import ChatMessage
from palladio.http.chat.chat_run import ChatRun
from palladio.http.chat.message_chunks import MessageChunks
from palladio.http.generation.call import Call
from palladio.http.generation.choices import finish_fields
from palladio.http.generation.context import Context
from palladio.http.generation.logprobs import chat_logprobs, prompt_logprobs
from palladio.http.generation.sse import ChatChunks, EventStream, StreamSettings
from palladio.http.prompts.text_encoder import run_encoding
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.errors import ErrorBody
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.runtime.interface.outputs import RequestOutput


def chat_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", openapi_extra=describe_body(ChatRequest), response_model=None)
    async def chat_completions(
        request: Request, body: Annotated[ChatRequest, Depends(JsonBody(ChatRequest))]
    ) -> Response:
        return await complete_chat(context, Call.of(request), body)

    return router


async def complete_chat(context: Context, call: Call, body: ChatRequest) -> Response:
    """
    Raises:
        PalladioError: what went wrong before the status was sent.
        HttpError: the client went away.
    """
    run = await ChatRun.prepare(context, call, body)
    head = {
        "id": run.request.request_id,
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(run.request.received),
        "model": context.model_name(body.model),
        "system_fingerprint": context.system_fingerprint,
    }
    if body.stream:
        stream = await run.start()
        settings = StreamSettings.of(body, head, context.config.stream_interval, stream)
        if run.plan.is_plain:
            return EventStream(stream, ChatChunks(settings, run.tokenizer))
        return EventStream(stream, MessageChunks(settings, run.tokenizer, run.plan, run.request.params))
    answer = await run.collect()
    size = sum(len(output.text) for output in answer.outputs)
    pairs = list(zip(answer.outputs, answer.messages, strict=True))
    choices = await run_encoding(lambda: [_choice(*pair, body, run) for pair in pairs], size)
    fields: dict[str, Any] = head | {"choices": choices, "usage": answer.usage.as_dict()}
    if body.prompt_logprobs is not None:
        fields["prompt_logprobs"] = prompt_logprobs(
            run.tokenizer, answer.outputs[0].prompt_logprobs or [], body.prompt_logprobs
        )
    if body.return_token_ids:
        fields["prompt_token_ids"] = run.request.prompt_ids
    if body.return_timings:
        fields["timings"] = answer.usage.timings()
    return Response(orjson.dumps(fields), media_type="application/json")


def _choice(output: RequestOutput, message: ChatMessage, body: ChatRequest, run: ChatRun) -> dict[str, Any]:
    logprobs = chat_logprobs(run.tokenizer, output.logprobs or []) if run.request.params.logprobs is not None else None
    fields: dict[str, Any] = {"index": output.index, "message": message.as_dict(), "logprobs": logprobs}
    fields |= finish_fields(output.finish, has_calls=bool(message.calls))
    return fields | {"token_ids": output.token_ids} if body.return_token_ids else fields


def stored_router(_context: Context) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/chat/completions")
    async def list_completions() -> dict[str, Any]:
        """Whatever is asked for: there is nothing to filter."""
        return {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}

    @router.get("/v1/chat/completions/{completion_id}")
    @router.post("/v1/chat/completions/{completion_id}")
    @router.delete("/v1/chat/completions/{completion_id}")
    @router.get("/v1/chat/completions/{completion_id}/messages")
    async def one_completion(completion_id: str) -> Response:
        message = f"no stored chat completion {completion_id[:256]!r}: this server stores none, even with store: true"
        return ErrorBody(404, message, "completion_id", code="completion_not_found").response()

    return router
