"""Ollama's /api/chat, /api/generate, /api/embed, /api/tags, /api/show, /api/ps and /api/version."""

import datetime
import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Depends, Request, Response

from palladio.http.chat.chat_run import ChatRun
from palladio.http.generation.context import Call, Context
from palladio.http.generation.event_stream import EventStream
from palladio.http.ollama.ollama_chat import OllamaChat
from palladio.http.ollama.ollama_embed import embed, embed_one
from palladio.http.ollama.ollama_lines import OllamaLines, head
from palladio.http.ollama.protocol_ollama import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaFields,
    OllamaGenerateRequest,
    ShowRequest,
)
from palladio.http.prompts.text_encoding import entries_size, run_encoding
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.fields import WarningList, Warnings

VERSION = "0.12.6"  # of Ollama, whose API this is: clients look whether it is new enough
LATEST = ":latest"  # the tag that names without one have


Texts = TypeVar("Texts", OllamaEmbedRequest, OllamaEmbeddingsRequest)


def ollama_router(context: Context) -> APIRouter:
    router = APIRouter()
    chat_reader = JsonBody(OllamaChatRequest, context.note_warning, of_any_type=True)
    prompt_reader = JsonBody(OllamaGenerateRequest, context.note_warning, of_any_type=True)

    @router.post("/api/chat", openapi_extra=describe_body(OllamaChatRequest), response_model=None)
    async def chat(request: Request) -> Response:
        body, before = await chat_reader.read(request)
        if not body.messages:
            return _load(context, body)
        model = served_name(context, body.model)
        warnings = WarningList(before)
        translated = await run_encoding(
            lambda: OllamaChat(body, model, warnings), entries_size(body.messages, body.tools)
        )
        return await _answer(context, Call.of(request, before), body, translated, warnings.found)

    @router.post("/api/generate", openapi_extra=describe_body(OllamaGenerateRequest), response_model=None)
    async def generate(request: Request) -> Response:
        body, before = await prompt_reader.read(request)
        prompt = body.prompt
        if not prompt:
            return _load(context, body)
        context.require_generation()
        ids = await run_encoding(lambda: context.encoder.encode(prompt), len(prompt)) if body.raw else None
        model, warnings = served_name(context, body.model), WarningList(before)
        translated = OllamaChat(body, model, warnings, ids)
        return await _answer(context, Call.of(request, before), body, translated, warnings.found)

    _add_embeddings(router, context, "/api/embed", OllamaEmbedRequest, embed)
    _add_embeddings(router, context, "/api/embeddings", OllamaEmbeddingsRequest, embed_one)
    _add_models(router, context)
    return router


async def _answer(
    context: Context, call: Call, body: OllamaFields, translated: OllamaChat, warnings: Warnings
) -> Response:
    run = await ChatRun.prepare(context, call, translated.chat, translated.names, warnings, lowers_length=True)
    is_chat = isinstance(body, OllamaChatRequest)
    lines = OllamaLines(run, body.model, is_chat=is_chat, warnings=run.warnings.fields())
    if body.stream is not False:
        return EventStream(await run.start(keeps_alive=False), lines, media_type="application/x-ndjson")
    await run.feed(lines.write)
    return Response(orjson.dumps(lines.answer), media_type="application/json")


def _load(context: Context, body: OllamaFields) -> Response:
    """Without anything to answer, Ollama loads the model, or gives it up with keep_alive 0. Here it is always there."""
    context.require_generation()
    served_name(context, body.model)
    said: dict[str, Any] = {"response": ""}
    if isinstance(body, OllamaChatRequest):
        said = {"message": {"role": "assistant", "content": ""}}
    reason = "unload" if body.keep_alive in (0, "0", "0s") else "load"
    answer = orjson.dumps(head(body.model) | said | {"done_reason": reason, "done": True})
    return Response(answer, media_type="application/json")


def served_name(context: Context, asked: str) -> str:
    """
    Raises:
        ModelNotFoundError: no such model is served here.
    """
    name = asked.removesuffix(LATEST)
    if context.names.has(asked) or context.names.takes_any:
        return context.names.answering(asked)
    short = (served for served in context.names.shown if served.rstrip("/").rpartition("/")[2] == name)
    return context.names.answering(next(short, name))


def _add_embeddings(
    router: APIRouter,
    context: Context,
    path: str,
    kind: type[Texts],
    answer: Callable[[Context, Call, Texts], Awaitable[Response]],
) -> None:
    reader = JsonBody(kind, context.note_warning, of_any_type=True)

    @router.post(path, openapi_extra=describe_body(kind), response_model=None)
    async def embeddings(request: Request) -> Response:
        body, before = await reader.read(request)
        context.require_ready()
        served_name(context, body.model)
        return await answer(context, Call.of(request, before), body)


def _add_models(router: APIRouter, context: Context) -> None:
    @router.get("/api/version")
    async def version() -> dict[str, str]:
        return {"version": VERSION}

    @router.get("/api/tags")
    async def tags() -> dict[str, Any]:
        context.require_ready()
        return {"models": [_model(context, name) for name in context.names.shown]}

    @router.get("/api/ps")
    async def running() -> dict[str, Any]:
        context.require_ready()
        info = context.engine.info
        num_bytes = 0 if info.device.startswith("cpu") else info.weights.num_bytes
        of_ever = {
            "expires_at": "2318-01-01T00:00:00Z",
            "size_vram": num_bytes,
            "context_length": context.facts.max_model_len,
        }
        return {"models": [_model(context, name) | of_ever for name in context.names.shown]}

    @router.post("/api/show", openapi_extra=describe_body(ShowRequest))
    async def show(body: Annotated[ShowRequest, Depends(JsonBody(ShowRequest, of_any_type=True))]) -> dict[str, Any]:
        context.require_ready()
        asked = body.model or body.name
        name = context.names.answering(None) if asked is None else served_name(context, asked)
        return _details(context, name)


def _model(context: Context, name: str) -> dict[str, Any]:
    started = datetime.datetime.fromtimestamp(context.started, datetime.UTC)
    return {
        "name": name,
        "model": name,
        "modified_at": started.isoformat().replace("+00:00", "Z"),
        "size": context.engine.info.weights.num_bytes,
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "details": _form(context),
    }


def _short(count: int) -> str:
    """A number as Ollama writes it: 134.52M, 8.2B."""
    if count >= 1_000_000_000:
        return f"{count / 1e9:.1f}B"
    return f"{count / 1e6:.2f}M" if count >= 1_000_000 else f"{count / 1e3:.2f}K"


def _form(context: Context) -> dict[str, Any]:
    family = context.engine.info.model_type
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": _short(context.engine.info.weights.num_parameters),
        "quantization_level": context.engine.info.dtype,
    }


def _details(context: Context, name: str) -> dict[str, Any]:
    family, tokenizer = context.engine.info.model_type, context.engine.tokenizer
    template = None if tokenizer is None else context.chat_template.source(tokenizer)
    abilities = ["completion"] if context.engine.info.embedding is None else ["embedding"]
    if tokenizer is not None and template is not None:
        abilities += ["tools"] if context.facts.takes_tools else []
        abilities += ["thinking"] if context.facts.reasoning is not None else []
    return {
        "modelfile": "",
        "parameters": "",
        "template": template or "",
        "details": _form(context),
        "model_info": {
            "general.architecture": family,
            "general.basename": name,
            "general.parameter_count": context.engine.info.weights.num_parameters,
            f"{family}.context_length": context.facts.max_model_len,
        },
        "capabilities": abilities,
        "modified_at": _model(context, name)["modified_at"],
    }
