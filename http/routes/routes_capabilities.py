"""GET /v1/capabilities: what the running model and this server can do, out of the tables that requests meet."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, Request

from palladio.http.generation.context import Context
from palladio.http.generation.prompts import MAX_SAMPLES
from palladio.http.generation.scored_pairs import is_judge
from palladio.http.reasoning.family import ReasoningFamily
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.interface.request.foreign_fields import verdicts
from palladio.runtime.interface.request.pooling_params import VectorKind
from palladio.runtime.interface.request.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)

# Routes of models that generate text, that make embeddings, and that classify: others answer a 400.
_GENERATING = frozenset(
    f"POST {path}"
    for path in (
        *("/v1/chat/completions", "/v1/completions", "/generate", "/v1/responses", "/v1/messages", "/invocations"),
        *("/api/chat", "/api/generate", "/v1/chat/completions/batch"),
    )
)
_EMBEDDING = frozenset(
    f"POST {path}" for path in ("/v1/embeddings", "/v2/embed", "/embed", "/api/embed", "/api/embeddings")
)
_OF_KINDS: Mapping[VectorKind, frozenset[str]] = MappingProxyType(
    {"tokens": frozenset(("POST /embed_all",)), "sparse": frozenset(("POST /embed_sparse",))}
)
_ENCODING = frozenset(("POST /encode", "POST /pooling"))
_SCORING = frozenset(("POST /v1/score", "POST /score"))
_RERANKING = frozenset(f"POST {path}" for path in ("/v1/rerank", "/rerank", "/v2/rerank"))
_CLASSIFYING = frozenset(("POST /v1/classify", "POST /classify", "POST /predict"))


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
    classes = None if embedding is None else embedding.classes
    output = "text" if embedding is None else "embedding" if classes is None else "classes"
    return {
        "object": "capabilities",
        "model": context.names.shown[0],
        "any_model_name": context.names.takes_any,
        "architecture": info.architecture,
        "dtype": info.dtype,
        "device": info.device,
        "max_model_len": context.facts.max_model_len,
        "modalities": {"input": ["text"], "output": [output]},
        "embedding": _shown(embedding) if classes is None else None,
        "classes": None if classes is None else {"labels": classes.labels, "activation": classes.activation},
        "tokenizer": tokenizer is not None,
        "chat_template": has_template,
        "chat_sampling_params": context.facts.chat_sampling,
        "reasoning_parser": None if reasoning is None else reasoning.name,
        "tool_call_parser": context.facts.tool_format.name if has_template else None,
        "grammar_backend": context.engine.config.grammar.grammar_backend if _has_grammars(context) else None,
    }


def _shown(embedding: EmbeddingSpec | None) -> dict[str, Any] | None:
    if embedding is None:
        return None
    return {
        "size": embedding.size,
        "pooling": embedding.pooling,
        "normalized": embedding.normalized,
        "kinds": list(embedding.kinds),
        "prompts": list(embedding.prompts),
    }


def _has_template(context: Context) -> bool:
    tokenizer = context.engine.tokenizer
    return tokenizer is not None and context.chat_template.source(tokenizer) is not None


def _reasoning(context: Context) -> ReasoningFamily | None:
    return context.facts.reasoning if _has_template(context) else None


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


def _closed(context: Context) -> frozenset[str]:
    """Routes that this server answers with a 400."""
    embedding, nothing = context.engine.info.embedding, frozenset[str]()
    known = () if embedding is None or embedding.classes is not None else embedding.kinds
    other_kinds = nothing.union(*(routes for kind, routes in _OF_KINDS.items() if kind not in known))
    if embedding is None:
        pairs = nothing if is_judge(context) else _RERANKING
        return _EMBEDDING | _ENCODING | _CLASSIFYING | pairs | other_kinds
    if embedding.classes is None:
        return _GENERATING | _CLASSIFYING | other_kinds
    pairs = nothing if len(embedding.classes.labels) == 1 else _SCORING | _RERANKING
    return _GENERATING | _EMBEDDING | pairs | other_kinds


def _routes(context: Context, schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Describe the routes.

    Args:
        schema: the app's OpenAPI schema, whose bodies are the wire models.
    """
    closed = _closed(context)
    has_grammars, has_reasoning = _has_grammars(context), _reasoning(context) is not None
    has_tools = _has_template(context) and context.facts.takes_tools
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
