"""Anthropic's /v1/messages through the real application and the anthropic SDK, with strict validation."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from palladio.runtime.interface.errors import GenerationError, OverloadedError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve
from tests.http.responses.test_responses import CALL, PARAMETERS, REPLY, TEMPLATE

USER: Any = [{"role": "user", "content": "hi"}]
WEATHER: Any = {"name": "get_weather", "description": "tells", "input_schema": PARAMETERS}
NOW: Any = {"name": "now", "input_schema": {"type": "object"}}


@pytest.fixture
def connect(serve: Serve, tmp_path: Path) -> Callable[..., anthropic.Anthropic]:
    """A server whose model reasons and calls tools, and a strict client of it."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")

    def start(**config: Any) -> anthropic.Anthropic:
        families = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}
        url = serve(**families | {"chat_template": str(template)} | config)
        return anthropic.Anthropic(
            base_url=url, api_key="x", max_retries=0, timeout=20, _strict_response_validation=True
        )

    return start


@pytest.fixture
def prompt_of(engine: FakeEngine, tokenizer: Tokenizer) -> Callable[[], str]:
    return lambda: tokenizer.decode(engine.calls[-1].prompt_ids, skip_special_tokens=False)


def test_an_answer(connect: Callable[..., anthropic.Anthropic], prompt_of: Callable[[], str]) -> None:
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    message = connect().messages.create(
        model=MODEL, max_tokens=99, messages=USER, system=system, metadata={"user_id": "me"}, service_tier="auto"
    )
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello, wörld 🎉!"}]
    assert (message.stop_reason, message.stop_sequence, message.model) == ("end_turn", None, MODEL)
    usage = message.usage
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (3, 0)
    assert prompt_of() == "[system]Be brief.;[user]hi;[assistant]"


def test_why_it_stopped(connect: Callable[..., anthropic.Anthropic], engine: FakeEngine) -> None:
    client = connect()
    asked: Any = {"model": MODEL, "max_tokens": 99, "messages": USER}
    assert client.messages.create(**asked | {"max_tokens": 2}).stop_reason == "max_tokens"
    stopped = client.messages.create(**asked, stop_sequences=["x", "ld"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "ld")
    engine.reply = CALL
    assert client.messages.create(**asked, tools=[WEATHER]).stop_reason == "tool_use"


@pytest.mark.parametrize("reply", ["Hello, wörld 🎉!", REPLY, CALL, ""])
def test_a_stream_adds_up_to_the_answer(
    connect: Callable[..., anthropic.Anthropic], engine: FakeEngine, reply: str
) -> None:
    engine.reply = reply
    client = connect()
    asked: Any = {"model": MODEL, "max_tokens": 999, "messages": USER, "tools": [WEATHER]}

    def without_ids(message: Any) -> Any:
        fields = message.to_dict()
        blocks = [
            {key: block[key] for key in block if key not in ("id", "parsed_output")} for block in fields["content"]
        ]
        given = {key: value for key, value in fields.items() if key != "id" and value is not None}
        return given | {"content": blocks}

    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert without_ids(final) == without_ids(whole)
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])

    async def follow() -> Any:
        async with (
            anthropic.AsyncAnthropic(base_url=client.base_url, api_key="x", max_retries=0) as other,
            other.messages.stream(**asked) as stream,
        ):
            return await stream.get_final_message()

    assert without_ids(asyncio.run(follow())) == without_ids(whole)


def test_thinking_and_a_tool_loop(
    connect: Callable[..., anthropic.Anthropic], engine: FakeEngine, prompt_of: Callable[[], str]
) -> None:
    """The answer goes back as it came."""
    engine.reply = REPLY
    client = connect()
    asked: Any = {"model": MODEL, "max_tokens": 999, "tools": [WEATHER]}
    message = client.messages.create(**asked, messages=USER, thinking={"type": "enabled", "budget_tokens": 1024})
    thinking, text, call = message.content
    assert (thinking.type, text.type, call.type) == ("thinking", "text", "tool_use")
    assert (thinking.thinking, text.text, call.input) == ("Hm.", "I look.", {"city": "Zürich"})
    assert message.usage.output_tokens_details is not None
    assert message.usage.output_tokens_details.thinking_tokens > 2
    thought = engine.calls[-1].params.thinking
    assert thought is not None
    assert thought.budget == 1024
    redacted = {"type": "redacted_thinking", "data": "…"}
    result = {"type": "tool_result", "tool_use_id": call.id, "is_error": True}
    turns: Any = [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": "there"},
        {"role": "assistant", "content": [redacted, *message.content]},
        {
            "role": "user",
            "content": [result | {"content": [{"type": "text", "text": "no"}]}, {"type": "text", "text": "so?"}],
        },
    ]
    client.messages.create(model=MODEL, max_tokens=9, messages=turns)
    called = '(Hm.)I look.CALL get_weather {"city": "Zürich"}'
    assert prompt_of() == f"[user]hi\nthere;[assistant]{called};[tool]Error: no;[user]so?;[assistant]"


BROKEN = '<tool_call>\n{"name": "now", "arguments": {"a": %s}}\n</tool_call>'


@pytest.mark.parametrize(
    ("value", "given", "rest"),
    [
        ("NaN", {}, "}}\n</tool_call>"),
        ("1" + "0" * 400, {}, ""),
        ("[" * 200 + "]" * 200, {"a": None}, "[" * 73 + "]" * 200 + "}}\n</tool_call>"),
    ],
)
def test_arguments_that_are_no_json(
    connect: Callable[..., anthropic.Anthropic], engine: FakeEngine, value: str, given: dict[str, Any], rest: str
) -> None:
    """The call stands, with what of its arguments can be said; what broke it is text behind it."""
    client = connect()
    engine.reply = BROKEN % value
    asked: Any = {"model": MODEL, "max_tokens": 999, "messages": USER, "tools": [NOW]}
    message = client.messages.create(**asked)
    if given:
        given["a"] = json.loads("[" * 127 + "]" * 127)
    call = message.content[0]
    assert call.type == "tool_use"
    assert (call.name, call.input, call.id is None) == ("now", given, False)
    assert "".join(block.text for block in message.content[1:] if block.type == "text") == rest
    assert len(message.content) == 1 + bool(rest)
    events = httpx.post(f"{client.base_url}/v1/messages", json=asked | {"stream": True}).text
    assert "event: error" not in events
    assert events.count("event: content_block_start") == len(message.content)


def test_what_reaches_the_engine(connect: Callable[..., anthropic.Anthropic], engine: FakeEngine) -> None:
    client = connect()
    asked: Any = {"model": MODEL, "max_tokens": 9, "messages": USER}
    extra = {"top_k": 3, "top_p": 0.5, "temperature": 0.2, "seed": 7, "timeout": 9.0, "priority": 0}
    client.messages.create(**asked, extra_body=extra)
    params, options = engine.calls[-1].params, engine.calls[-1].options
    assert (params.top_k, params.top_p, params.temperature, params.seed) == (3, 0.5, 0.2, 7)
    assert (params.max_tokens, options.timeout) == (9, 9.0)
    for choice, forced in (({"type": "any"}, True), ({"type": "tool", "name": "now"}, True), ({"type": "auto"}, False)):
        client.messages.create(**asked, tools=[WEATHER, NOW], tool_choice=choice)
        assert (engine.calls[-1].params.grammar is not None) == forced
    engine.reply = CALL + CALL
    alone = client.messages.create(
        **asked | {"max_tokens": 999}, tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True}
    )
    assert [block.type for block in alone.content] == ["tool_use"]
    plain = client.messages.create(**asked, tools=[WEATHER], tool_choice={"type": "none"})
    assert [block.type for block in plain.content] == ["text"]
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    for fields in ({"output_config": {"format": {"type": "json_schema", "schema": schema}}},):
        client.messages.create(**asked, extra_body=fields)
        grammar = engine.calls[-1].params.grammar
        assert grammar is not None
        assert grammar.kind == "json_schema"
    client.messages.create(**asked, extra_body={"output_format": {"type": "json_schema", "schema": schema}})
    assert engine.calls[-1].params.grammar == grammar


def test_thinking_off_and_left_out(
    connect: Callable[..., anthropic.Anthropic], engine: FakeEngine, prompt_of: Callable[[], str]
) -> None:
    engine.reply = REPLY
    client = connect()
    asked: Any = {"model": MODEL, "max_tokens": 999, "messages": USER}
    client.messages.create(**asked, thinking={"type": "disabled"})
    assert prompt_of().endswith("<think></think>")
    message = client.messages.create(**asked, thinking={"type": "adaptive", "display": "omitted"})
    assert [block.type for block in message.content] == ["text"]
    assert prompt_of().endswith("[assistant]")


def test_the_beginning_of_the_answer(connect: Callable[..., anthropic.Anthropic], prompt_of: Callable[[], str]) -> None:
    turns: Any = [*USER, {"role": "assistant", "content": "Hel"}]
    message = connect(chat_template=None).messages.create(model=MODEL, max_tokens=99, messages=turns)
    assert prompt_of().endswith("assistant\nHel")
    assert message.content[0].to_dict()["text"] == "Hello, wörld 🎉!"


def test_counting_tokens(connect: Callable[..., anthropic.Anthropic], engine: FakeEngine) -> None:
    client = connect()
    asked: Any = {"model": MODEL, "messages": USER, "tools": [NOW], "system": "Be brief."}
    counted = client.messages.count_tokens(**asked)
    client.messages.create(**asked, max_tokens=9)
    assert counted.input_tokens == len(engine.calls[-1].prompt_ids)


def block(**fields: Any) -> list[Any]:
    return [{"role": "user", "content": [fields]}]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages.0.role must be"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content must be"),
        ({"messages": block(type="image", source={})}, "'image'"),
        ({"messages": block(type="document", source={})}, "'document'"),
        ({"messages": block(type="text", text=3)}, "messages.0.content.0.text must be a string"),
        ({"messages": block(type="tool_result")}, "messages.0.content.0.tool_use_id must be a string"),
        ({"messages": [*USER, {"role": "assistant", "content": ""}]}, "messages.1: the last message has no text"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema is missing"),
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, 'tools.0.input_schema.type must be "object"'),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}},
            "tool_choice.name: there is no function 'x'",
        ),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type must be"),
        ({"stop_sequences": [""]}, "stop_sequences must be"),
        ({"temperature": -1}, "temperature must be"),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, "thinking.budget_tokens is only for"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema is missing"),
        ({"output_format": {"type": "yaml"}}, "output_format.type must be json_schema"),
        (
            {"context_management": {"edits": [{"type": "compact_20260112"}]}},
            "not supported yet: context_management.edits.0.type 'compact_20260112'",
        ),
        ({"context_management": {"edits": {}}}, "context_management.edits must be a list"),
        ({"context_management": {"edits": ["x"]}}, "context_management.edits.0.type None"),
        ({"context_management": {"edit": []}}, "unknown field: context_management.edit"),
        ({"container": "c"}, "not supported yet: container"),
        ({"system_": "x"}, "unknown field: system_; did you mean system?"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_wrong_requests(http: httpx.Client, fields: dict[str, Any], words: str) -> None:
    answer = http.post("/v1/messages", json={"messages": USER, "max_tokens": 9, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_told_as_clients_know_it(
    http: httpx.Client, engine: FakeEngine, stream: bool
) -> None:
    """Agents look for these words, and compact the conversation."""
    limit = engine.info.context_length

    def told(text: str) -> str:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 9, "stream": stream}
        answer = http.post("/v1/messages", json=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        return answer.json()["error"]["message"]

    def count(text: str) -> int:
        body = {"messages": [{"role": "user", "content": text}]}
        return http.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]

    frame = count("")
    assert told("!" * 3 * limit) == f"prompt is too long: {count('!' * 3 * limit)} tokens > {limit} maximum"
    assert count("!" * (limit - frame)) == limit
    assert told("!" * (limit - frame)) == f"prompt is too long: {limit} tokens > {limit - 1} maximum"
    found = re.fullmatch(
        r"prompt is too long: (\d+) tokens > (\d+) maximum \(at least that many: .*\)", told("a b" * 200_000)
    )
    assert found is not None
    assert int(found[1]) > int(found[2]) == limit


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 9}},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
        {"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}},
        {"output_config": {"effort": "high"}},
    ],
)
@pytest.mark.parametrize("parser", ["none", "deepseek-r1"])
def test_a_model_that_cannot_do_it_is_asked_all_the_same(
    serve: Serve, engine: FakeEngine, parser: str, fields: dict[str, Any]
) -> None:
    """Thinking and effort allow the model to reason; only of one that always does, thinking cannot be turned off."""
    url = serve(reasoning_parser=parser, chat_template="chatml")
    body = {"messages": USER, "max_tokens": 9}
    always = parser == "deepseek-r1" and fields.get("thinking", {}).get("type") == "disabled"
    answer = httpx.post(f"{url}/v1/messages", json=body | fields)
    assert answer.status_code == (400 if always else 200), answer.text
    if always:
        assert answer.json()["error"]["message"].startswith("thinking has no effect")
        return
    asked = engine.calls[-1]
    httpx.post(f"{url}/v1/messages", json=body).raise_for_status()
    assert engine.calls[-1].prompt_ids == asked.prompt_ids
    budget = fields.get("thinking", {}).get("budget_tokens") if parser == "deepseek-r1" else None
    assert (None if asked.params.thinking is None else asked.params.thinking.budget) == budget
    counted = httpx.post(f"{url}/v1/messages/count_tokens", json={"messages": USER} | fields)
    assert counted.json()["input_tokens"] == len(asked.prompt_ids)


def test_effort_is_named_as_this_route_names_it(connect: Callable[..., anthropic.Anthropic]) -> None:
    kwargs = {"enable_thinking": False}
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.effort sets enable_thinking to True"):
        connect().messages.create(
            model=MODEL,
            max_tokens=9,
            messages=USER,
            extra_body={"output_config": {"effort": "low"}, "chat_template_kwargs": kwargs},
        )


def test_context_management_leaves_the_conversation_whole(
    connect: Callable[..., anthropic.Anthropic], engine: FakeEngine
) -> None:
    client = connect()
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}, {"type": "clear_tool_uses_20250919"}]
    given = {"context_management": {"edits": edits}}
    client.messages.create(model=MODEL, max_tokens=9, messages=USER)
    client.messages.create(model=MODEL, max_tokens=9, messages=USER, extra_body=given)
    assert engine.calls[0].prompt_ids == engine.calls[1].prompt_ids
    client.messages.count_tokens(model=MODEL, messages=USER, extra_body=given)


def test_all_errors_have_anthropics_form(serve: Serve, engine: FakeEngine) -> None:
    url = serve(api_key="secret", max_request_bytes=4000)
    good = {"messages": USER, "max_tokens": 99}
    keyed = {"x-api-key": "secret"}

    def kind(answer: httpx.Response) -> tuple[int, str]:
        body = answer.json()
        assert (body["type"], set(body["error"])) == ("error", {"type", "message"})
        return answer.status_code, body["error"]["type"]

    def post(content: str | dict[str, Any], headers: dict[str, str] = keyed) -> httpx.Response:
        given: Any = {"json": content} if isinstance(content, dict) else {"content": content}
        return httpx.post(f"{url}/v1/messages", headers=headers, timeout=20, **given)

    assert post(good).status_code == 200
    assert kind(post(good, {})) == (401, "authentication_error")
    assert kind(post("{")) == (400, "invalid_request_error")
    assert kind(post(good | {"model": "x"})) == (404, "not_found_error")
    assert kind(post(good | {"system": "x" * 5000})) == (413, "request_too_large")
    assert kind(httpx.get(f"{url}/v1/messages", headers=keyed)) == (405, "invalid_request_error")
    assert kind(httpx.post(f"{url}/v1/messages/batches", headers=keyed, json={})) == (404, "not_found_error")
    engine.refuse = OverloadedError("too many")
    assert kind(post(good)) == (503, "overloaded_error")
    engine.refuse = RuntimeError("a defect")
    assert kind(post(good)) == (500, "api_error")
    engine.refuse, engine.fail, engine.fail_after = None, GenerationError("not finite"), 2
    assert kind(post(good)) == (500, "api_error")
    lines = post(good | {"stream": True}).text.splitlines()
    assert lines[-3] == "event: error"
    assert json.loads(lines[-2].removeprefix("data: "))["error"] == {"type": "api_error", "message": "not finite"}
    client = anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0)
    with (
        pytest.raises(anthropic.APIStatusError, match="not finite"),
        client.messages.stream(**good, model=MODEL) as stream,
    ):
        stream.until_done()
