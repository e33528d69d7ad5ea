"""OpenAI's /v1/responses: answers as items, which this server keeps."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from palladio.http.chat.chat_run import translate
from palladio.http.generation.context import Call, Context
from palladio.http.generation.event_stream import HEADERS, EventStream
from palladio.http.prompts.text_encoding import entries_size, run_encoding
from palladio.http.responses.background_responses import BackgroundResponses
from palladio.http.responses.event_log import split_events
from palladio.http.responses.protocol_responses import InputTokensRequest, ResponseRequest
from palladio.http.responses.response_chat import ResponseChat
from palladio.http.responses.response_run import ResponseRun, conversation_of
from palladio.http.responses.response_store import ResponseStore, StoredResponse
from palladio.http.responses.unfinished_responses import UnfinishedResponses
from palladio.http.security.callers import Caller, CallerOf
from palladio.http.storage.records.disk_errors import disk_errors
from palladio.http.storage.records.object_lists import page
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.fields import WarningList
from palladio.runtime.interface.errors import InvalidRequestError, OverloadedError

MAX_LISTED = 100


def responses_router(
    context: Context, store: ResponseStore, background: BackgroundResponses, unfinished: UnfinishedResponses
) -> APIRouter:
    router = APIRouter()
    reader = JsonBody(ResponseRequest, context.note_warning)

    async def find(response_id: str, caller: Caller) -> StoredResponse:
        await unfinished.start()
        return await store.get(response_id, caller)

    @router.post("/v1/responses", openapi_extra=describe_body(ResponseRequest), response_model=None)
    async def create(request: Request) -> Response:
        body, warnings = await reader.read(request)
        call = Call.of(request, warnings)
        if body.background:
            await unfinished.start()
            return await _start(context, call, body, store, background)
        return await complete_response(context, call, body)

    _add_input_tokens(router, context, store)

    @router.get("/v1/responses/{response_id}", response_model=None)
    async def retrieve(
        response_id: str,
        caller: CallerOf,
        *,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        before = background.find(response_id)  # what ends while the store is asked is in neither, after that
        stored = await find(response_id, caller)
        running = background.find(response_id) or before
        if not stream:
            return _json(stored.response if running is None else await background.shown(running))
        first = 0 if starting_after is None else starting_after + 1
        if running is not None:
            return _events(running.log.follow(first))
        if stored.request is not None:
            raise OverloadedError(
                f"{response_id} runs on another server, or waits to run again after its server stopped; "
                "ask again, for its events once it has ended"
            )
        if stored.events is None:
            message = "only responses with background: true keep their events; leave out stream"
            raise InvalidRequestError(message, param="stream")
        return _events(_replay(split_events(stored.events)[first:]))

    @router.delete("/v1/responses/{response_id}")
    async def delete(response_id: str, caller: CallerOf) -> dict[str, Any]:
        await find(response_id, caller)
        unfinished.withdraw(response_id)
        await background.drop(response_id)
        with disk_errors():
            await store.delete(response_id, caller)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.post("/v1/responses/{response_id}/cancel", response_model=None)
    async def cancel(response_id: str, caller: CallerOf) -> Response:
        """One that has ended stays as it is."""
        stored = await find(response_id, caller)
        if not stored.response["background"]:
            raise InvalidRequestError("only responses with background: true can be cancelled", param="response_id")
        unfinished.withdraw(response_id)
        return _json(await background.cancel(response_id))

    @router.get("/v1/responses/{response_id}/input_items")
    async def input_items(
        response_id: str,
        caller: CallerOf,
        limit: Annotated[int, Query(ge=0, le=MAX_LISTED)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> dict[str, Any]:
        items = await store.input_items(response_id, caller)
        return _page(items if order == "asc" else items[::-1], limit, after)

    return router


def _add_input_tokens(router: APIRouter, context: Context, store: ResponseStore) -> None:
    reader = JsonBody(InputTokensRequest, context.note_warning)

    @router.post("/v1/responses/input_tokens", openapi_extra=describe_body(InputTokensRequest))
    async def input_tokens(request: Request, caller: CallerOf) -> dict[str, Any]:
        body, before = await reader.read(request)
        context.require_ready()
        context.names.answering(body.model)
        warnings = WarningList(before)
        conversation = await conversation_of(store, body, "resp_", caller, warnings)
        size = entries_size([*conversation.earlier, *conversation.new], body.tools)
        chat = await run_encoding(lambda: ResponseChat(body, conversation, warnings), size)
        counted = await translate(context, chat.chat, warnings.found, chat.names, is_counted=True)
        counted.warnings.note_since(before, context.note_warning)
        count = len(counted.request.prompt_ids)
        return {"object": "response.input_tokens", "input_tokens": count} | counted.warnings.fields()


async def complete_response(context: Context, call: Call, body: ResponseRequest) -> Response:
    """Make a response while the client waits for it.

    Raises:
        PalladioError: what went wrong before the status was sent.
        HttpError: the same, or the client went away.
    """
    if body.background:
        raise InvalidRequestError("background: true is not possible here; leave it out", param="background")
    database = context.storage.database
    store = ResponseStore(database, context.config.max_stored_responses)
    response_id = None
    if call.is_background:  # a line of a batch
        if not body.store:  # lines by the thousand would take the place of everybody's conversations
            body = body.model_copy(update={"store": False})
        else:  # a line that is run again takes the place of what it stored
            response_id = f"resp_{call.request_id}"
            with disk_errors():
                await store.delete(response_id, call.caller)
    if body.store is not False:
        database.check()  # no tokens for an answer that would be refused
    response = await ResponseRun.prepare(context, call, body, store, response_id)
    if body.stream:
        return EventStream(await response.run.start(), response.events, response.save)
    await response.run.feed(response.events.write)
    await response.save()
    return _json(response.events.response)


async def _start(
    context: Context, call: Call, body: ResponseRequest, store: ResponseStore, background: BackgroundResponses
) -> Response:
    if body.store is False:
        raise InvalidRequestError(
            "background: true needs store: true; otherwise the response could not be retrieved", param="store"
        )
    response = await ResponseRun.prepare(context, call.detached(), body, store)
    await response.save()
    first = _json(response.events.response)
    running = background.start(response.run, response.events)
    return _events(running.log.follow(0)) if body.stream else first


def _json(content: dict[str, Any]) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


def _events(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, headers=HEADERS, media_type="text/event-stream")


async def _replay(events: list[bytes]) -> AsyncIterator[bytes]:
    yield b"".join(events)


def _page(items: list[dict[str, Any]], limit: int, after: str | None) -> dict[str, Any]:
    """
    Raises:
        InvalidRequestError: `after` is none of them.
    """
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise InvalidRequestError(f"after: {after[:100]!r} is not an input item of this response", param="after")
        items = items[places[0] + 1 :]
    return page(items, limit)
