"""Texts that are made to take long: every parser takes time in proportion to the text, in pieces or whole."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from palladio.http.prompts.tools import ToolPlan
from palladio.http.reasoning.family import PromptEnd
from palladio.http.reasoning.registry import FAMILIES
from palladio.http.tool_calls.formats import FORMATS
from palladio.http.wire.protocol_chat import ChatRequest
from palladio.runtime.grammar.limits import forced_length
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.telemetry.logs import escape_control
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.cpu_time import least_cpu_seconds
from tests.http.tool_calls.tool_texts import FUNCTIONS, LIKE_OLDER, SAMPLES

SIZE = 5_000  # characters: linear time is some ms, the square of it a second
LIMIT = 0.5  # seconds of CPU time for one text
UNITS = [
    *("a", " ", "\n", "\\", '"', "'", "{", "[", "(", "<", "-", "1", "=", ",", "é"),
    *('{"', '"a":', '{"a":', '"a",', "'a' ", "a=1,", "\\u", "\\ud83d", "</", "<|", "\n\n", " \n", '{"arguments":{'),
]


def repeated(beginning: str, unit: str, size: int) -> str:
    return beginning + unit * (size // len(unit))


def feed(parser, text: str, step: int) -> None:
    for begin in range(0, len(text), step):
        parser.feed(text[begin : begin + step])
    parser.finish()


def check(make: Callable[[], object], texts: Iterator[str], limit: float) -> None:
    for text in texts:
        for step in (len(text), 5):
            seconds = least_cpu_seconds(lambda text=text, step=step: feed(make(), text, step), enough=limit)
            assert seconds < limit, (text[:80], text[-40:], len(text), step, seconds)


def tool_texts(name: str, size: int, every: int) -> Iterator[str]:
    tool_format = FORMATS[name]
    sample = SAMPLES.get(name, SAMPLES["json"]).text
    marks = [mark for mark in tool_format.special if mark]
    for unit in (*UNITS, *marks, *(mark[:-1] for mark in marks), *(f"{mark} " for mark in marks), sample):
        yield repeated("", unit, size)
    for cut in range(1, len(sample), every):
        for unit in (" ", "a", "\\", '"', "[", "{", '"a": 1, ', *marks[:1]):
            yield repeated(sample[:cut], unit, size)


def reasoning_texts(marks: tuple[str, ...], size: int) -> Iterator[str]:
    forms = ("{}", "{}\n", "\n{}", " {} ", "x{}", "{}\n\n ")
    units = [*UNITS, *(form.format(mark) for mark in marks for form in forms), *(mark[:-1] for mark in marks)]
    for beginning in ("", marks[0]):
        for unit in units:
            yield repeated(beginning, unit, size)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LIKE_OLDER else []) for name in FORMATS]
)
def test_tool_calls(name: str) -> None:
    check(lambda: FORMATS[name].new_parser(FUNCTIONS), tool_texts(name, SIZE, 150), LIMIT)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_reasoning(family) -> None:
    check(lambda: family.new_parser(PromptEnd(""), has_tools=True), reasoning_texts(family.specials, SIZE), LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_long_tool_calls(name: str) -> None:
    check(lambda: FORMATS[name].new_parser(FUNCTIONS), tool_texts(name, 32 * SIZE, 25), 20 * LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_long_reasoning(family) -> None:
    texts = reasoning_texts(family.specials, 32 * SIZE)
    check(lambda: family.new_parser(PromptEnd(""), has_tools=True), texts, 20 * LIMIT)


@pytest.mark.parametrize("unit", ["\x00", "\n", "a", "\u2028", "\x1b["])
def test_log_lines(unit: str) -> None:
    assert least_cpu_seconds(lambda: escape_control(repeated("", unit, 300_000)), enough=1) < 1


@pytest.mark.parametrize("unit", ["{5", "(", "a{99999999999}", "(a{9}){9}", "\\", ")", "[", "|"])
def test_the_length_that_a_pattern_forces(unit: str) -> None:
    assert least_cpu_seconds(lambda: forced_length(repeated("a", unit, 250_000)), enough=10) < 10


LEVELS = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 50} for i in range(7)} | {"a7": {"type": "string"}}
NAMES = [f"p{i}" for i in range(20_000)]
SCHEMAS: dict[str, dict[str, Any]] = {
    "alternatives of alternatives": {"properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": LEVELS},
    "many of them": {"properties": {name: {"$ref": "#/$defs/a0"} for name in NAMES[:500]}, "$defs": LEVELS},
    "a reference to itself": {"properties": {"x": {"$ref": "#/properties/x"}}},
    "many optional parameters": {"properties": {name: {"type": "integer"} for name in NAMES}},
    "many required parameters": {"properties": {name: {} for name in NAMES}, "required": NAMES[::-1]},
    "large definitions": {
        "properties": {name: {"type": "integer"} for name in NAMES[:2000]},
        "$defs": {"large": {"enum": ["x" * 1000] * 500}},
    },
}


def test_grammars_that_are_too_large_are_refused(tokenizer: Tokenizer) -> None:
    function = {"name": "f", "parameters": {"type": "object"} | SCHEMAS["large definitions"]}
    fields = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": function}]}
    body = ChatRequest.parse(fields | {"tool_choice": "required"})
    with pytest.raises(InvalidRequestError, match="the grammar for these tools is too large") as caught:
        _ = ToolPlan.of(body, FORMATS["qwen3_coder"], tokenizer).grammar
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "name",  # each writes arguments in another way
    [
        "qwen3_coder",
        "qwen25",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("pythonic", "glm45", "deepseekv32")),
    ],
)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_grammars_of_tools(tokenizer: Tokenizer, name: str, schema: str) -> None:
    function = {"name": "f", "parameters": {"type": "object"} | SCHEMAS[schema]}
    fields = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": function}]}
    body = ChatRequest.parse(fields | {"tool_choice": "required"})

    def plan() -> None:
        with contextlib.suppress(InvalidRequestError):  # too large
            _ = ToolPlan.of(body, FORMATS[name], tokenizer).grammar

    assert least_cpu_seconds(plan, enough=5) < 5
