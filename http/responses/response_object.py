"""The `response` object of /v1/responses."""

from collections.abc import Mapping
from typing import Any

from palladio.http.generation.usage import Usage
from palladio.http.responses.protocol_responses import ResponseRequest
from palladio.http.responses.response_items import Response
from palladio.http.wire.errors import ErrorBody
from palladio.runtime.interface.request.sampling_params import SamplingParams


def new_response(
    body: ResponseRequest, params: SamplingParams, response_id: str, created: float, model: str
) -> Response:
    """One that has not begun: what it is, and what the request asked for."""
    reasoning, text = body.reasoning, body.text
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(created),
        "status": "queued",
        "background": bool(body.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary or reasoning.generate_summary,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": params.temperature,
        "text": {
            "format": (None if text is None else text.format) or {"type": "text"},
            "verbosity": (None if text is None else text.verbosity) or "medium",
        },
        "tool_choice": body.tool_choice or "auto",
        "tools": [_tool(tool) for tool in body.tools or () if tool["type"] == "function"],  # others are left out
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
    }


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict") is True,
    }


def response_usage(usage: Usage) -> dict[str, Any]:
    counts = usage.as_dict()
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": counts["completion_tokens_details"],
        "total_tokens": counts["total_tokens"],
    }


def response_error(error: ErrorBody) -> dict[str, Any]:
    """`error` of a response that failed: OpenAI knows few codes."""
    code = "rate_limit_exceeded" if error.code == "overloaded" else "server_error"
    return {"code": "invalid_prompt" if error.status < 500 else code, "message": error.message}
