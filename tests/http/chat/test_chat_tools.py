"""Tools through the real application and the openai SDK: requests as its users' libraries write them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from palladio.http.prompts.chat_messages import template_messages
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.prompts.template_calls import CallForms
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import running_server
from tests.http.tool_calls.tool_texts import SAMPLES

USER = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "a town"}, "days": {"type": "integer"}},
    "required": ["city"],
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "tells", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
REPLY = (
    'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
TEMPLATE = (
    "{% if tools %}TOOLS:{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}; "
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def prompt_of(engine: FakeEngine) -> Callable[[], str]:
    def prompt() -> str:
        assert engine.tokenizer is not None
        return engine.tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)

    return prompt


@pytest.fixture
def start(engine: FakeEngine, serve: Callable[..., str], tmp_path: Path) -> Callable[..., openai.OpenAI]:
    """A server with a template that writes tools, and its client."""
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    engine.reply = REPLY

    def new(**config: Any) -> openai.OpenAI:
        url = serve(**{"chat_template": str(path)} | config)
        return openai.OpenAI(base_url=url + "/v1", api_key="None", max_retries=0, timeout=20)

    return new


def streamed(client: openai.OpenAI, **body: Any) -> tuple[str, list[dict[str, Any]], str | None]:
    """Content, calls and finish reason of a stream, with what each chunk has to be."""
    content, calls, reason = "", [], None
    for chunk in client.chat.completions.create(model=MODEL, stream=True, **body):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        assert len(choice.delta.tool_calls or []) <= 1  # Instructor reads the first one only
        for delta in choice.delta.tool_calls or []:
            if delta.index == len(calls):
                assert (delta.type, bool(delta.id), bool(delta.function.name)) == ("function", True, True)
                calls.append({"id": delta.id, "name": delta.function.name, "arguments": ""})
            else:
                assert (delta.index, delta.id, delta.function.name) == (len(calls) - 1, None, None)
            calls[-1]["arguments"] += delta.function.arguments or ""
        reason = choice.finish_reason or reason
    return content, calls, reason


@pytest.mark.parametrize("stream_interval", [1, 1000])
def test_calls_in_an_answer_and_in_a_stream(start: Callable[..., openai.OpenAI], stream_interval: int) -> None:
    client = start(stream_interval=stream_interval)
    choice = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    calls = [(call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    assert calls == [("function", "get_weather", '{"city": "Zürich", "days": 3}'), ("function", "now", "{}")]
    content, found, reason = streamed(client, messages=USER, tools=TOOLS)
    assert (content, reason) == ("I look.", "tool_calls")
    assert [("function", call["name"], call["arguments"]) for call in found] == calls
    assert len({call["id"] for call in found} | {call.id for call in choice.message.tool_calls or []}) == 4


def test_content_is_null_beside_calls_alone(start: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    engine.reply = REPLY.removeprefix("I look.\n")
    message = start().chat.completions.create(model=MODEL, messages=USER, tools=TOOLS).choices[0].message
    assert message.content is None
    assert len(message.tool_calls or []) == 2


def test_a_call_that_is_cut_off(start: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    engine.reply = REPLY.partition("rich")[0]
    assert engine.tokenizer is not None
    limit = len(engine.tokenizer.encode(engine.reply, False))
    client = start()
    choice = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, max_tokens=limit).choices[0]
    assert choice.finish_reason == "length"
    (call,) = choice.message.tool_calls or []
    assert json.loads(call.function.arguments) == {"city": "Zü"}
    _, (found,), reason = streamed(client, messages=USER, tools=TOOLS, max_tokens=limit)
    assert (found["arguments"], reason) == (call.function.arguments, "length")


def test_a_forced_call_wins_over_a_format_of_text(start: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    client = start()
    fields: dict[str, Any] = {"model": MODEL, "messages": USER, "tools": TOOLS, "tool_choice": "required"}
    client.chat.completions.create(**fields)
    client.chat.completions.create(**fields, response_format={"type": "json_object"})
    client.chat.completions.create(**fields, extra_body={"regex": "[a-z]+"})
    without, *others = [call.params.grammar for call in engine.calls]
    assert others == [without, without]


def test_tool_choice_none(start: Callable[..., openai.OpenAI], prompt_of: Callable[[], str]) -> None:
    choice = start().chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, tool_choice="none").choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (REPLY, None, "stop")
    assert "TOOLS" not in prompt_of()


def test_required_and_named_become_grammars(start: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    client = start()
    client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS)
    assert engine.calls[-1].params.grammar is None
    client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, tool_choice="required")
    grammar = engine.calls[-1].params.grammar
    assert grammar is not None
    assert (grammar.kind, "get_weather" in grammar.text, "now" in grammar.text) == ("lark", True, True)
    named: Any = {"type": "function", "function": {"name": "now"}}
    client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, tool_choice=named)
    grammar = engine.calls[-1].params.grammar
    assert grammar is not None
    assert "get_weather" not in grammar.text
    strict: Any = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    client.chat.completions.create(model=MODEL, messages=USER, tools=[strict])
    assert engine.calls[-1].params.grammar is not None


def test_parallel_tool_calls(start: Callable[..., openai.OpenAI]) -> None:
    client = start()
    body: dict[str, Any] = {"messages": USER, "tools": TOOLS, "parallel_tool_calls": False}
    message = client.chat.completions.create(model=MODEL, **body).choices[0].message
    assert [call.function.name for call in message.tool_calls or []] == ["get_weather"]
    assert [call["name"] for call in streamed(client, **body)[1]] == ["get_weather"]


def test_several_samples(start: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    engine.reply = lambda prompt_ids, index: REPLY if index else "None of them."
    first, second = start().chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, n=2).choices
    assert (first.message.content, first.message.tool_calls, first.finish_reason) == ("None of them.", None, "stop")
    assert (len(second.message.tool_calls or []), second.finish_reason) == (2, "tool_calls")


def test_the_next_turn(start: Callable[..., openai.OpenAI], prompt_of: Callable[[], str]) -> None:
    client = start()
    message = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS).choices[0].message
    calls = message.tool_calls or []
    results: list[Any] = [
        {"role": "tool", "tool_call_id": calls[0].id, "content": [{"type": "text", "text": "17 degrees"}]},
        {"role": "tool", "tool_call_id": calls[1].id, "content": "noon"},
    ]
    client.chat.completions.create(model=MODEL, messages=[*USER, message, *results], tools=TOOLS)  # type: ignore[list-item]
    prompt = prompt_of()
    assert 'CALL get_weather {"city": "Zürich", "days": 3}CALL now {}' in prompt
    assert "[tool] 17 degrees; [tool] noon; [assistant]" in prompt


def test_bodies_of_libraries(start: Callable[..., openai.OpenAI], prompt_of: Callable[[], str]) -> None:
    """Explicit nulls, schemas with titles, tools without parameters."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Weather",
        "type": "object",
        "properties": {"city": {"title": "City", "type": "string", "default": None}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {},
    }
    function = {"name": "get_weather", "description": None, "parameters": schema, "strict": None}
    body = {
        "model": MODEL,
        "messages": [
            {"role": "user", "content": "hi", "name": None},
            {"role": "assistant", "content": None, "tool_calls": None},
        ],
        "tools": [
            {"type": "function", "function": function},
            {"type": "function", "function": {"name": "now", "parameters": None}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": None,
        "response_format": None,
        "functions": None,
        "stop": None,
    }
    client = start()
    answer = httpx.post(f"{client.base_url}chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    prompt = prompt_of()
    assert '"description": ""' in prompt
    assert "strict" not in prompt
    assert '"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}' in prompt


def test_the_older_fields(start: Callable[..., openai.OpenAI], prompt_of: Callable[[], str]) -> None:
    messages: list[Any] = [
        *USER,
        {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}},
        {"role": "function", "name": "now", "content": "noon"},
    ]
    functions: Any = [entry["function"] for entry in TOOLS]
    answer = start().chat.completions.create(model=MODEL, messages=messages, functions=functions)
    assert [call.function.name for call in answer.choices[0].message.tool_calls or []] == ["get_weather"]
    assert "CALL now {}; [tool] noon; " in prompt_of()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": "all"}, "tools"),
    ],
)
def test_errors(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = http.post("/v1/chat/completions", json={"messages": USER} | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_unrecognised_model_calls_only_when_it_must(start: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    client = start(tool_call_parser="json")
    free = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS).choices[0]
    assert (free.message.content, free.finish_reason) == (REPLY, "stop")
    engine.reply = SAMPLES["json"].text
    forced = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, tool_choice="required").choices[0]
    assert [call.function.name for call in forced.message.tool_calls or []] == ["get_weather", "now"]
    free = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS).choices[0]
    assert free.message.content == SAMPLES["json"].text


def test_unknown_parser() -> None:
    with pytest.raises(ConfigError, match="--tool-call-parser qwen26: no such parser; did you mean qwen2"):
        HttpConfig(tool_call_parser="qwen26")


def test_tokenize_counts_the_tools(start: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    client = start()
    url = str(client.base_url).removesuffix("/v1/")
    client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS)
    body = {"messages": USER, "tools": TOOLS, "tool_choice": "auto"}
    assert httpx.post(f"{url}/tokenize", json=body).json()["tokens"] == engine.calls[-1].prompt_ids
    without = httpx.post(f"{url}/tokenize", json=body | {"tool_choice": "none"}).json()["count"]
    assert without < len(engine.calls[-1].prompt_ids)
    answer = httpx.post(f"{url}/tokenize", json={"prompt": "a", "tools": TOOLS})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


def test_special_tokens_of_the_format_are_read(tokenizer: Tokenizer) -> None:
    """The mark is a special token, which texts leave out otherwise."""
    start_id = tokenizer.special_id("<|im_start|>")
    assert start_id is not None
    engine = FakeEngine(tokenizer, reply='<|channel|>commentary to=functions.now<|message|>{"a": 1}')
    with running_server(engine, HttpConfig(tool_call_parser="gpt-oss", reasoning_parser="none")) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json={"messages": USER, "tools": TOOLS})
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": '{"a": 1}'}


@pytest.mark.parametrize(
    ("family", "before", "tool_format"),
    [
        ("qwen3", "<think>\n{0}\n</think>\n\n", "qwen25"),
        ("qwen3", "<think>\n{0}\n</think>\n\n", "qwen3_coder"),
        ("glm45", "<think>{0}</think>", "glm45"),
        ("deepseek-r1", "<think>\n{0}</think>\n", "deepseekv3"),
        ("gpt-oss", "<|channel|>analysis<|message|>{0}<|end|>", "gpt-oss"),
    ],
)
def test_reasoning_then_calls(
    engine: FakeEngine, family: str, before: str, tool_format: str, serve: Callable[..., str]
) -> None:
    sample = SAMPLES[tool_format]
    engine.reply = before.format("They want to know.") + sample.text
    url = serve(reasoning_parser=family, tool_call_parser=tool_format)
    client = openai.OpenAI(base_url=url + "/v1", api_key="None", max_retries=0, timeout=20)
    choice = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS).choices[0]
    assert choice.message.reasoning_content.strip() == "They want to know."
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    assert [name for name, _ in calls] == list(sample.names)
    assert json.loads(calls[0][1])["city"] == sample.arguments["city"]
    content, found, reason = streamed(client, messages=USER, tools=TOOLS)
    assert (content, [(call["name"], call["arguments"]) for call in found], reason) == ("", calls, "tool_calls")


CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"a":  1}'}}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ m.tool_calls[0].function.arguments | tojson }}", '{"a": 1}'),
        ("{{ '```' + m.tool_calls[0]['function']['arguments'] + '```' }}", '```{"a":  1}```'),
        ("{{ '<' ~ m.tool_calls[0].function.arguments }}", '<{"a":  1}'),
        ("{{ m.tool_calls[0].function.arguments }}", '{"a":  1}'),
        ("{% for k, v in m.tool_calls[0].function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
        ("{% set a = m.tool_calls[0].function.arguments %}{{ a if a is string else a | tojson }}", '{"a": 1}'),
        ("{% if m['content'] is none %}CALLS{% else %}TEXT{% endif %}", "CALLS"),
        ("{% if m.content is not none %}TEXT{% else %}CALLS{% endif %}", "CALLS"),
        ("{{ m.content + '!' }}", "!"),
    ],
)
def test_history_as_templates_read_it(tokenizer: Tokenizer, tmp_path: Path, template: str, expected: str) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{% for m in messages if m.role == 'assistant' %}" + template + "{% endfor %}{# tool_calls #}")
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert ChatTemplate(HttpConfig(chat_template=str(path))).render(tokenizer, [message]) == expected


def test_history_of_tools() -> None:
    calls = [CALL, CALL | {"id": "c2", "function": {"name": "f", "arguments": None}}]
    conversation: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c2", "content": None},
        {"role": "tool", "tool_call_id": "c1", "name": "mine", "content": "x"},
        {"role": "assistant", "content": "y", "tool_calls": []},
    ]
    first, second, third, last = template_messages(conversation, "string", knows_developer=True)
    (as_text, *_) = template_messages(conversation, "string", knows_developer=True, call_forms=CallForms(as_text=True))
    assert [call["function"]["arguments"] for call in as_text["tool_calls"]] == ['{"a":  1}', "{}"]
    assert [call["function"]["arguments"] for call in first["tool_calls"]] == [{"a": 1}, {}]
    assert (second["name"], second["content"]) == ("f", "")
    assert third["name"] == "mine"
    assert "tool_calls" not in last
    for arguments in ([1], 3):
        call = CALL | {"function": {"name": "f", "arguments": arguments}}
        with pytest.raises(InvalidRequestError) as caught:
            template_messages([{"role": "assistant", "tool_calls": [call]}], "string", knows_developer=True)
        assert caught.value.param == "messages.0.tool_calls.0.function.arguments"


def test_a_template_for_tools(
    start: Callable[..., openai.OpenAI], prompt_of: Callable[[], str], tmp_path: Path
) -> None:
    path = tmp_path / "both.json"
    both = [
        {"name": "default", "template": "plain {{ messages[0].content }}"},
        {"name": "tool_use", "template": "<tool_call> {{ tools | length }} {{ messages[0].content }}"},
    ]
    path.write_text(json.dumps({"chat_template": both}))
    client = start(chat_template=str(path))
    client.chat.completions.create(model=MODEL, messages=USER)
    assert prompt_of() == f"plain {USER[0]['content']}"
    client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS)
    assert prompt_of() == f"<tool_call> 2 {USER[0]['content']}"
