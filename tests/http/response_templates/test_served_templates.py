"""A model whose tokenizer has a response template, through the real application."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.chat.template_output import TemplateMessageParser
from palladio.http.generation.model_facts import ModelFacts
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.settings.http_config import HttpConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.conftest import running_server
from tests.http.response_templates.templates import CALL, PLAIN, TAGGED, TOOLS, with_template
from tests.http.tool_calls.tool_texts import FUNCTIONS

USER = [{"role": "user", "content": "hi"}]
ANSWER = f"<think>\nHm.\n</think>\n\nYes. {CALL}\n{CALL.replace('get_weather', 'nothing')}"
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


@dataclasses.dataclass(frozen=True)
class Served:
    engine: FakeEngine
    url: str

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=fields, timeout=60)

    def chat(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", messages=USER, **fields)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = FakeEngine(with_template(tmp_path_factory.mktemp("plain"), PLAIN))
    with running_server(engine, HttpConfig()) as url:
        yield Served(engine, url)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = FakeEngine(with_template(tmp_path_factory.mktemp("tagged"), TAGGED))
    with running_server(engine, HttpConfig(tool_call_parser="hf", reasoning_parser="response_template")) as url:
        yield Served(engine, url)


def test_a_whole_answer(served: Served) -> None:
    """Chosen by itself. A call of a function that was not offered is content, without its marks."""
    served.engine.reply = ANSWER
    choice = served.chat(tools=TOOLS).json()["choices"][0]
    message = choice["message"]
    (call,) = message["tool_calls"]
    assert (message["reasoning_content"], call["function"]) == (
        "Hm.",
        {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    )
    assert message["content"].startswith("Yes.")
    assert "nothing" in message["content"]
    assert choice["finish_reason"] == "tool_calls"


def test_without_tools_a_call_is_content(served: Served) -> None:
    served.engine.reply = f"Yes. {CALL}"
    message = served.chat().json()["choices"][0]["message"]
    assert message["tool_calls"] is None
    assert message["content"].startswith("Yes.")
    assert "get_weather" in message["content"]


def test_a_stream(served: Served) -> None:
    served.engine.reply = ANSWER
    body = {"messages": USER, "tools": TOOLS, "stream": True, "n": 2, "stream_options": {"include_usage": True}}
    found = [{"reasoning_content": "", "content": "", "arguments": ""} for _ in range(2)]
    usage = None
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            chunk = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {"choices": ()}
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                delta, sample = choice["delta"], found[choice["index"]]
                sample["reasoning_content"] += delta.get("reasoning_content") or ""
                sample["content"] += delta.get("content") or ""
                sample["arguments"] += "".join(call["function"]["arguments"] for call in delta.get("tool_calls") or ())
    whole = served.chat(tools=TOOLS).json()["choices"][0]["message"]
    for sample in found:
        assert (sample["reasoning_content"], sample["arguments"]) == ("Hm.", '{"city": "Paris"}')
        assert sample["content"] == whole["content"]
    assert usage is not None
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 2


def test_forced_calls_are_json(served: Served) -> None:
    served.engine.reply = '[{"name": "now", "arguments": {}}]'
    answer = served.chat(tools=TOOLS, tool_choice="required").json()["choices"][0]["message"]
    assert [call["function"]["name"] for call in answer["tool_calls"]] == ["now"]
    grammar = served.engine.calls[-1].params.grammar
    assert grammar is not None
    assert '"[" ' in grammar.text or '"["' in grammar.text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_calls_that_are_not_json_cannot_be_forced(tagged: Served, choice: Any) -> None:
    answer = tagged.chat(tools=TOOLS, tool_choice=choice)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "tool_choice", "unsupported_parameter")


def test_strict_has_a_warning(served: Served) -> None:
    served.engine.reply = "Yes."
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    answer = served.chat(tools=tools).json()
    assert [entry["param"] for entry in answer["warnings"]] == ["tools"]
    assert served.engine.calls[-1].params.grammar is None


def test_a_format_of_answers_does_not_go_with_calls(served: Served) -> None:
    answer = served.chat(tools=TOOLS, response_format=SCHEMA)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    served.engine.reply = "<think>Hm.</think>{}"
    message = served.chat(response_format=SCHEMA).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "{}")


def test_other_routes(served: Served) -> None:
    served.engine.reply = ANSWER
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    output = served.post("/v1/responses", input="hi", tools=tools).json()["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "message"]
    blocks = served.post("/v1/messages", messages=USER, max_tokens=500).json()["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    told = served.post("/v1/responses", input="hi", top_logprobs=1, include=["message.output_text.logprobs"]).json()
    assert told["output"][-1]["type"] == "message"


def test_parsers_on_their_own(served: Served) -> None:
    text = f"<think>Hm.</think>Yes.{CALL}"
    for name in (None, "hf", "response_template"):
        fields = {} if name is None else {"reasoning_parser": name}
        found = served.post("/separate_reasoning", text=text, **fields).json()
        assert found["reasoning_text"] == "Hm."
        assert found["text"].startswith("Yes.")
        fields = {} if name is None else {"tool_call_parser": name}
        found = served.post("/parse_function_call", text=f"Yes.{CALL}", tools=TOOLS, **fields).json()
        assert found["normal_text"] == "Yes."
        assert found["calls"] == [{"tool_index": 0, "name": "get_weather", "parameters": '{"city": "Paris"}'}]


def test_a_parser_that_the_model_does_not_have(tokenizer: Tokenizer) -> None:
    with running_server(FakeEngine(tokenizer), HttpConfig()) as url:
        tools = {"tools": TOOLS}
        for path, field, others in (
            ("/separate_reasoning", "reasoning_parser", {}),
            ("/parse_function_call", "tool_call_parser", tools),
        ):
            answer = httpx.post(url + path, json={"text": "a", field: "hf"} | others)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def facts_of(tokenizer: Tokenizer, **flags: str) -> ModelFacts:
    engine = FakeEngine(tokenizer)
    config = HttpConfig(**flags)
    return ModelFacts(config, engine.config, engine.info, tokenizer, {}, ChatTemplate(config))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"tool_call_parser": "hf"}, "--tool-call-parser hf"),
        ({"reasoning_parser": "response_template"}, "--reasoning-parser response_template"),
    ],
)
def test_a_flag_that_asks_for_what_is_not_there(tokenizer: Tokenizer, flags: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        _ = facts_of(tokenizer, **flags).template_warnings


def test_other_names_go_first(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, PLAIN | {"fields": PLAIN["fields"] | {"citations": {"open": "<c>"}}})
    facts = facts_of(tokenizer)
    assert (facts.tool_format.name, facts.reasoning and facts.reasoning.name) == ("response_template",) * 2
    assert any("citations" in line for line in facts.template_warnings)
    named = facts_of(tokenizer, tool_call_parser="hermes")
    assert (named.response, named.tool_format.name) == (None, "hermes")
    with pytest.raises(ConfigError, match="--tool-call-parser hermes"):
        _ = facts_of(tokenizer, tool_call_parser="hermes", reasoning_parser="hf").response
    broken = facts_of(with_template(tmp_path, {"fields": 1}))
    assert broken.response is None
    with pytest.raises(ConfigError, match="--tool-call-parser hf"):
        _ = facts_of(with_template(tmp_path, {"fields": 1}), tool_call_parser="hf").response


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_travel_as_text(size: int) -> None:
    events = [
        ["reasoning", "H\n"],
        ["reasoning", "m"],
        ["content", "a "],
        ["call", "now", "{}", "raw"],
        ["content", " b"],
    ]
    text = "".join(
        json.dumps(event) + "\n" for event in [*events, ["call", "other", "{}", "x"], ["call", "now", "{}", ""]]
    )
    parser = TemplateMessageParser(ReasoningPlan(), FUNCTIONS, parallel=False)
    pieces = [piece for at in range(0, len(text), size) for piece in parser.feed(text[at : at + size])]
    pieces += parser.finish()
    assert "".join(piece.reasoning for piece in pieces) == "H\nm"
    assert "".join(piece.content for piece in pieces) == "abx"
    assert [piece.call.name for piece in pieces if piece.call is not None and piece.call.name] == ["now"]
