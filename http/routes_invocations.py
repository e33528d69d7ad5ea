"""POST /invocations: what SageMaker sends to a model's container; GET /ping, its probe, is another name of /health."""

from fastapi import APIRouter, Request, Response

from palladio.http.body import describe_body, read_body
from palladio.http.call import Call
from palladio.http.context import Context
from palladio.http.protocol_chat import ChatRequest
from palladio.http.protocol_completions import CompletionRequest
from palladio.http.routes_chat import complete_chat
from palladio.http.routes_completions import complete_text


def invocations_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/invocations", openapi_extra=describe_body(ChatRequest), response_model=None)
    async def invocations(request: Request) -> Response:
        """A chat completion; a body with `prompt` and without `messages` gets a text completion."""
        body, call = await read_body(request), Call.of(request)
        if isinstance(body, dict) and "prompt" in body and "messages" not in body:
            return await complete_text(context, call, CompletionRequest.parse(body))
        return await complete_chat(context, call, ChatRequest.parse(body))

    return router
