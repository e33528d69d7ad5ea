"""POST /invocations: what SageMaker sends to a model's container; GET /ping, its probe, is another name of /health."""

from typing import Any

from fastapi import APIRouter, Request, Response

from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.routes.routes_chat import CHAT
from palladio.http.routes.routes_completions import COMPLETIONS
from palladio.http.wire.body import describe_body, read_body
from palladio.http.wire.protocol_chat import ChatRequest


def invocations_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/invocations", openapi_extra=describe_body(ChatRequest), response_model=None)
    async def invocations(request: Request) -> Response:
        """A chat completion; a body with `prompt` and without `messages` gets a text completion."""
        body = await read_body(request)
        is_text = isinstance(body, dict) and "prompt" in body and "messages" not in body
        endpoint: Endpoint[Any] = COMPLETIONS if is_text else CHAT
        return await endpoint.run(context, Call.of(request), body)

    return router
