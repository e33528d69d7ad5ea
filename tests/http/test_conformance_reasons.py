"""scripts/conformance.toml: what it takes out of the SDK's requests really is refused, in the SDK's own values."""

import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow  # of `make conformance`, which .ci/run runs

SELECTION = tomllib.loads(
    (Path(__file__).resolve().parents[2] / "scripts" / "conformance.toml").read_text(encoding="utf-8")
)
FUNCTION = {"name": "name", "parameters": {"foo": "bar"}}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "none",
}
VALUES: dict[str, Any] = {
    "logit_bias": {"foo": 0},
    "max_tokens": 0,
    "max_completion_tokens": 0,
    "functions": [FUNCTION],
    "function_call": "none",
    "moderation": {"model": "model", "policy": {"input": {"mode": "score"}, "output": {"mode": "score"}}},
    "verbosity": "low",
    "web_search_options": {"search_context_size": "low"},
    "suffix": "test.",
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
    "conversation": "string",
    "image": {"context_compression": "auto"},
    "previous_response_id": "resp_123",
    "prompt": {"id": "id", "variables": {"foo": "string"}, "version": "version"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "tools": [FUNCTION | {"type": "function", "async": True, "defer_loading": True, "output_schema": {"foo": "bar"}}],
    "truncation": "auto",
}
ROUTES = {
    "chat/test_completions.py": ("/v1/chat/completions", CHAT),
    "test_completions.py": ("/v1/completions", {"prompt": "hi"}),
    "test_responses.py": ("/v1/responses", {"input": "hi"}),
    "responses/test_input_tokens.py": ("/v1/responses/input_tokens", {"input": "hi"}),
}
TAKEN_OUT = [(group["file"], field) for group in SELECTION["without"] for field in group["fields"] if field != "echo"]


@pytest.mark.parametrize(("file", "field"), TAKEN_OUT)
def test_it_is_refused(http: httpx.Client, file: str, field: str) -> None:
    path, body = ROUTES[file]
    assert http.post(path, json=body).status_code == 200
    answer = http.post(path, json=body | {field: VALUES[field]})
    assert answer.status_code == (404 if field == "previous_response_id" else 400)
    wrong = answer.json()["error"]["param"].partition(".")[0]
    assert wrong in (field, "functions" if field == "function_call" else field)


def test_every_entry_has_a_reason() -> None:
    assert all(group["reason"] for part in (SELECTION, SELECTION["embeddings"]) for group in part["deselected"])
    assert all(reason for group in SELECTION["without"] for reason in group["fields"].values())
