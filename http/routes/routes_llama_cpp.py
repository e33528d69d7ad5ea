"""llama.cpp's GET /props and POST /apply-template."""

from typing import Any

import orjson
from fastapi import APIRouter, Response

from palladio.http.chat.chat_run import translate
from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.version import __version__


def llama_cpp_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.get("/props")
    async def props() -> dict[str, Any]:
        """The settings that llama.cpp's clients read; those of sampling are the defaults of requests."""
        context.require_ready()
        facts, info, tokenizer = context.facts, context.engine.info, context.engine.tokenizer
        template = None if tokenizer is None else context.chat_template.source(tokenizer)
        return {
            "default_generation_settings": {"n_ctx": facts.max_model_len, "params": dict(facts.sampling_defaults)},
            "total_slots": info.max_running_requests,
            "model_alias": context.names.shown[0],
            "model_path": context.engine.model.path or context.engine.config.source.model_path,
            "modalities": {"vision": False, "audio": False},
            "chat_template": template or "",
            "bos_token": _token_text(context, None if tokenizer is None else tokenizer.bos_token_id),
            "eos_token": _token_text(context, next(iter(info.eos_token_ids), None)),
            "build_info": f"palladio {__version__}",
            "is_sleeping": context.engine.state == "released",
        }

    return router


def _token_text(context: Context, token_id: int | None) -> str:
    tokenizer = context.engine.tokenizer
    return "" if tokenizer is None or token_id is None else tokenizer.token_text(token_id)


async def _apply_template(context: Context, call: Call, body: ChatRequest) -> Response:
    """
    Raises:
        PalladioError: a chat request would be refused.
    """
    context.require_generation()
    context.names.answering(body.model)
    if body.input_ids is not None:
        raise InvalidRequestError("input_ids are a prompt already: give messages", param="input_ids")
    chat = await translate(context, body, call.warnings, is_counted=True)
    chat.warnings.note_since(call.warnings, context.note_warning)
    content = {"prompt": chat.plan.end.text} | chat.warnings.fields()
    return Response(orjson.dumps(content), media_type="application/json")


APPLY_TEMPLATE = Endpoint("/apply-template", ChatRequest, _apply_template)
