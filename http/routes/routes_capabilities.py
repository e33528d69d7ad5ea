"""GET /v1/capabilities: what the running model and this server can do, out of the tables that requests meet."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request

from palladio.http.generation.context import Context
from palladio.http.generation.prompts import MAX_SAMPLES
from palladio.http.reasoning.family import ReasoningFamily
from palladio.http.wire.foreign_fields import verdicts
from palladio.runtime.interface.generation_request import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)

# Routes of models that generate text, and of those that make embeddings: the other kind answers them with a 400.
_GENERATING = frozenset(
    f"POST {path}"
    for path in (
        *("/v1/chat/completions", "/v1/completions", "/generate", "/v1/responses", "/v1/messages", "/invocations"),
        *("/api/chat", "/api/generate"),
    )
)
_EMBEDDING = frozenset(("POST /v1/embeddings", "POST /encode"))


def capabilities_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/capabilities")
    async def capabilities(request: Request) -> dict[str, Any]:
        context.require_ready()
        return _model(context) | {"limits": _limits(context), "routes": _routes(context, request.app.openapi())}

    return router


def _model(context: Context) -> dict[str, Any]:
    info, tokenizer = context.engine.info, context.engine.tokenizer
    has_template, reasoning = _has_template(context), _reasoning(context)
    embedding = info.embedding
    return {
        "object": "capabilities",
        "model": context.model_names[0],
        "any_model_name": "*" in (context.config.served_model_name or ()),
        "architecture": info.architecture,
        "dtype": info.dtype,
        "device": info.device,
        "max_model_len": context.max_model_len,
        "modalities": {"input": ["text"], "output": ["text" if embedding is None else "embedding"]},
        "embedding": None if embedding is None else dataclasses.asdict(embedding),
        "tokenizer": tokenizer is not None,
        "chat_template": has_template,
        "reasoning_parser": None if reasoning is None else reasoning.name,
        "tool_call_parser": context.tool_format.name if has_template else None,
        "grammar_backend": context.engine.config.grammar.grammar_backend if _has_grammars(context) else None,
    }


def _has_template(context: Context) -> bool:
    tokenizer = context.engine.tokenizer
    return tokenizer is not None and context.chat_template.source(tokenizer) is not None


def _reasoning(context: Context) -> ReasoningFamily | None:
    return context.reasoning if _has_template(context) else None


def _has_grammars(context: Context) -> bool:
    """Grammars are of the tokenizer's texts."""
    engine = context.engine
    is_on = engine.config.grammar.grammar_backend != "none" and engine.info.embedding is None
    return is_on and engine.tokenizer is not None


def _limits(context: Context) -> dict[str, int]:
    return {
        "prompts_times_n": MAX_SAMPLES,
        "n": MAX_N,
        "logprobs": MAX_LOGPROBS,
        "logit_bias": MAX_LOGIT_BIAS,
        "stop": MAX_STOP_STRINGS,
        "stop_token_ids": MAX_STOP_TOKEN_IDS,
        "body_bytes": context.limits.max_bytes,
        "body_values": context.limits.max_values,
    }


def _routes(context: Context, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Args: schema: the app's OpenAPI schema, whose bodies are the wire models."""
    closed = _EMBEDDING if context.engine.info.embedding is None else _GENERATING
    has_grammars, has_reasoning = _has_grammars(context), _reasoning(context) is not None
    has_tools = _has_template(context) and context.chat_template.reads_tools(context.tokenizer)
    found = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            entry: dict[str, Any] = {"route": f"{method.upper()} {path}"}
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                known = content["application/json"]["schema"]["properties"]
                entry["fields"] = verdicts(
                    known,
                    has_grammars=has_grammars,
                    has_reasoning=has_reasoning,
                    has_tools=has_tools,
                    has_embeds=context.engine.info.embeds is not None,
                )
            if entry["route"] not in closed:
                found.append(entry)
    return found
