"""GET /v1/models."""

from typing import Any

from fastapi import APIRouter

from palladio.http.generation.context import Context


def models_router(context: Context) -> APIRouter:
    """Answers 503 until the engine is ready: launch scripts poll this route to learn when they may start."""
    router = APIRouter()

    @router.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        context.require_ready()
        return {"object": "list", "data": [_model(context, name) for name in context.names.shown]}

    @router.get("/v1/models/{name:path}")
    async def get_model(name: str) -> dict[str, Any]:
        context.require_ready()
        return _model(context, context.names.answering(name))

    return router


def _model(context: Context, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(context.started),
        "owned_by": "palladio",
        "root": context.engine.config.source.model_path,
        "parent": None,
        "max_model_len": context.facts.max_model_len,
    }
