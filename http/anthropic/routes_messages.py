"""Anthropic's /v1/messages and /v1/messages/count_tokens."""

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from palladio.http.anthropic.anthropic_chat import AnthropicChat
from palladio.http.anthropic.anthropic_events import AnthropicEvents
from palladio.http.anthropic.protocol_anthropic import CountTokensRequest, MessagesRequest
from palladio.http.chat.chat_run import ChatRun, translate
from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.event_stream import EventStream
from palladio.http.prompts.text_encoding import entries_size, run_encoding
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.fields import WarningList, Warnings
from palladio.runtime.interface.errors import InvalidRequestError


def messages_router(context: Context) -> APIRouter:
    router = APIRouter()

    Endpoint("/v1/messages", MessagesRequest, complete_message).add_to(router, context)
    reader = JsonBody(CountTokensRequest, context.note_warning)

    @router.post("/v1/messages/count_tokens", openapi_extra=describe_body(CountTokensRequest))
    async def count_tokens(request: Request) -> dict[str, Any]:
        body, before = await reader.read(request)
        context.require_ready()
        context.names.answering(body.model)
        chat, warnings = await _translate(body, before)
        counted = await translate(context, chat.chat, warnings, chat.names, reasoning_is_optional=True, is_counted=True)
        counted.warnings.note_since(before, context.note_warning)
        return {"input_tokens": len(counted.request.prompt_ids)} | counted.warnings.fields()

    return router


async def complete_message(context: Context, call: Call, body: MessagesRequest) -> Response:
    """
    Raises:
        PalladioError: what went wrong before the status was sent.
        HttpError: the client went away.
    """
    name = f"msg_{call.request_id}"
    chat, warnings = await _translate(body, call.warnings, name)
    run = await ChatRun.prepare(
        context, call, chat.chat, chat.names, warnings, reasoning_is_optional=True, lowers_length=True
    )
    warnings = _with_length(context, run, body.max_tokens)
    events = AnthropicEvents(run, name, context.names.answering(body.model))
    events.message |= warnings.fields()
    if body.stream:
        return EventStream(await run.start(), events)
    await run.feed(events.write)
    return Response(orjson.dumps(events.message), media_type="application/json")


async def _translate(
    body: CountTokensRequest, before: Warnings, name: str | None = None
) -> tuple[AnthropicChat, Warnings]:
    """
    Args:
        before: warnings of the body.
        name: the request's id.

    Raises:
        InvalidRequestError: see AnthropicChat.
    """
    warnings = WarningList(before)
    size = entries_size(body.messages, body.tools)
    chat = await run_encoding(lambda: AnthropicChat(body, warnings, name), size)
    return chat, warnings.found


def _with_length(context: Context, run: ChatRun, max_tokens: int) -> Warnings:
    """The request's warnings, with one of a max_tokens that is lowered. Clients of this API must give max_tokens, and
    give what the largest models can: it is a limit here, no demand.

    Raises:
        InvalidRequestError: warnings are errors (--unknown-fields refuse).
    """
    warnings = WarningList(run.warnings, run.stream.names)
    limit = context.facts.room
    room = limit.limit - len(run.request.prompt_ids)
    if 0 < room < max_tokens:
        message = "{param} is {value}, but the prompt leaves {room} tokens of {limit}"
        code = "context_length_exceeded"
        error = InvalidRequestError.of(
            message, param="max_tokens", code=code, value=max_tokens, room=room, limit=limit.name
        )
        warnings.warn(error, outcome="lowered to that")
        warnings.found.note_since(run.warnings, context.note_warning)
    return warnings.found
