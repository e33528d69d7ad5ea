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
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "now", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
CHAT, MESSAGES = "/v1/chat/completions", {"messages": [USER]}
BUILT_IN = ("chatml", "gemma", "llama-2", "llama-3-instruct", "mistral")


TOOL = {"type": "function", **FUNCTION}
ANTHROPIC_TOOL = {"name": "now", "input_schema": FUNCTION["parameters"]}
REQUESTS = [
    (CHAT, MESSAGES | {"tools": [CHAT_TOOL]}, "tools"),
    (CHAT, MESSAGES | {"functions": [FUNCTION], "function_call": "auto"}, "functions"),
    ("/v1/responses", {"input": "hi", "tools": [TOOL]}, "tools"),
    ("/v1/responses/input_tokens", {"input": "hi", "tools": [TOOL]}, "tools"),
    ("/v1/messages", MESSAGES | {"tools": [ANTHROPIC_TOOL], "max_tokens": 9}, "tools"),
    ("/v1/messages/count_tokens", MESSAGES | {"tools": [ANTHROPIC_TOOL]}, "tools"),
    ("/api/chat", MESSAGES | {"tools": [CHAT_TOOL], "model": MODEL, "stream": False}, "tools"),
    ("/tokenize", MESSAGES | {"tools": [CHAT_TOOL]}, "tools"),
    ("/apply-template", MESSAGES | {"tools": [CHAT_TOOL]}, "tools"),
]


@pytest.mark.parametrize(("path", "body", "field"), REQUESTS, ids=[path + field for path, _, field in REQUESTS])
def test_tools_are_told_in_plain_text_with_one_warning(
    serve: Serve, engine: FakeEngine, tokenizer: Tokenizer, path: str, body: dict[str, Any], field: str
) -> None:
    answer = httpx.post(serve(chat_template="chatml") + path, json=body)
    assert answer.status_code == 200, answer.text
    (warning,) = answer.json()["warnings"]
    assert (warning["param"], warning["code"]) == (field, "unsupported_parameter")
    for call in engine.calls:
        prompt = tokenizer.decode(call.prompt_ids, skip_special_tokens=False)
        assert '{"name":"now"' in prompt
        assert prompt.index("You can call these functions") < prompt.index("hi")
        assert '\\"name\\": \\"now\\"' in call.params.grammar.text
    refused = httpx.post(serve(chat_template="chatml", unknown_fields="refuse") + path, json=body)
    assert refused.status_code == 400
    assert "does not write them" in refused.text


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


CALLS = [{"id": "a", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}]
HISTORY = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "a", "content": "noon"},
]
ITEMS = [
    {"role": "user", "content": "hi"},
    {"type": "function_call", "call_id": "a", "name": "now", "arguments": '{"zone": "UTC"}'},
    {"type": "function_call_output", "call_id": "a", "output": "noon"},
]
BLOCKS = [
    USER,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "now", "input": {"zone": "UTC"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "noon"}]},
]
OLLAMA_CALLS = [{"function": {"name": "now", "arguments": {"zone": "UTC"}}}]
OLLAMA_HISTORY = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": OLLAMA_CALLS},
    {"role": "tool", "tool_name": "now", "content": "noon"},
]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HISTORY}),
        (CHAT, {"messages": HISTORY, "tools": [CHAT_TOOL], "tool_choice": "none"}),
        ("/v1/responses", {"input": ITEMS}),
        ("/v1/messages", {"messages": BLOCKS, "max_tokens": 9}),
        ("/api/chat", {"messages": OLLAMA_HISTORY, "model": MODEL, "stream": False}),
    ],
)
def test_earlier_calls_and_their_results_are_text(
    serve: Serve, engine: FakeEngine, tokenizer: Tokenizer, path: str, body: dict[str, Any]
) -> None:
    answer = httpx.post(serve(chat_template="chatml") + path, json=body)
    assert answer.status_code == 200, answer.text
    prompt = tokenizer.decode(engine.calls[0].prompt_ids, skip_special_tokens=False)
    turns = [turn.partition("<|im_end|>")[0] for turn in prompt.split("<|im_start|>")[1:]]
    assert turns == [
        "user\nhi",
        'assistant\n[{"name": "now", "arguments": {"zone": "UTC"}}]',
        "user\nResult of now:\nnoon",
        "assistant\n",
    ]


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_built_in_template_writes_tools(name: str, tokenizer: Tokenizer) -> None:
    """So a server that takes one says so at its start."""
    chat = ChatTemplate(HttpConfig(chat_template=name))
    (line,) = chat.warnings(tokenizer, FORMATS["hermes"])
    assert "as plain text" in line
    assert chat.warnings(tokenizer, FORMATS["json"]) == []  # reads no calls unless they are forced
    assert ChatTemplate(HttpConfig()).warnings(tokenizer, FORMATS["hermes"]) == []
    assert not TemplateFacts.of(chat.source(tokenizer) or "").reads_calls


def test_defaults_that_the_template_does_not_read(tokenizer: Tokenizer) -> None:
    config = HttpConfig(default_chat_template_kwargs='{"enable_thinkng": false, "thinking": true}')
    (line,) = ChatTemplate(config).warnings(tokenizer, FORMATS["json"])
    assert "--default-chat-template-kwargs" in line
    assert line.endswith("'enable_thinkng'; did you mean enable_thinking?")


def test_capabilities_say_so(serve: Serve) -> None:
    for config, verdict in (({"chat_template": "chatml", "unknown_fields": "refuse"}, "refused"), ({}, "applied")):
        routes = httpx.get(serve(**config) + "/v1/capabilities").json()["routes"]
        fields = {route["route"]: route["fields"] for route in routes if "fields" in route}
        assert fields["POST /v1/chat/completions"]["functions"] == verdict
        paths = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/tokenize")
        assert {fields[f"POST {path}"]["tools"] for path in paths} == {verdict}
        assert fields["POST /parse_function_call"]["tools"] == "applied"
