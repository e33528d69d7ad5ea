"""Anthropic's /v1/messages and /v1/messages/count_tokens."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from palladio.http.anthropic.anthropic_chat import AnthropicChat
from palladio.http.anthropic.anthropic_events import AnthropicEvents
from palladio.http.anthropic.protocol_anthropic import CountTokensRequest, MessagesRequest
from palladio.http.chat.chat_run import ChatRun, translate
from palladio.http.generation.context import Context
from palladio.http.generation.generation import Call, Endpoint
from palladio.http.generation.sse import EventStream
from palladio.http.prompts.chat_messages import entries_size, run_encoding
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.errors import RequestNames
from palladio.runtime.front.requests.intake import LengthLimit
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.generation_request import GenerationRequest


def messages_router(context: Context) -> APIRouter:
    router = APIRouter()

    Endpoint("/v1/messages", MessagesRequest, complete_message).add_to(router, context)

    @router.post("/v1/messages/count_tokens", openapi_extra=describe_body(CountTokensRequest))
    async def count_tokens(
        request: Request,
        body: Annotated[CountTokensRequest, Depends(JsonBody(CountTokensRequest, context.note_warning))],
    ) -> dict[str, Any]:
        context.require_ready()
        context.model_name(body.model)
        names = RequestNames.of(request.scope)
        chat = await run_encoding(lambda: AnthropicChat(body, names), entries_size(body.messages, body.tools))
        names.add(chat.names)
        counted, _ = await translate(context, chat.chat, names, reasoning_is_optional=True, is_counted=True)
        return {"input_tokens": len(counted.prompt_ids)} | names.warnings()

    return router


async def complete_message(context: Context, call: Call, body: MessagesRequest) -> Response:
    """
    Raises:
        PalladioError: what went wrong before the status was sent.
        HttpError: the client went away.
    """
    name = f"msg_{call.request_id}"
    chat = await run_encoding(lambda: AnthropicChat(body, call.names, name), entries_size(body.messages, body.tools))
    call.names.add(chat.names)
    run = await ChatRun.prepare(context, call, chat.chat, reasoning_is_optional=True, lowers_length=True)
    _warn_of_length(context, call, run.request, body.max_tokens)
    events = AnthropicEvents(run, name, context.model_name(body.model))
    events.message |= call.names.warnings()
    if body.stream:
        return EventStream(await run.start(), events)
    await run.feed(events.write)
    return Response(orjson.dumps(events.message), media_type="application/json")


def _warn_of_length(context: Context, call: Call, request: GenerationRequest, max_tokens: int) -> None:
    """Clients of this API must give max_tokens, and give what the largest models can: it is a limit here, no demand.

    Raises:
        InvalidRequestError: warnings are errors (--unknown-fields refuse).
    """
    limit = LengthLimit.of(context.engine.info)
    room = limit.limit - len(request.prompt_ids)
    if 0 < room < max_tokens:
        message = "{param} is {value}, but the prompt leaves {room} tokens of {limit}"
        code = "context_length_exceeded"
        error = InvalidRequestError.of(
            message, param="max_tokens", code=code, value=max_tokens, room=room, limit=limit.name
        )
        call.names.warn(error, outcome="lowered to that")
