"""/v1/responses through the real application and the openai SDK, with strict validation of what comes back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest

from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve

TEMPLATE = (
    "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %};"
    "{% endfor %}{% if add_generation_prompt %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "name": "get_weather", "description": "tells", "parameters": PARAMETERS}
NOW: Any = {"type": "function", "name": "now"}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
REPLY = f"<think>\nHm.\n</think>\nI look.\n{CALL}"


@pytest.fixture
def connect(serve: Serve, tmp_path: Path) -> Callable[..., openai.OpenAI]:
    """A server whose model reasons and calls tools, and a strict client of it."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")

    def start(**config: Any) -> openai.OpenAI:
        families = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}
        url = serve(**families | {"chat_template": str(template)} | config)
        return openai.OpenAI(
            base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=20, _strict_response_validation=True
        )

    return start


@pytest.fixture
def prompt_of(engine: FakeEngine, tokenizer: Tokenizer) -> Callable[[], str]:
    return lambda: tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)


def without_ids(response: Any) -> Any:
    """A response without what differs from one to the next."""
    fields = response.to_dict(mode="json")
    for name in ("id", "created_at", "completed_at"):
        del fields[name]
    for item in fields["output"]:
        del item["id"]
        item.pop("call_id", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
        item.pop("parsed_arguments", None)
    return fields


def test_an_answer(connect: Callable[..., openai.OpenAI], prompt_of: Callable[[], str]) -> None:
    response = connect().responses.create(
        model=MODEL, input="hi", instructions="Be brief.", metadata={"a": "b"}, user="me", temperature=0.5
    )
    assert response.output_text == "Hello, wörld 🎉!"
    assert (response.status, response.object, response.model, response.temperature) == (
        "completed",
        "response",
        MODEL,
        0.5,
    )
    assert response.completed_at is not None
    assert (response.metadata, response.user, response.instructions) == ({"a": "b"}, "me", "Be brief.")
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 3
    assert prompt_of() == "[system]Be brief.;[user]hi;[assistant]"


def test_reasoning_text_and_calls(connect: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    engine.reply = REPLY
    response = connect().responses.create(model=MODEL, input="hi", tools=[WEATHER, NOW])
    reasoning, message, call = response.output
    assert reasoning.type == "reasoning"
    assert [(part.type, part.text) for part in reasoning.content or ()] == [("reasoning_text", "Hm.")]
    assert message.type == "message"
    assert response.output_text == "I look."
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments), call.status) == ("get_weather", {"city": "Zürich"}, "completed")
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 2
    assert [tool.to_dict()["name"] for tool in response.tools] == ["get_weather", "now"]


def test_tools_that_are_no_functions_are_left_out(
    connect: Callable[..., openai.OpenAI],
    engine: FakeEngine,
    prompt_of: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As Codex sends them: functions work beside them, and are named by their place among all."""
    others: Any = [
        *({"type": "web_search", "external_web_access": True}, {"type": "web_search_preview_2025_03_11"}),
        *({"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}, {"type": "local_shell"}),
        *({"type": "namespace", "name": "mcp__x", "tools": [NOW]}, {"type": "computer_use_preview"}),
    ]
    client = connect()
    caplog.set_level("INFO")
    alone = client.responses.create(model=MODEL, input="hi", tools=[WEATHER, NOW])
    expected = prompt_of()
    engine.reply = CALL
    extra = {"client_metadata": {"session": "x"}}
    mixed = client.responses.create(
        model=MODEL, input="hi", tools=[*others, WEATHER, *others, NOW], extra_body=extra, tool_choice="auto"
    )
    assert prompt_of() == expected
    assert [tool.to_dict() for tool in mixed.tools] == [tool.to_dict() for tool in alone.tools]
    assert [item.type for item in mixed.output] == ["function_call"]
    (warning,) = (mixed.model_extra or {})["warnings"]
    assert (warning["param"], warning["code"]) == ("tools", "unsupported_parameter")
    assert "tools of type web_search, web_search_preview_2025_03_11, custom, local_shell" in warning["message"]
    (line,) = [record.getMessage() for record in caplog.records if "not functions" in record.getMessage()]
    assert line.endswith(": " + ", ".join(tool["type"] for tool in others))  # each type once
    only = client.responses.create(model=MODEL, input="hi", tools=others)
    assert (only.tools, prompt_of().startswith("[user]")) == ([], True)


@pytest.mark.parametrize("reply", ["Hello, wörld 🎉!", REPLY, CALL, ""])
def test_a_stream_adds_up_to_the_answer(connect: Callable[..., openai.OpenAI], engine: FakeEngine, reply: str) -> None:
    engine.reply = reply
    client = connect()
    asked: Any = {"model": MODEL, "input": "hi", "tools": [WEATHER]}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert without_ids(final) == without_ids(whole)
    stored = client.responses.retrieve(final.id)
    assert without_ids(stored) == without_ids(whole)


def test_a_raw_stream(connect: Callable[..., openai.OpenAI]) -> None:
    client = connect()
    body = {"model": MODEL, "input": "hi", "stream": True, "stream_options": {"include_obfuscation": True}}
    answer = httpx.post(f"{client.base_url}responses", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "[DONE]" not in answer.text
    deltas = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    told = [event for event in deltas if event["type"] == "response.output_text.delta"]
    assert {len(event["delta"] + event["obfuscation"]) for event in told} == {32}


def test_a_tool_loop(connect: Callable[..., openai.OpenAI], engine: FakeEngine, prompt_of: Callable[[], str]) -> None:
    """The output goes back as it came, as users of the SDK do it."""
    engine.reply = REPLY
    client = connect()
    first = client.responses.create(model=MODEL, input="hi", tools=[NOW, WEATHER], store=False)
    call = first.output[-1]
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    again: Any = [{"role": "user", "content": "hi"}, *first.output, result]
    client.responses.create(model=MODEL, input=again)
    said = '[user]hi;[assistant](Hm.)I look.CALL get_weather {"city": "Zürich"};[tool]rain;[assistant]'
    assert prompt_of() == said


def test_structured_output_and_parse(connect: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    class City(pydantic.BaseModel):
        name: str

    engine.reply = '<think></think>{"name": "Zürich"}'
    parsed = connect().responses.parse(model=MODEL, input="hi", text_format=City)
    assert parsed.output_parsed == City(name="Zürich")
    grammar = engine.calls[-1].params.grammar
    assert grammar is not None
    assert grammar.kind == "json_schema"


def test_what_reaches_the_engine(connect: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    connect().responses.create(
        model=MODEL,
        input="hi",
        max_output_tokens=3,
        top_p=0.5,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        reasoning={"effort": "none"},
        extra_body={"seed": 7, "top_k": 3, "stop": ["x"], "cache_salt": "s", "timeout": 9.0},
    )
    call = engine.calls[-1]
    params = call.params
    assert (params.max_tokens, params.top_p, params.logprobs, params.seed) == (3, 0.5, 2, 7)
    assert (params.top_k, params.stop, call.options.timeout) == (3, ("x",), 9.0)
    assert engine.tokenizer is not None
    assert engine.tokenizer.decode(call.prompt_ids, skip_special_tokens=False).endswith("<think></think>")


def test_logprobs(connect: Callable[..., openai.OpenAI]) -> None:
    client = connect()
    asked: Any = {"model": MODEL, "input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    response = client.responses.create(**asked)
    part = response.output[0].to_dict()["content"][0]  # type: ignore[index]
    assert b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode() == "Hello, wörld 🎉!"
    streamed = []
    for event in client.responses.create(**asked, stream=True):
        if event.type == "response.output_text.delta":
            streamed += [entry.token for entry in event.logprobs]
    assert streamed == [entry["token"] for entry in part["logprobs"]]


def test_cut_off(connect: Callable[..., openai.OpenAI]) -> None:
    client = connect()
    response = client.responses.create(model=MODEL, input="hi", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].to_dict()["status"] == "incomplete"
    events = list(client.responses.create(model=MODEL, input="hi", max_output_tokens=2, stream=True))
    assert events[-1].type == "response.incomplete"


def test_counting_tokens(connect: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    client = connect()
    counted = client.responses.input_tokens.count(model=MODEL, input="hi", instructions="Be brief.", tools=[NOW])
    client.responses.create(model=MODEL, input="hi", instructions="Be brief.", tools=[NOW])
    assert counted.input_tokens == len(engine.calls[-1].prompt_ids)


IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.org"}]}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "missing"),
    ({"input": []}, "input", "missing"),
    ({"input": [IMAGE]}, "input.0.content.0.type", "input_image"),
    ({"input": [{"type": "computer_call"}]}, "input.0.type", "computer_call"),
    ({"input": [{"role": "robot", "content": ""}]}, "input.0.role", "must be one of"),
    ({"input": [{"role": "user"}]}, "input.0.content", "must be a string or a list"),
    ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "input.0.arguments", "must be a string"),
    ({"tools": [{"type": "web_serach"}]}, "tools.0.type", "'web_serach'"),
    ({"tools": [{"type": None}]}, "tools.0.type", "None"),
    ({"tools": [{"type": "custom"}, {"type": "function", "name": "a b"}]}, "tools.1.name", "tools.1.name must be"),
    ({"tools": [{"type": "mcp"}], "tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"tools": [NOW, {"type": "mcp"}], "tool_choice": {"type": "mcp"}}, "tool_choice.type", "'mcp'"),
    (
        {"tools": [NOW, {"type": "mcp"}], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}},
        "tool_choice.tools.0",
        "of type function",
    ),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name", "tools.0.name must be"),
    ({"tools": [NOW | {"defer_loading": True}]}, "tools.0.defer_loading", "not supported yet"),
    (
        {"tools": [NOW], "tool_choice": {"type": "function", "name": "x"}},
        "tool_choice.name",
        "tool_choice.name: there is",
    ),
    ({"tools": [NOW], "tool_choice": {"type": "file_search"}}, "tool_choice.type", "file_search"),
    ({"tools": [NOW], "tool_choice": {"type": "allowed_tools", "tools": [{}]}}, "tool_choice.tools.0", "name"),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be"),
    ({"max_output_tokens": 5000}, "max_output_tokens", "max_output_tokens (5000)"),
    ({"temperature": -1}, "temperature", "temperature must be"),
    ({"top_logprobs": 3}, "top_logprobs", "include"),
    ({"include": ["everything"]}, "include.0", "everything"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "text.format.schema is missing"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type", "text.format.type must be"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "medium"),
    ({"truncation": "middle"}, "truncation", "disabled"),
    ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
    ({"prompt": {"id": "p"}}, "prompt", "unknown field"),
    ({"background": True, "store": False}, "store", "store"),
    ({"metadata": {"a": 1}}, "metadata.a", "string"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "16"),
]


@pytest.mark.parametrize(("fields", "param", "words"), BAD, ids=lambda value: str(value)[:50])
def test_errors_name_the_clients_fields(http: httpx.Client, fields: dict[str, Any], param: str, words: str) -> None:
    answer = http.post("/v1/responses", json={"input": "hi", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_other_errors(http: httpx.Client, engine: FakeEngine) -> None:
    assert http.post("/v1/responses", json={"input": "hi", "model": "x"}).json()["error"]["code"] == "model_not_found"
    for field in ("previous_response_id", "input"):
        given: Any = {"previous_response_id": "resp_1"} if field != "input" else {}
        reference = [{"type": "item_reference", "id": "msg_1"}]
        answer = http.post("/v1/responses", json={"input": "hi" if given else reference} | given)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, field)
    engine.fail, engine.fail_after = RuntimeError("broken"), 2
    lines = http.post("/v1/responses", json={"input": "hi", "stream": True}).text.splitlines()
    last = json.loads(lines[-2].removeprefix("data: "))
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert http.get(f"/v1/responses/{last['response']['id']}").status_code == 404
