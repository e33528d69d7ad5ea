"""ResponseRun: one request to /v1/responses on the engine, and what is kept of it."""

import dataclasses
from typing import Self

from palladio.http.chat.chat_run import ChatRun
from palladio.http.generation.context import Call, Context
from palladio.http.prompts.text_encoding import entries_size, run_encoding
from palladio.http.responses.protocol_responses import InputTokensRequest, ResponseRequest
from palladio.http.responses.response_chat import Conversation, ResponseChat
from palladio.http.responses.response_events import ResponseEvents
from palladio.http.responses.response_items import Item, input_items, referenced_ids
from palladio.http.responses.response_object import new_response
from palladio.http.responses.response_store import ResponseStore, StoredResponse, not_found
from palladio.http.responses.truncation import fitted
from palladio.http.security.callers import Caller
from palladio.http.storage.records.disk_errors import disk_errors
from palladio.http.storage.records.object_lists import new_id
from palladio.http.wire.fields import WarningList

ROUTE = "/v1/responses"


@dataclasses.dataclass(frozen=True, slots=True)
class ResponseRun:
    """
    Attributes:
        run: the request as chat has it, on the engine.
        events: what comes of it.
    """

    run: ChatRun
    events: ResponseEvents
    _body: ResponseRequest
    _items: list[Item]
    _store: ResponseStore
    _caller: Caller

    @classmethod
    async def prepare(
        cls, context: Context, call: Call, body: ResponseRequest, store: ResponseStore, response_id: str | None = None
    ) -> Self:
        """
        Args:
            response_id: of one that is made again.

        Raises:
            PalladioError: the engine does not run, or a field is wrong; `param` names it as the client did.
            HttpError: what it goes on from is not stored.
        """
        name = response_id or new_id("resp_")
        warnings = WarningList(call.warnings)
        conversation = await conversation_of(store, body, name, call.caller, warnings)
        if body.truncation == "auto":
            conversation = await fitted(context, body, conversation)
        size = entries_size([*conversation.earlier, *conversation.new], body.tools)
        chat = await run_encoding(lambda: ResponseChat(body, conversation, warnings, name), size)
        run = await ChatRun.prepare(context, call, chat.chat, chat.names, warnings.found)
        model = context.names.answering(body.model)
        response = new_response(body, run.request.params, name, run.request.received, model)
        response |= run.warnings.fields()
        obfuscate = bool(body.stream_options and body.stream_options.include_obfuscation)
        events = ResponseEvents(run, response, obfuscate=obfuscate)
        return cls(run, events, body, list(conversation.new), store, call.caller)

    async def save(self) -> None:
        """Keeps it, if it is to be kept: when it has ended, or, in the background, before it begins.

        Raises:
            HttpError: the disk is full.
        """
        if self._body.store is False:
            return
        request = self._body.model_dump(exclude_none=True) if self._body.background else None
        with disk_errors():
            stored = StoredResponse(self.events.response, request, owner=self._caller.owner)
            await self._store.add(stored, self._items, self._caller)


async def conversation_of(
    store: ResponseStore, body: InputTokensRequest, response_id: str, caller: Caller, warnings: WarningList
) -> Conversation:
    """What a request goes on from, out of the store where it refers to it.

    Args:
        warnings: unknown fields may pass with one.

    Raises:
        InvalidRequestError: an item is malformed.
        HttpError: what it refers to is not stored, or not for this caller.
    """
    earlier: list[Item] = []
    if body.previous_response_id is not None:
        earlier = await store.conversation(body.previous_response_id, "previous_response_id", caller)
    wanted = referenced_ids(body.input)
    found = await store.items(wanted, caller) if wanted else {}
    for name in wanted:
        if name not in found:
            raise not_found(name, "input")
    new = await run_encoding(lambda: input_items(body.input, found, response_id, warnings), entries_size(body.input))
    return Conversation(earlier, new)
