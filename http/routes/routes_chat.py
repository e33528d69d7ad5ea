"""POST /v1/chat/completions, and the routes of stored completions, of which there are none."""

from typing import Any

import orjson
from fastapi import APIRouter, HTTPException, Request, Response

from palladio.http.chat.chat_output import ChatMessage, MessageChunks
from palladio.http.chat.chat_run import ChatRun
from palladio.http.generation.chunks import ChatChunks, StreamSettings
from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.generation.event_stream import EventStream, EventWriter, with_warnings
from palladio.http.generation.logprobs import chat_logprobs, prompt_logprobs
from palladio.http.generation.params import wants_progress
from palladio.http.generation.progress_chunks import CHAT_CHOICE, ProgressChunks
from palladio.http.generation.usage import closed_fields, finish_fields
from palladio.http.generation.whole import answer_size
from palladio.http.prompts.text_encoding import run_encoding
from palladio.http.wire.errors import ErrorBody, route_path
from palladio.http.wire.missing_routes import instead_of
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.runtime.interface.outputs.request_output import RequestOutput


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
        "model": context.names.answering(body.model),
        "system_fingerprint": context.facts.system_fingerprint,
    }
    if body.stream:
        stream = await run.start()
        settings = StreamSettings.of(body, head, context.config, stream)
        chunks: EventWriter = ChatChunks(settings, run.tokenizer)
        if not run.plan.is_plain:
            chunks = MessageChunks(settings, run.tokenizer, run.plan, run.request.params)
        if wants_progress(body):
            chunks = ProgressChunks(chunks, settings, CHAT_CHOICE)
        return EventStream(stream, with_warnings(chunks, run.warnings))
    answer = await run.collect()
    outputs, prompt_ids = answer.outputs, run.request.prompt_ids

    def write() -> Response:
        choices = [chat_choice(*pair, body, run) for pair in zip(outputs, answer.messages, strict=True)]
        fields: dict[str, Any] = head | {"choices": choices, "usage": answer.usage.as_dict()} | context.metadata()
        fields |= run.warnings.fields()
        if body.prompt_logprobs is not None:
            scores = outputs[0].prompt_logprobs or []
            fields["prompt_logprobs"] = prompt_logprobs(run.tokenizer, scores, body.prompt_logprobs)
        if body.return_token_ids:
            fields["prompt_token_ids"] = prompt_ids
        if body.return_timings:
            fields["timings"] = answer.usage.timings()
        return Response(orjson.dumps(fields), media_type="application/json")

    return await run_encoding(write, answer_size(outputs, [prompt_ids] if body.return_token_ids else ()))


def chat_choice(output: RequestOutput, message: ChatMessage, body: ChatRequest, run: ChatRun) -> dict[str, Any]:
    """One of an answer's choices."""
    logprobs = chat_logprobs(run.tokenizer, output.logprobs or []) if run.request.params.logprobs is not None else None
    fields: dict[str, Any] = {"index": output.index, "message": message.as_dict(), "logprobs": logprobs}
    fields |= finish_fields(output.finish, has_calls=bool(message.calls)) | closed_fields(output)
    return fields | {"token_ids": output.token_ids} if body.return_token_ids else fields


CHAT = Endpoint("/v1/chat/completions", ChatRequest, complete_chat)


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
    async def one_completion(request: Request, completion_id: str) -> Response:
        if instead_of(route_path(request.scope)) is not None:  # another server's route, no id
            raise HTTPException(404)
        message = f"no stored chat completion {completion_id[:256]!r}: this server stores none, even with store: true"
        return ErrorBody(404, message, "completion_id", code="completion_not_found").response()

    return router
