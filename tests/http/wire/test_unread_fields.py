"""Fields within a request that nothing reads: the answer tells of them, or they are refused."""

from typing import Any

import httpx
import pytest

from palladio.http.anthropic.anthropic_messages import AnthropicConversation
from palladio.http.anthropic.protocol_anthropic import CountTokensRequest
from palladio.http.wire.fields import WarningList, Warnings
from palladio.http.wire.protocol import UnreadFields
from tests.fake_engine import MODEL
from tests.http.conftest import Serve

USER = {"role": "user", "content": "hi"}
TEXTS = [{"type": "text", "text": "a", "xyzzy": 1}, {"type": "text", "text": "b", "xyzzy": 2}]  # told once
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]},
]
RESULT = {"type": "tool_result", "tool_use_id": "x", "content": TEXTS}
UNREAD: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("/v1/messages", {"messages": [USER | {"xyzzy": 1}]}, "messages.0.xyzzy"),
    ("/v1/messages", {"messages": [USER | {"content": TEXTS}]}, "messages.0.content.0.xyzzy"),
    ("/v1/messages", {"messages": [USER], "system": TEXTS}, "system.0.xyzzy"),
    (
        "/v1/messages",
        {"messages": [USER], "tools": [TOOL], "tool_choice": {"type": "auto", "xyzzy": 1}},
        "tool_choice.xyzzy",
    ),
    ("/v1/responses", {"input": [USER | {"xyzzy": 1}]}, "input.0.xyzzy"),
    ("/v1/responses", {"input": [USER | {"content": TEXTS}]}, "input.0.content.0.xyzzy"),
    ("/v1/responses/input_tokens", {"input": [USER | {"xyzzy": 1}]}, "input.0.xyzzy"),
)


@pytest.mark.parametrize(("path", "body", "param"), UNREAD, ids=str)
def test_an_unread_field_is_told_of_once(http: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    limit = {"max_tokens": 9} if path == "/v1/messages" else {}
    answer = http.post(path, json=body | limit)
    assert answer.status_code == 200, answer.text
    (warning,) = answer.json()["warnings"]
    assert warning == {"message": f"unknown field: {param} (ignored)", "param": param, "code": "unknown_parameter"}


def test_results_of_tools_too() -> None:
    warnings = WarningList(Warnings(are_errors=False))
    AnthropicConversation(CountTokensRequest.parse({"messages": [*CALLED, USER | {"content": [RESULT]}]}), warnings)
    (warning,) = warnings.found.entries
    assert warning.param == "messages.2.content.0.content.0.xyzzy"


def test_it_can_be_refused(serve: Serve) -> None:
    with httpx.Client(base_url=serve(unknown_fields="refuse"), timeout=20) as client:
        answer = client.post("/v1/responses", json={"input": [USER | {"xyzzy": 1}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input.0.xyzzy")


def test_answers_can_be_sent_back(http: httpx.Client) -> None:
    """Whole: what an answer has beside its text is nothing unknown."""
    first = http.post("/v1/messages", json={"messages": [USER], "max_tokens": 9}).raise_for_status().json()
    again = http.post("/v1/messages", json={"messages": [USER, first, USER], "max_tokens": 9}).raise_for_status()
    assert "warnings" not in again.json()
    first = http.post("/v1/responses", json={"input": [USER]}).raise_for_status().json()
    again = http.post("/v1/responses", json={"input": [USER, *first["output"], USER]}).raise_for_status()
    assert "warnings" not in again.json()


def test_null_and_hints_are_no_unread_fields() -> None:
    warnings = WarningList(Warnings(are_errors=False))
    UnreadFields(warnings).report({"a": 1, "b": None, "cache_control": {}}, "messages.0", {"a"})
    assert warnings.found.fields() == {}


@pytest.mark.parametrize(
    ("path", "body"), [("/generate", {"text": "hi"}), ("/api/chat", {"model": MODEL, "messages": [USER]})]
)
def test_a_misspelt_field_of_an_inner_object_is_refused(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    """Where it would have no effect, as the field itself is: beside sampling_params or options."""
    answer = http.post(path, json=body | {"temprature": 0})
    assert answer.status_code == 400
    assert "unknown field: temprature; did you mean temperature?" in answer.text
