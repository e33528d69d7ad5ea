"""Reasoning, content and tool calls of one text: the same message, however the text is cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palladio.http.chat.chat_output import ChatMessage, MessageParser, MessagePlan
from palladio.http.chat.reasoning_plan import ReasoningPlan
from palladio.http.reasoning.family import PromptEnd
from palladio.http.reasoning.registry import find_family
from palladio.http.tool_calls.reading.base import Function
from palladio.http.tool_calls.registry import find_format
from tests.fake_engine import MODEL, FakeEngine
from tests.http.conftest import Serve
from tests.properties import examples

FUNCTIONS = {"look": Function("look", {"type": "object", "properties": {"city": {"type": "string"}}})}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": FUNCTIONS["look"].parameters}}]
USER = [{"role": "user", "content": "How is the weather?"}]
ARGUMENTS = '{"city": "Paris"}'
HERMES = f'<tool_call>\n{{"name": "look", "arguments": {ARGUMENTS}}}\n</tool_call>'
HARMONY = f"<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
ANALYSIS = "<|channel|>analysis<|message|>I must look.<|end|>"


def plan(family: str, tools: str | None, end: str = "", **options: bool) -> MessagePlan:
    new_tools = None if tools is None else lambda: find_format(tools).new_parser(FUNCTIONS)
    return MessagePlan(ReasoningPlan(find_family(family), **options), PromptEnd(end), new_tools)


def read(parser: MessageParser, pieces: list[str]) -> tuple[str, str, dict[int, tuple[str, str]]]:
    """(reasoning, content, calls by index)."""
    found = [piece for text in pieces for piece in parser.feed(text)] + parser.finish()
    calls: dict[int, tuple[str, str]] = {}
    for delta in (piece.call for piece in found if piece.call is not None):
        name, arguments = calls.get(delta.index, (delta.name, ""))
        calls[delta.index] = (name, arguments + delta.arguments)
    return "".join(piece.reasoning for piece in found), "".join(piece.content for piece in found), calls


@pytest.mark.parametrize(
    ("family", "tools", "text"),
    [
        ("qwen3", "hermes", f"<think>\nI must look.\n</think>\n\n{HERMES}"),
        ("qwen3", "hermes", f"<think>I must look.\n{HERMES}"),  # the call closes it
        ("gpt-oss", "gpt-oss", ANALYSIS + HARMONY),
        ("gpt-oss", "gpt-oss", ANALYSIS + HARMONY.removesuffix("<|call|>")),
    ],
)
def test_a_call_after_reasoning(family: str, tools: str, text: str) -> None:
    expected = ("I must look.", "", {0: ("look", ARGUMENTS)})
    assert read(plan(family, tools).new_parser(), [text]) == expected
    assert read(plan(family, tools).new_parser(), list(text)) == expected
    message = ChatMessage.read(plan(family, tools).new_parser(), text).as_dict()
    assert (message["content"], message["reasoning_content"], len(message["tool_calls"])) == (None, "I must look.", 1)
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": ARGUMENTS}
    left_out = read(plan(family, tools, includes=False).new_parser(), list(text))
    assert left_out == ("", "", {0: ("look", ARGUMENTS)})
    raw = read(plan(family, tools, separates=False).new_parser(), list(text))
    assert (raw[0], raw[2]) == ("", {0: ("look", ARGUMENTS)})
    assert "I must look." in raw[1]


def test_without_tools_a_call_is_text() -> None:
    assert read(plan("qwen3", None).new_parser(), [f"<think>Hm.</think>{HERMES}"]) == ("Hm.", HERMES, {})
    assert read(plan("gpt-oss", None).new_parser(), [ANALYSIS + HARMONY]) == ("I must look.", ARGUMENTS, {})


def test_reasoning_in_one_piece_comes_before_what_follows() -> None:
    parser = plan("qwen3", "hermes", streams=False).new_parser()
    pieces = [piece for character in f"<think>I must look.</think>{HERMES}" for piece in parser.feed(character)]
    assert [piece.reasoning for piece in pieces if piece.reasoning] == ["I must look."]
    assert pieces[0].reasoning
    assert pieces[1].call.name == "look"


FRAGMENTS = ["<think>", "</think>", "\n", " ", "a", "b c", "<", HERMES, "<tool_call>", HARMONY, ANALYSIS, "<|channel|>"]


@examples(300)
@given(data=st.data())
def test_the_message_does_not_depend_on_how_the_text_is_cut(data: st.DataObject) -> None:
    family, tools = data.draw(st.sampled_from([("qwen3", "hermes"), ("gpt-oss", "gpt-oss"), ("qwen3", None)]))
    options = {name: data.draw(st.booleans()) for name in ("separates", "includes", "streams")}
    text = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS), max_size=8)))
    made = plan(family, tools, data.draw(st.sampled_from(["", "<think>\n", "</think>"])), **options)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(made.new_parser(), [text])
    assert read(made.new_parser(), pieces) == whole
    assert read(made.new_parser(), list(text)) == whole


@pytest.fixture
def thinking(serve: Serve, tmp_path: Path) -> Callable[..., openai.OpenAI]:
    template = tmp_path / "t.jinja"
    template.write_text(
        "{{ tools | tojson if tools else '' }}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n{{ '' if enable_thinking else '<think></think>' }}",
        encoding="utf-8",
    )
    url = serve(chat_template=str(template), reasoning_parser="qwen3", tool_call_parser="hermes")
    return lambda: openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)


@pytest.mark.parametrize("cut", [None, 40])
def test_through_the_sdk(thinking: Callable[..., openai.OpenAI], engine: FakeEngine, cut: int | None) -> None:
    engine.reply = f"<think>\nI must look.\n</think>\n\n{HERMES}"
    fields: dict[str, Any] = {"model": MODEL, "messages": USER, "tools": TOOLS, "max_tokens": cut}
    fields["extra_body"] = {"chat_template_kwargs": {"enable_thinking": True}}
    with thinking() as client:
        answer = client.chat.completions.create(**fields)
        with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
            try:
                streamed = stream.get_final_completion()
            except openai.LengthFinishReasonError as cut_off:  # the SDK does not parse calls that were cut off
                streamed = cut_off.completion
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("I must look.", None)
    assert answer.choices[0].finish_reason == ("tool_calls" if cut is None else "length")
    (call,) = message.tool_calls
    assert call.function.name == "look"
    if cut is None:
        assert call.function.arguments == ARGUMENTS
    (other,) = streamed.choices[0].message.tool_calls
    assert (other.function.name, other.function.arguments) == (call.function.name, call.function.arguments)
    assert streamed.choices[0].message.reasoning_content == "I must look."
    assert streamed.choices[0].finish_reason == answer.choices[0].finish_reason
    assert streamed.usage == answer.usage


def test_a_grammar_holds_after_reasoning(thinking: Callable[..., openai.OpenAI], engine: FakeEngine) -> None:
    engine.reply = '<think>Hm.</think>{"city": "Paris"}'
    fields: dict[str, Any] = {"model": MODEL, "messages": USER, "response_format": {"type": "json_object"}}
    with thinking() as client:
        on = {"chat_template_kwargs": {"enable_thinking": True}}
        answer = client.chat.completions.create(**fields, extra_body=on)
        told = engine.calls[-1].params
        assert told.grammar.kind == "json_schema"
        assert told.thinking.end_ids == tuple(engine.tokenizer.encode("</think>", False))
        assert (answer.choices[0].message.content, answer.choices[0].message.reasoning) == ('{"city": "Paris"}', "Hm.")
        client.chat.completions.create(**fields)
        assert engine.calls[-1].params.thinking is None  # the prompt has closed it
