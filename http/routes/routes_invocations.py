"""POST /invocations: what SageMaker sends to a model's container; GET /ping, its probe, is another name of /health."""

from fastapi import APIRouter, Request, Response

from palladio.http.chat.chat_run import complete_chat
from palladio.http.generation.context import Context
from palladio.http.generation.generation import Call
from palladio.http.routes.routes_completions import complete_text
from palladio.http.wire.body import describe_body, read_body, warned_names
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.http.wire.protocol_completions import CompletionRequest


def invocations_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/invocations", openapi_extra=describe_body(ChatRequest), response_model=None)
    async def invocations(request: Request) -> Response:
        """A chat completion; a body with `prompt` and without `messages` gets a text completion."""
        body, call = await read_body(request), Call.of(request)
        names = warned_names(request, context.note_warning)
        if isinstance(body, dict) and "prompt" in body and "messages" not in body:
            return await complete_text(context, call, CompletionRequest.parse(body, names))
        return await complete_chat(context, call, ChatRequest.parse(body, names))

    return router
