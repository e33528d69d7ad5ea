"""OpenAI's routes for stored chat completions. `store` is metadata here: none is ever stored, and these say so."""

from typing import Any

from fastapi import APIRouter, Response

from palladio.http.generation.context import Context
from palladio.http.wire.errors import ErrorBody


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
        message = f"no stored chat completion {completion_id[:256]!r}: this server stores none, whatever store says"
        return ErrorBody(404, message, "completion_id", code="completion_not_found").response()

    return router
