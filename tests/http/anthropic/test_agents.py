"""What agents built on Anthropic's API send: the SDK's tool runner, and Claude Code."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import beta_tool

from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import running_server
from tests.http.responses.test_responses import CALL, TEMPLATE

EPHEMERAL = {"type": "ephemeral"}
BETAS = "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27"
HEADERS = {  # of Claude Code, as it sends them
    "anthropic-version": "2023-06-01",
    "anthropic-beta": BETAS,
    "anthropic-dangerous-direct-browser-access": "true",
    "user-agent": "claude-cli/2.0.60 (external, cli)",
    "x-app": "cli",
    "x-stainless-helper-method": "stream",
    "authorization": "Bearer none",
}
SYSTEM = [
    {"type": "text", "text": "You are Claude Code.", "cache_control": EPHEMERAL},
    {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
]
READ = {
    "name": "get_weather",
    "description": "Reads.",
    "input_schema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"city": {"type": "string", "description": "which"}, "days": {"type": "number"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
USER = {
    "role": "user",
    "content": [
        {"type": "text", "text": "<system-reminder>today</system-reminder>"},
        {"type": "text", "text": "hi", "cache_control": EPHEMERAL},
    ],
}
TURN = [
    USER,
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I look.", "signature": ""},
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [{"type": "text", "text": "sunny"}],
                "is_error": False,
                "cache_control": EPHEMERAL,
            }
        ],
    },
]
COMMON: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 32000,
    "metadata": {"user_id": "user_1_account__session_2"},
    "stream": True,
}
CLAUDE_CODE: dict[str, dict[str, Any]] = {
    "the first probe": {
        "model": MODEL,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "quota"}],
        "metadata": {"user_id": "u"},
    },
    "the title of a session": COMMON
    | {
        "system": SYSTEM,
        "messages": [USER],
        "tools": [],
        "temperature": 1,
        "output_config": {
            "format": {
                "type": "json_schema",
                "schema": {
                    "type": "object",
                    "properties": {"title": {"type": "string"}},
                    "required": ["title"],
                    "additionalProperties": False,
                },
            }
        },
    },
    "a turn": COMMON
    | {
        "system": SYSTEM,
        "messages": TURN,
        "tools": [READ, READ | {"name": "Bash", "eager_input_streaming": True, "cache_control": EPHEMERAL}],
        "thinking": {"type": "enabled", "budget_tokens": 600},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    },
    "a turn of a newer one": COMMON
    | {
        "system": SYSTEM,
        "messages": TURN,
        "tools": [READ],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    },
}


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> FakeEngine:
    return FakeEngine(tokenizer)


@pytest.fixture(scope="module")
def url(model: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose model reasons and calls tools."""
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    config = HttpConfig(reasoning_parser="qwen3", tool_call_parser="hermes", chat_template=str(template))
    with running_server(model, config) as url:
        yield url


@beta_tool
def get_weather(city: str) -> str:
    """Tells the weather.

    Args:
        city: where.
    """
    return f"sunny in {city}"


def test_a_tool_runner_goes_on_without_a_thread(url: str, model: FakeEngine, tokenizer: Tokenizer) -> None:
    model.calls.clear()
    model.reply = lambda prompt_ids, _: "done" if "sunny in" in tokenizer.decode(prompt_ids) else CALL
    client = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0, timeout=20)
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=99, messages=[{"role": "user", "content": "hi"}], tools=[get_weather]
    )
    message = runner.until_done()
    assert [block.to_dict()["text"] for block in message.content] == ["done"]
    assert len(model.calls) == 2


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
def test_a_thread_is_refused_with_the_code_that_says_so(url: str, thread: dict[str, str]) -> None:
    body = {"model": MODEL, "max_tokens": 9, "messages": [USER], "thread": thread}
    answer = httpx.post(f"{url}/v1/messages?beta=true", json=body, headers=HEADERS)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": []}
    assert "without thread" in error["message"]


@pytest.mark.parametrize("shape", CLAUDE_CODE)
def test_what_claude_code_sends_is_answered(url: str, model: FakeEngine, shape: str) -> None:
    model.reply = '{"title": "a"}' if "title" in shape else "Hello"
    body = CLAUDE_CODE[shape]
    answer = httpx.post(f"{url}/v1/messages?beta=true", json=body, headers=HEADERS, timeout=20)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        assert "event: message_stop" in answer.text
        assert "event: error" not in answer.text
    else:
        assert answer.json()["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("thinking", [{"type": "enabled", "budget_tokens": 600}, None])
def test_claude_code_counts_what_it_sends(url: str, thinking: dict[str, Any] | None) -> None:
    body = {"model": MODEL, "system": SYSTEM, "messages": TURN, "tools": [READ], "thinking": thinking}
    answer = httpx.post(f"{url}/v1/messages/count_tokens?beta=true", json=body, headers=HEADERS, timeout=20)
    assert answer.json()["input_tokens"] > 20, answer.text


def test_more_tokens_than_the_context_has_are_lowered_and_told(url: str, model: FakeEngine) -> None:
    """Claude Code asks for 32,000 whatever the model."""
    model.reply = "Hello"
    body = {"model": MODEL, "max_tokens": 32000, "messages": [USER], "stream": True}
    answer = httpx.post(f"{url}/v1/messages?beta=true", json=body, headers=HEADERS, timeout=20)
    start = json.loads(answer.text.split("data: ", 1)[1].split("\n", 1)[0])["message"]
    room = model.info.context_length - len(model.calls[-1].prompt_ids)
    (warning,) = start["warnings"]
    assert warning["param"] == "max_tokens"
    assert f"leaves {room} tokens of the model's context length" in warning["message"]
    assert model.calls[-1].params.max_tokens == room
    fits = httpx.post(f"{url}/v1/messages", json=body | {"max_tokens": room, "stream": False}, headers=HEADERS).json()
    assert "warnings" not in fits
