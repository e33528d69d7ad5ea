"""A chat template that writes no tools: nothing of a request vanishes from its prompt in silence."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.template_format import TemplateFacts
from palladio.http.settings.http_config import HttpConfig
from palladio.http.tool_calls.formats import FORMATS
from palladio.runtime.text.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.conftest import Serve

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "now", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
CHAT, MESSAGES = "/v1/chat/completions", {"messages": [USER]}
BUILT_IN = ("chatml", "gemma", "llama-2", "llama-3-instruct", "mistral")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT, MESSAGES | {"tools": [CHAT_TOOL]}, "tools"),
        (CHAT, MESSAGES | {"functions": [FUNCTION]}, "functions"),
        ("/v1/responses", {"input": "hi", "tools": [{"type": "function", **FUNCTION}]}, "tools"),
        ("/v1/responses/input_tokens", {"input": "hi", "tools": [{"type": "function", **FUNCTION}]}, "tools"),
        ("/tokenize", MESSAGES | {"tools": [CHAT_TOOL]}, "tools"),
    ],
)
def test_tools_are_refused(serve: Serve, path: str, body: dict[str, Any], field: str) -> None:
    url = serve(chat_template="chatml")
    answer = httpx.post(url + path, json=body)
    assert answer.status_code == 400
    told = answer.json()["error"]
    assert (told["param"], told["code"]) == (field, "unsupported_parameter")
    assert told["message"].startswith(f"{field} have no effect")
    assert "--chat-template" in told["message"]


def test_tools_of_anthropics_messages(serve: Serve) -> None:
    url = serve(chat_template="chatml")
    tool = {"name": "now", "input_schema": FUNCTION["parameters"]}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        body = MESSAGES | {"tools": [tool]} | ({"max_tokens": 9} if path == "/v1/messages" else {})
        answer = httpx.post(url + path, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("tools have no effect")


def test_what_asks_for_no_tools_passes(serve: Serve, engine: FakeEngine) -> None:
    url = serve(chat_template="chatml")
    for fields in ({}, {"tools": []}, {"tools": [CHAT_TOOL], "tool_choice": "none"}):
        assert httpx.post(url + CHAT, json=MESSAGES | fields).status_code == 200


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_a_forced_call_has_its_grammar(serve: Serve, engine: FakeEngine, choice: object) -> None:
    url = serve(chat_template="chatml")
    answer = httpx.post(url + CHAT, json=MESSAGES | {"tools": [CHAT_TOOL], "tool_choice": choice, "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    assert "now" in engine.calls[0].params.grammar.text
    tokens = httpx.post(url + "/tokenize", json=MESSAGES | {"tools": [CHAT_TOOL], "tool_choice": choice}).json()
    assert tokens["tokens"] == engine.calls[0].prompt_ids


def test_of_two_templates_the_one_for_tools_writes_earlier_calls(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "both.json"
    source = "{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}{{ tools | length }}"
    both = [{"name": "default", "template": "{{ messages[0].content }}"}, {"name": "tool_use", "template": source}]
    path.write_text(json.dumps({"chat_template": both}))
    url = serve(chat_template=str(path))
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    turns = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, USER]
    for fields in ({}, {"tools": [CHAT_TOOL], "tool_choice": "none"}):
        answer = httpx.post(url + CHAT, json={"messages": turns} | fields)
        assert answer.status_code == 200, answer.text


def test_earlier_calls_are_refused(serve: Serve) -> None:
    url = serve(chat_template="chatml")
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    for field, value in (("tool_calls", [call]), ("function_call", {"name": "now", "arguments": "{}"})):
        turns = [USER, {"role": "assistant", "content": None, field: value}]
        error = httpx.post(url + CHAT, json={"messages": turns}).json()["error"]
        assert error["param"] == f"messages.1.{field}"
        assert "would be lost" in error["message"]
    items = [{"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"}]
    error = httpx.post(url + "/v1/responses", json={"input": items}).json()["error"]
    assert error["param"] == "input.0"


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_built_in_template_writes_tools(name: str, tokenizer: Tokenizer) -> None:
    """So a server that takes one says so at its start."""
    chat = ChatTemplate(HttpConfig(chat_template=name))
    (line,) = chat.warnings(tokenizer, FORMATS["hermes"])
    assert "requests with tools are refused" in line
    assert chat.warnings(tokenizer, FORMATS["json"]) == []  # reads no calls unless they are forced
    assert ChatTemplate(HttpConfig()).warnings(tokenizer, FORMATS["hermes"]) == []
    assert not TemplateFacts.of(chat.source(tokenizer) or "").reads_calls


def test_defaults_that_the_template_does_not_read(tokenizer: Tokenizer) -> None:
    config = HttpConfig(default_chat_template_kwargs='{"enable_thinkng": false, "thinking": true}')
    (line,) = ChatTemplate(config).warnings(tokenizer, FORMATS["json"])
    assert "--default-chat-template-kwargs" in line
    assert line.endswith("'enable_thinkng'; did you mean enable_thinking?")


def test_capabilities_say_so(serve: Serve) -> None:
    for template, verdict in (("chatml", "refused"), (None, "applied")):
        routes = httpx.get(serve(chat_template=template) + "/v1/capabilities").json()["routes"]
        fields = {route["route"]: route["fields"] for route in routes if "fields" in route}
        assert fields["POST /v1/chat/completions"]["functions"] == verdict
        paths = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/tokenize")
        assert {fields[f"POST {path}"]["tools"] for path in paths} == {verdict}
        assert fields["POST /parse_function_call"]["tools"] == "applied"
