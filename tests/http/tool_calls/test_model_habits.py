"""Calls as models write them: Python literals, marks that are missing, empty arguments, a comma too many."""

import ast
import dataclasses
import json
from typing import Any

import pytest

from palladio.http.tool_calls.formats import FORMATS
from palladio.http.tool_calls.reading.base import Function
from palladio.http.tool_calls.reading.python_literals import MAX_DEPTH, literal_json
from palladio.http.tool_calls.reading.typed_values import to_json, types_of
from tests.http.tool_calls.tool_texts import Read, read

_TYPES = {"s": "string", "i": "integer", "l": "array", "m": "array", "t": "array", "o": "object"}
PARAMETERS = {"type": "object", "properties": {name: {"type": kind} for name, kind in _TYPES.items()}}
FUNCTIONS = {name: Function(name, PARAMETERS) for name in ("f", "g")}


def read_cut_everywhere(name: str, text: str) -> Read:
    """Content and calls of the whole text, which are the same where it is cut at any character, or at all of them."""
    form = FORMATS[name]
    whole = read(form, [text], FUNCTIONS)
    for place in range(1, len(text)):
        assert read(form, [text[:place], text[place:]], FUNCTIONS) == whole, place
    assert read(form, list(text), FUNCTIONS) == whole
    return whole


@dataclasses.dataclass(frozen=True)
class Marks:
    """How a family with values as plain text writes a call; `{}` is a name.

    Attributes:
        call, value: their openings.
        value_end, call_end: what ends them.
    """

    call: str
    value: str
    value_end: str
    call_end: str

    def values(self, values: dict[str, str]) -> str:
        return "".join(self.value.format(name) + value + self.value_end for name, value in values.items())


MARKS = {
    "qwen3_coder": Marks(
        "<tool_call>\n<function={}>\n", "<parameter={}>\n", "\n</parameter>\n", "</function>\n</tool_call>"
    ),
    "glm45": Marks("<tool_call>{}\n", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>"),
    "glm47": Marks("<tool_call>{}", "<arg_key>{}</arg_key><arg_value>", "</arg_value>", "</tool_call>"),
    "minimax-m2": Marks(
        '<minimax:tool_call>\n<invoke name="{}">\n',
        '<parameter name="{}">',
        "</parameter>\n",
        "</invoke>\n</minimax:tool_call>",
    ),
    "step3": Marks(
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{}">',
        '<steptml:parameter name="{}">',
        "</steptml:parameter>",
        "</steptml:invoke><｜tool_call_end｜>",
    ),
    "deepseekv32": Marks(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="{}">\n',
        '<｜DSML｜parameter name="{}">',
        "</｜DSML｜parameter>\n",
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
}

by_marks = pytest.mark.parametrize(("name", "marks"), MARKS.items(), ids=list(MARKS))


@by_marks
def test_values_may_be_python_literals(name: str, marks: Marks) -> None:
    """But not where the schema wants a string; and what is no literal is one."""
    values = {"l": "['a', 'b']", "m": "[1, 2,]", "t": "('a', 'b')", "o": "{'x': True, 'y': None}", "s": "['a']"}
    text = marks.call.format("f") + marks.values(values | {"i": "[oops"}) + marks.call_end
    expected = {"l": ["a", "b"], "m": [1, 2], "t": ["a", "b"], "o": {"x": True, "y": None}, "s": "['a']", "i": "[oops"}
    assert read_cut_everywhere(name, text) == ("", [("f", json.dumps(expected))])


@pytest.mark.parametrize(("says", "expected"), [("true", '"[1,]"'), ("false", "[1]")])
def test_the_tag_that_says_string_decides(says: str, expected: str) -> None:
    value = f'<｜DSML｜parameter name="l" string="{says}">[1,]</｜DSML｜parameter>'
    text = f'<｜DSML｜invoke name="f">{value}</｜DSML｜invoke>'
    assert read_cut_everywhere("deepseekv32", text) == ("", [("f", f'{{"l": {expected}}}')])


@pytest.mark.parametrize("name", ["pythonic", "lfm2"])
def test_values_of_pythonic_calls_may_hold_what_json_has_not(name: str) -> None:
    call = "f(l=['a', 'b',], t=('a', true), o={'x': None, 'y': {1: 0x10}}, s='\\d\n', m=[oops])"
    text = f"<|tool_call_start|>[{call}]<|tool_call_end|>" if name == "lfm2" else f"[{call}]"
    expected = {"l": ["a", "b"], "t": ["a", True], "o": {"x": None, "y": {"1": 16}}, "s": "\\d\n", "m": "[oops]"}
    assert read_cut_everywhere(name, text) == ("", [("f", json.dumps(expected))])


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ("['a', None, {'b': (1, 2.5)}]", {"type": "array"}, '["a", null, {"b": [1, 2.5]}]'),
        ("{'a': true}", {}, '{"a": true}'),  # JSON's words among Python's
        ("'a'", {}, '"a"'),
        ("'a'", {"enum": [1, 2]}, "\"'a'\""),
        ("'''a\n\"b\"'''", {}, '"a\\n\\"b\\""'),
        ("'a' 'b'", {}, '"ab"'),
        ("['\\d', '\\x41', r'\\d', '\\ud83d\\ude00', '\\ud800']", {}, '["\\\\d", "A", "\\\\d", "😀", "\ufffd"]'),
        ("['a\nb',\n 'c']", {"type": "array"}, '["a\\nb", "c"]'),
        ("0x10", {"type": "integer"}, "16"),
        ("1_000", {"type": "number"}, "1000"),
        ("0x10", {}, '"0x10"'),
        ("0x10", {"type": ["integer", "string"]}, '"0x10"'),
        ("['a']", {"type": ["array", "string"]}, '["a"]'),
        ("['a']", {"type": ["string", "null"]}, "\"['a']\""),
        ("['a']", {"type": "object"}, "\"['a']\""),  # a literal of another type stays what was written
        ("\"['a']\"", {"type": "array"}, '["a"]'),
        ("'[1,]'", {"type": "array"}, "[1]"),
        ("'a'", {"type": ["string", "null"]}, "\"'a'\""),  # what is a string stays as it is
        ("None", {"type": ["array", "null"]}, "null"),
        ("{1, 2}", {}, '"{1, 2}"'),  # JSON has no sets, no infinity, no bytes
        ("[1e999]", {}, '"[1e999]"'),
        ("[b'a']", {}, "\"[b'a']\""),
        ("[f'{1}']", {}, "\"[f'{1}']\""),
        ("[x]", {}, '"[x]"'),
        ("[1](2)", {}, '"[1](2)"'),
        ("[1 + 1]", {}, '"[1 + 1]"'),
        ("[__import__('os')]", {}, "\"[__import__('os')]\""),
        ("['a'", {}, "\"['a'\""),
        ("1" * 400, {"type": "integer"}, f'"{"1" * 400}"'),  # no float holds them
        (f"[0x{'f' * 300}]", {"type": "array"}, f'"[0x{"f" * 300}]"'),
        (f'"[0x{"f" * 300}]"', {"type": "array"}, f'"[0x{"f" * 300}]"'),
    ],
)
def test_literals_in_plain_values(text: str, schema: dict[str, Any], expected: str) -> None:
    assert to_json(text, types_of(schema, {})) == expected


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)),
        ("[" + "1," * 4_998 + "'a']", "[" + "1," * 5_000 + "'a']"),
        ("['" + "a" * ((1 << 20) - 4) + "']", "['" + "a" * ((1 << 20) - 3) + "']"),
    ],
    ids=["depth", "tokens", "size"],
)
def test_literals_have_bounds(inside: str, outside: str) -> None:
    """Beyond them a value is the string that was written."""
    assert literal_json(inside) == json.dumps(ast.literal_eval(inside))
    assert literal_json(outside) is None
    assert to_json(f"({outside},)", frozenset({"array"})) == json.dumps(f"({outside},)")


@by_marks
def test_a_value_ends_at_the_next_one(name: str, marks: Marks) -> None:
    text = f"{marks.call}{marks.value}x\n{marks.values({'i': '1'})}{marks.call_end}".format("f", "s")
    assert read_cut_everywhere(name, text) == ("", [("f", '{"s": "x", "i": 1}')])


@by_marks
@pytest.mark.parametrize(("key", "value", "expected"), [("s", "x", '{"s": "x"}'), ("l", "[1,]", '{"l": [1]}')])
def test_the_last_value_takes_nothing_of_the_calls_end(
    name: str, marks: Marks, key: str, value: str, expected: str
) -> None:
    begun = (marks.call + marks.value).format("f", key) + value
    text = f"{begun}\n{marks.call_end}\n{marks.call.format('g')}{marks.values({'i': '2'})}{marks.call_end}"
    assert read_cut_everywhere(name, text) == ("", [("f", expected), ("g", '{"i": 2}')])


@by_marks
def test_a_value_ends_at_the_next_call(name: str, marks: Marks) -> None:
    begun = (marks.call + marks.value).format("f", "s") + "x"
    text = f"{begun}\n{marks.call.format('g')}{marks.values({'i': '2'})}{marks.call_end}"
    assert read_cut_everywhere(name, text) == ("", [("f", '{"s": "x"}'), ("g", '{"i": 2}')])


@by_marks
@pytest.mark.parametrize(("key", "value", "expected"), [("s", "x", '{"s": "x"}'), ("l", "[1,]", '{"l": [1]}')])
def test_a_value_ends_with_the_text(name: str, marks: Marks, key: str, value: str, expected: str) -> None:
    """Whatever there is of the mark that ends it."""
    text = (marks.call + marks.value).format("f", key) + value
    for rest in ("", marks.value_end.rstrip()[:-1], marks.call_end[:-1].split(">")[0]):
        assert read_cut_everywhere(name, text + rest) == ("", [("f", expected)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "<tool_call>\n<function=f\n<parameter=s\nx\n</parameter>\n</function>\n</tool_call>"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=s\nx"),
        ("glm45", "<tool_call>f\n<arg_key>s\n<arg_value>x</arg_value>\n</tool_call>"),
        ("glm47", "<tool_call>f<arg_key>s<arg_value>x</tool_call>"),
        ("minimax-m2", '<minimax:tool_call>\n<invoke name="f"\n<parameter name="s"\nx</parameter>\n</invoke>'),
        ("step3", '<steptml:invoke name="f"\n<steptml:parameter name="s"\nx</steptml:invoke>'),
        ("deepseekv32", '<｜DSML｜invoke name="f"\n<｜DSML｜parameter name="s" string="true"\nx</｜DSML｜invoke>'),
    ],
)
def test_an_opening_mark_may_lack_its_end(name: str, text: str) -> None:
    assert read_cut_everywhere(name, text) == ("", [("f", '{"s": "x"}')])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=s>\nx\n<function=g>\n</function>\n</tool_call>"),
        ("qwen3_coder", "<function=f>\n<parameter=s>\nx\n</parameter>\n</tool_call>\n<function=g>\n</tool_call>"),
        ("minimax-m2", '<invoke name="f">\n<parameter name="s">x\n<invoke name="g">\n</minimax:tool_call>'),
        ("step3", '<steptml:invoke name="f"><steptml:parameter name="s">x<steptml:invoke name="g"><｜tool_call_end｜>'),
        ("deepseekv32", '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s">x\n<｜DSML｜invoke name="g">'),
        ("glm45", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x\n<tool_call>g\n</tool_call>"),
        ("glm47", "<tool_call>f<arg_key>s</arg_key><arg_value>x</arg_value><tool_call>g</tool_call>"),
    ],
)
def test_the_end_of_a_call_may_be_missing(name: str, text: str) -> None:
    assert read_cut_everywhere(name, text) == ("", [("f", '{"s": "x"}'), ("g", "{}")])


def test_the_end_of_a_call_without_arguments_may_be_missing() -> None:
    text = "<tool_call>f\n<tool_call>g\n</tool_call>"
    assert read_cut_everywhere("glm45", text) == ("", [("f", "{}"), ("g", "{}")])


def test_text_after_a_value_is_its_own() -> None:
    """Content comes after the call's end, wherever values end."""
    text = "<tool_call>\n<function=f>\n<parameter=s>\na\n\nb < c\n</function>\n</tool_call>\nDone."
    assert read_cut_everywhere("qwen3_coder", text) == ("Done.", [("f", '{"s": "a\\n\\nb < c"}')])


_TAGGED = {
    "qwen25": ("<tool_call>\n", "\n</tool_call>"),
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama3": ("<|python_tag|>", ""),
    "mistral": ("[TOOL_CALLS] [", "]"),
    "granite": ("<|tool_call|>[", "]"),
    "phi4_mini_json": ("functools[", "]"),
    "hunyuan": ("<tool_calls>[", "]</tool_calls>"),
    "internlm": ("<|action_start|><|plugin|>\n", "<|action_end|>"),
    "cohere_command4": ("<|START_ACTION|>[\n", "\n]<|END_ACTION|>"),
    "json": ("[", "]"),
}


@pytest.mark.parametrize("name", _TAGGED)
@pytest.mark.parametrize("written", ['""', "", '" "', "null", "None", "[ ]", '"{}"'])
def test_arguments_may_be_empty(name: str, written: str) -> None:
    key = "parameters" if name in ("llama3", "internlm", "cohere_command4") else "arguments"
    opening, closing = _TAGGED[name]
    text = f'{opening}{{"name": "f", "{key}": {written}}}{closing}'
    assert read_cut_everywhere(name, text) == ("", [("f", "{}")])


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        ("mistral", "[TOOL_CALLS]f[TOOL_CALLS]g[ARGS]{}", ["f", "g"]),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]abcdefghi[TOOL_CALLS]g[ARGS]{}", ["f", "g"]),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_begin|>functions.g:1<|tool_call_end|>", ["f", "g"]),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_calls_section_end|>", ["f"]),
        ("deepseekv31", "<｜tool▁call▁begin｜>f<｜tool▁call▁begin｜>g<｜tool▁calls▁end｜>", ["f", "g"]),
        ("deepseekv3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f<｜tool▁calls▁end｜>", ["f"]),
        ("gpt-oss", "<|channel|>commentary to=functions.f <|constrain|>json<|call|>", ["f"]),
    ],
)
def test_a_call_that_ends_with_its_name(name: str, text: str, calls: list[str]) -> None:
    assert read_cut_everywhere(name, text) == ("", [(call, "{}") for call in calls])


def test_a_call_without_arguments_takes_none_of_the_next_one() -> None:
    text = (
        "<|channel|>commentary to=functions.f <|constrain|>json<|call|>"
        '<|start|>assistant<|channel|>commentary to=functions.g <|message|>{"i": 1}<|call|>'
    )
    assert read_cut_everywhere("gpt-oss", text) == ("", [("f", "{}"), ("g", '{"i": 1}')])


_K2, _K2_MARK = "<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>", "<|tool_call_end|>"
_V3, _V3_END = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n", "\n```<｜tool▁call▁end｜>"
_V31, _V31_END = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_OSS = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"


@pytest.mark.parametrize("written", ['""', "", "null"])
@pytest.mark.parametrize(
    ("name", "opening", "closing"),
    [
        ("mistral", "[TOOL_CALLS]{}[ARGS]", ""),
        ("kimi_k2", _K2, _K2_MARK),
        ("deepseekv3", _V3, _V3_END),
        ("deepseekv31", _V31, _V31_END),
        ("gpt-oss", _OSS, "<|call|>"),
    ],
)
def test_nothing_between_the_marks(name: str, opening: str, closing: str, written: str) -> None:
    """Or at the end of the text; the next call is found."""
    text = f"{opening.format('f')}{written}{closing}{opening.format('g')}{written}"
    for end in ("", closing):
        assert read_cut_everywhere(name, text + end) == ("", [("f", "{}"), ("g", "{}")])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_end|>"),
        ("deepseekv3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f<｜tool▁call▁end｜>"),
        ("deepseekv3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n```<｜tool▁call▁end｜>"),
        ("deepseekv31", "<｜tool▁call▁begin｜>f<｜tool▁call▁end｜>"),
        ("hermes", '<tool_call>{"arguments": "", "name": "f"}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": , "name": "f"}</tool_call>'),
    ],
)
def test_the_mark_before_arguments_may_be_missing_too(name: str, text: str) -> None:
    assert read_cut_everywhere(name, text) == ("", [("f", "{}")])


@pytest.mark.parametrize("written", ['"x"', "[1]", '"[1]"', "3"])
def test_what_is_no_arguments_is_no_call(written: str) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    assert read_cut_everywhere("hermes", text) == (text, [])


def test_arguments_in_a_string_may_be_a_python_literal() -> None:
    text = """<tool_call>{"name": "f", "arguments": "{'i': 1, 's': None}"}</tool_call>"""
    assert read_cut_everywhere("hermes", text) == ("", [("f", '{"i": 1, "s": null}')])


_LISTS = {
    name: _TAGGED[name] for name in ("mistral", "granite", "phi4_mini_json", "hunyuan", "cohere_command4", "json")
}
_PYTHONIC = {"pythonic": ("[", "]"), "lfm2": ("<|tool_call_start|>[", "]<|tool_call_end|>")}


@pytest.mark.parametrize("comma", [",", " ,\n"])
@pytest.mark.parametrize(("name", "ends"), (_LISTS | _PYTHONIC).items(), ids=[*_LISTS, *_PYTHONIC])
def test_a_comma_after_the_last_call_is_not_content(name: str, ends: tuple[str, str], comma: str) -> None:
    calls = ["f(i=1)", "g()"] if name in _PYTHONIC else ['{"name": "f", "arguments": {"i": 1}}', '{"name": "g"}']
    opening, closing = ends
    expected = [("f", '{"i": 1}'), ("g", "{}")]
    assert read_cut_everywhere(name, f"{opening}{', '.join(calls)}{comma}{closing}") == ("", expected)
    assert read(FORMATS[name], [opening + ", ".join(calls) + comma], FUNCTIONS) == ("", expected)  # cut off
    noise = f"{opening}{calls[0]}{comma}oops{closing}"
    assert read_cut_everywhere(name, noise) == (f"{comma.lstrip()}oops{closing}", [("f", '{"i": 1}')])


def test_a_semicolon_after_the_last_call_is_not_content() -> None:
    text = '{"name": "f", "parameters": {}}'
    assert read_cut_everywhere("llama3", text + ";\n") == ("", [("f", "{}")])
    assert read_cut_everywhere("llama3", text + "; x") == ("; x", [("f", "{}")])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("<|START_RESPONSE|>Hello.<|END_RESPONSE|>", "Hello.", []),
        ("Well,\n<|START_RESPONSE|>\nHello.<|END_RESPONSE|>", "Well,\n\nHello.", []),
        ('<|START_ACTION|>[{"tool_name": "f"}]<|END_ACTION|><|START_RESPONSE|>Done.', "Done.", [("f", "{}")]),
        ('<|START_RESPONSE|>I look.<|END_RESPONSE|><|START_ACTION|>[{"tool_name": "f"}]', "I look.", [("f", "{}")]),
        ("<|START_RESPONSE|><|START_RESPONSE|>a<|END_RESPONSE", "a<|END_RESPONSE", []),
    ],
)
def test_marks_around_an_answer_of_command_are_not_content(
    text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert read_cut_everywhere("cohere_command4", text) == (content, calls)
