"""The parsers of tool calls: exact formats, any cutting of the text, texts that break off, texts that are no calls."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palladio.http.tool_calls.detection import choose_format
from palladio.http.tool_calls.formats import FORMATS
from palladio.http.tool_calls.reading.base import Function
from palladio.http.tool_calls.reading.json_text import MAX_DEPTH
from palladio.http.tool_calls.reading.typed_values import to_json, types_of
from palladio.http.tool_calls.registry import ALIASES, find_format
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.http.tool_calls.tool_texts import FUNCTIONS, LIKE_OLDER, SAMPLES, Sample, read
from tests.properties import examples
from tests.tiny_tokenizer import build_tiny_tokenizer


def cut(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(bounds)]


TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)

by_family = pytest.mark.parametrize(("name", "sample"), SAMPLES.items(), ids=list(SAMPLES))
by_form = pytest.mark.parametrize(
    ("name", "sample"),
    [
        pytest.param(name, sample, id=name, marks=[pytest.mark.slow] if name in LIKE_OLDER else [])
        for name, sample in SAMPLES.items()
    ],
)


def test_every_format_has_a_sample() -> None:
    assert set(SAMPLES) == set(FORMATS)


@by_family
def test_exact_format(name: str, sample: Sample) -> None:
    content, calls = read(FORMATS[name], [sample.before + sample.text + sample.after])
    assert content == sample.before.rstrip() + sample.after.lstrip()
    assert [call for call, _ in calls] == list(sample.names)
    assert json.loads(calls[0][1]) == sample.arguments
    assert all(arguments == "{}" for _, arguments in calls[1:])


@by_form
@given(places=st.lists(st.integers(0, 1 << 16), max_size=40))
@examples(15)
def test_any_cutting_of_a_call(name: str, sample: Sample, places: list[int]) -> None:
    text = sample.before + sample.text + sample.after
    whole = read(FORMATS[name], [text])
    assert read(FORMATS[name], cut(text, places)) == whole
    assert read(FORMATS[name], list(text)) == whole


@by_form
@given(data=st.data())
@examples(40)
def test_any_cutting_of_any_text(name: str, sample: Sample, data: st.DataObject) -> None:
    """Shuffled pieces of the format: mostly no calls. Nothing raises, arguments are objects, names are known."""
    parts = [part for part in re.split(r"(<[^>]*>|[\[\]{}(),:;\"\n ]|get_weather|now)", sample.text) if part]
    order = data.draw(st.lists(st.sampled_from([*parts, "\\", "\\u12", "\\ud83d", "\x01", "ü🎉", "'"]), max_size=40))
    text = "".join(order)
    whole = read(FORMATS[name], [text])
    places = data.draw(st.lists(st.integers(0, 1 << 16), max_size=20))
    assert read(FORMATS[name], cut(text, places)) == whole
    assert read(FORMATS[name], list(text)) == whole
    for function, arguments in whole[1]:
        assert function in FUNCTIONS
        assert isinstance(json.loads(arguments), dict)


@by_form
def test_text_that_breaks_off(name: str, sample: Sample) -> None:
    """The arguments are valid at every length, and only grow; a call that has not begun is content."""
    text = sample.before + sample.text
    full = read(FORMATS[name], [text])[1]
    seen: set[int] = set()
    for length in range(len(text)):
        content, calls = read(FORMATS[name], [text[:length]])
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)
        assert [call for call, _ in calls] == [call for call, _ in full][: len(calls)]
        if not calls:
            begun, mark = text[:length], sample.dropped
            assert content == (begun.rstrip().removesuffix(mark) if mark and begun.rstrip().endswith(mark) else begun)
        seen.add(len(calls))
    assert 0 in seen


@by_family
@given(text=st.text(alphabet=st.characters(exclude_characters="<[{f", exclude_categories=["Cs"])))
@examples(15)
def test_plain_text_stays_as_it_is(name: str, sample: Sample, text: str) -> None:
    assert read(FORMATS[name], list(text)) == (text, [])


@by_family
def test_unknown_functions_are_content(name: str, sample: Sample) -> None:
    text = "Well: " + sample.text.replace("get_weather", "get_whether").replace("now", "then")
    assert read(FORMATS[name], [text]) == (text, [])


@by_family
def test_one_call_only(name: str, sample: Sample) -> None:
    content, calls = read(FORMATS[name], [sample.text], parallel=False)
    assert content == ""
    assert [call for call, _ in calls] == ["get_weather"]
    assert json.loads(calls[0][1]) == sample.arguments


@by_family
def test_arguments_come_as_they_are_written(name: str, sample: Sample) -> None:
    """The name is out before the arguments end, and the string before its own end."""
    form = FORMATS[name]
    parser = form.new_parser(FUNCTIONS)
    begun = sample.text.index("Paris" if "Paris" in sample.text else "Zürich") + 4
    deltas = [delta for character in sample.text[:begun] for delta in parser.feed(character).calls]
    assert [delta.name for delta in deltas if delta.name] == ["get_weather"]
    streams = form.name not in ("pythonic", "lfm2", "olmo3")  # whose values are converted when they are whole
    assert ("city" in "".join(delta.arguments for delta in deltas)) == streams


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("qwen25", '<tool_call>{"name": "now"}</tool_call>', "", [("now", "{}")]),
        ("qwen25", '<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>', "", [("now", '{"a": 1}')]),
        ("qwen25", '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("now", '{"a": 1}')]),
        ("qwen25", '<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [("now", "{}")]),
        ("qwen25", '<tool_call>{"function": {"name": "now", "arguments": {}}}</tool_call>x', "x", [("now", "{}")]),
        ("qwen25", '<tool_call>{"type": "function", "function": "now"}</tool_call>', "", [("now", "{}")]),
        ("qwen25", '<tool_call>[{"name": "now"}, {"name": "now"}]</tool_call>', "", [("now", "{}"), ("now", "{}")]),
        ("qwen25", '<tool_call>{"name": "now", "arguments": {}} and on', "and on", [("now", "{}")]),
        ("qwen25", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>', None, []),
        ("qwen25", "<tool_call>{'name': 'now'}</tool_call>", None, []),
        ("qwen25", '<tool_call>{"arguments": {}}</tool_call>', None, []),
        ("qwen25", '<tool_call>{"name": 3}</tool_call>', None, []),
        ("qwen25", "a < b <tool", None, []),
        # what models get wrong often is put right
        ("qwen25", '<tool_call>{"name": "now", "arguments": {"a": True, "b": None,}}</tool_call>', "",
         [("now", '{"a": true, "b": null}')]),
        ("qwen25", '<tool_call>{"name": "now", "arguments": {"a": "x\ny\\d"}}</tool_call>', "",
         [("now", '{"a": "x\\ny\\\\d"}')]),
        # what cannot be: it ends where it is broken, and the rest is seen
        ("qwen25", '<tool_call>{"name": "now", "arguments": {"a": 1, "b": oops}}</tool_call>', "}}</tool_call>",
         [("now", '{"a": 1}')]),
        ("llama3", '<|python_tag|>{"name": "now", "parameters": {}}', "", [("now", "{}")]),
        ("llama3", 'Sure: {"name": "now", "parameters": {}}', "Sure:", [("now", "{}")]),
        ("llama3", '{"name": "Bob", "age": 3}', None, []),
        ("llama3", 'if (x) { return {"a": 1}; }', None, []),
        ("llama3", '<|python_tag|>print("x")', None, []),
        ("mistral", '[TOOL_CALLS]now[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}', "", [("now", '{"a": 1}'), ("now", "{}")]),
        ("mistral", '[TOOL_CALLS]now{"a": 1}', "", [("now", '{"a": 1}')]),
        ("pythonic", "<|python_start|>[now(), now()]<|python_end|>", "", [("now", "{}"), ("now", "{}")]),
        ("pythonic", "see [1] and [now] and arr[now(x)", "see [1] and [now] and arr", [("now", "{}")]),
        ("pythonic", "[get_weather('Paris', 3)]", "", [("get_weather", '{"city": "Paris", "days": 3}')]),
        ("pythonic", "[now(a='it''s', b=\"\"\"x\"y\"\"\", c=(1, 2.5), d={'k': None}, e=true, f=word)]", "",
         [("now", '{"a": "its", "b": "x\\"y", "c": [1, 2.5], "d": {"k": null}, "e": true, "f": "word"}')]),
        ("pythonic", "[now(a=-1, b='\\ud800')]", "", [("now", '{"a": -1, "b": "\ufffd"}')]),
        ("deepseekv3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n{}<｜tool▁call▁end｜>", "", [("now", "{}")]),
        ("kimi_k2", "<|tool_call_begin|>now:3<|tool_call_argument_begin|>{}<|tool_call_end|>", "", [("now", "{}")]),
        ("gpt-oss", "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>", "",
         [("now", "{}")]),
        ("gpt-oss", "<|channel|>final<|message|>Hello<|return|>", None, []),
        ("glm45", "<tool_call>get_weather<arg_key>days</arg_key><arg_value>three</arg_value></tool_call>", "",
         [("get_weather", '{"days": "three"}')]),
        ("qwen3_coder", "<function=get_weather>\n<parameter=hourly>\nTrue\n</parameter>\n</function>\n</tool_call>", "",
         [("get_weather", '{"hourly": true}')]),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", "",
         [("get_weather", '{"city": "Par"}')]),
        ("deepseekv32", '<｜DSML｜invoke name="now"><｜DSML｜parameter name="a" string="false">[1]</｜DSML｜parameter>'
         "</｜DSML｜invoke>", "", [("now", '{"a": [1]}')]),
        ("deepseekv32", '<｜DSML｜invoke name="get_weather"><｜DSML｜parameter name="days" string="false">0x10'
         "</｜DSML｜parameter></｜DSML｜invoke>", "", [("get_weather", '{"days": 16}')]),
        ("json", '{"name": "now", "arguments": {}}', "", [("now", "{}")]),
    ],
)  # fmt: skip
def test_variations(name: str, text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    """Content None: the whole text."""
    expected = (text if content is None else content, calls)
    assert read(find_format(name), [text]) == expected
    assert read(find_format(name), list(text)) == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(value=st.dictionaries(TEXTS, VALUES, max_size=4), escaped=st.booleans(), indent=st.sampled_from([None, 2]))
@examples(100)
def test_json_arguments_stay_as_they_are(value: dict[str, Any], escaped: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=indent)
    call = f'<tool_call>{{"name": "now", "arguments": {text}}}</tool_call>'
    assert read(FORMATS["qwen25"], list(call)) == ("", [("now", text)])


@given(value=VALUES)
@examples(100)
def test_python_literals(value: Any) -> None:
    content, calls = read(FORMATS["pythonic"], list(f"[now(a={value!r}, b={value!r})]"))
    assert (content, [name for name, _ in calls]) == ("", ["now"])
    assert json.loads(calls[0][1]) == {"a": value, "b": value}


@given(value=TEXTS)
@examples(50)
def test_plain_strings(value: str) -> None:
    coder = f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert [json.loads(text) for _, text in read(FORMATS["qwen3_coder"], list(coder))[1]] == [{"city": value}]


def test_ids() -> None:
    def ids(name: str) -> list[str]:
        parser = FORMATS[name].new_parser(FUNCTIONS)
        deltas = (*parser.feed(SAMPLES[name].text).calls, *parser.finish().calls)
        return [delta.id for delta in deltas if delta.id is not None]

    made = ids("qwen25") + ids("qwen25")
    assert len(set(made)) == 4
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", made_id) for made_id in made)
    assert ids("kimi_k2") == ["functions.get_weather:0", "functions.now:1"]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", made_id) for made_id in ids("mistral"))
    parser = FORMATS["mistral"].new_parser(FUNCTIONS)
    (first, _) = parser.feed("[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}").calls
    assert first.id == "abc123def"


def test_deep_nesting_ends_the_arguments() -> None:
    text = '<tool_call>{"name": "now", "arguments": {"a": ' + "[" * 5000
    (call,) = read(FORMATS["qwen25"], [text])[1]
    assert call[1].count("[") == call[1].count("]") == MAX_DEPTH - 1
    text = "[now(a=" + "[" * 5000
    assert read(FORMATS["pythonic"], [text])[1] == [("now", "{}")]


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ("3", {"type": "string"}, '"3"'),
        ("3", {"type": "integer"}, "3"),
        ("3", {}, "3"),
        ("3.0", {"type": "integer"}, "3"),
        ("3", {"type": "number"}, "3"),
        ("12345678901234567890123", {"type": "integer"}, "12345678901234567890123"),
        ("true", {"type": "string"}, '"true"'),
        ("TRUE", {"type": "boolean"}, "true"),
        ("null", {"type": ["string", "null"]}, "null"),
        ("null", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null"),
        ("x", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, '"x"'),
        ("[1]", {"type": "array"}, "[1]"),
        ("[1]", {"type": "string"}, '"[1]"'),
        ('"[1]"', {"type": "array"}, "[1]"),
        ('"a"', {}, '"a"'),
        ("2", {"enum": ["1", "2"]}, '"2"'),
        ("2", {"$ref": "#/$defs/n"}, "2"),
        ("two", {"$ref": "#/$defs/n"}, '"two"'),
        ("2", {"$ref": "#/$defs/loop"}, "2"),
    ],
)
def test_types_of_plain_values(text: str, schema: dict[str, Any], expected: str) -> None:
    root = {"$defs": {"n": {"const": 1}, "loop": {"$ref": "#/$defs/loop"}}}
    assert to_json(text, types_of(schema, root)) == expected


def test_names() -> None:
    assert find_format("qwen") is FORMATS["qwen25"]
    assert find_format("llama4_pythonic") is FORMATS["pythonic"]
    assert set(ALIASES.values()) <= set(FORMATS)
    assert not set(ALIASES) & set(FORMATS)
    with pytest.raises(ConfigError, match="--tool-call-parser beam: no package has a chat template"):
        find_format("beam")
    with pytest.raises(ConfigError, match=r"--tool-call-parser hermez: .*did you mean hermes\?.*glm45"):
        find_format("hermez")


@pytest.mark.parametrize(
    ("template", "model_type", "found"),
    [
        ("{{ '<tool_call>' }}", "llama", "qwen25"),
        ('{{ "<tool_call>\\n{\\"name\\": " }}', "llama", "qwen25"),
        ("<tool_call>\n<function=…>\n<parameter=…>", "qwen3_moe", "qwen3_coder"),
        ("<tool_call>{{ name }}<arg_key><arg_value>", "glm4_moe", "glm45"),
        ("<｜tool▁calls▁begin｜> ```json", "llama", "deepseekv3"),
        ("<｜tool▁calls▁begin｜>", "deepseek_v3", "deepseekv31"),
        ("<|channel|>commentary", "gpt_oss", "gpt-oss"),
        ("<|tool_calls_section_begin|>", "deepseek_v3", "kimi_k2"),
        ("[TOOL_CALLS]", "mistral", "mistral"),
        ("<seed:tool_call>\n<function=…>\n<parameter=…>", "seed_oss", "seed_oss"),
        ("{{ '<|tool_call>call:' + name }}<|\"|>", "gemma4", "gemma4"),
        ("<start_function_call>call:", "gemma3", "functiongemma"),
        ("<｜DSML｜tool_calls>", "deepseek_v4", "deepseekv4"),
        ("<｜DSML｜ calls>", "deepseek_v4", "deepseekv41"),
        ("<｜DSML｜function_calls>", "deepseek_v32", "deepseekv32"),
        ("<｜GCML｜tool_calls>", "gigachat", "gigachat35"),
        ("'function call' <|role_sep|>", "gigachat", "gigachat3"),
        ("<function_calls>", "olmo3", "olmo3"),
        ("<tool_calls:x><tool_sep:x><arg_key:x>", "hy_v3", "hy_v3"),
        ("<tool_calls><arg_key><arg_value>", "hy_v4", "hy_v4"),
        ("<tool_calls>", "hunyuan_v1_moe", "hunyuan"),
        ("'<|open|>' '<|close|>' '<|sep|>'", "kimi_k3", "kimi_k3"),
        ("]<]minimax[>[<tool_call>", "minimax_m3", "minimax-m3"),
        ('<function name="f"><param name="a">', "minicpm", "minicpm5"),
        ("<dots_function_call>", "dots", "dots"),
        ("<atem:function_calls>", "muse", "muse"),
        ("<ifm|tool_call>", "k2", "k2_horizon"),
        ("<iquest_tool_call>", "iquest", "iquest_q1"),
        ("<longcat_tool_call>", "longcat", "longcat"),
        ("<|tools_prefix|>", "apertus", "apertus2509"),
        ("<|content_invoke_tool_json|>", "inkling", "inkling"),
        ("<|plamo:begin_tool_request:plamo|>", "plamo3", "plamo3"),
        ("<tool_call> <response>", "ernie4_5", "ernie45"),
        ("<function_call> {", "gpt_bigcode", "granite-20b-fc"),
        ("xLAM: a JSON array with arguments", "qwen2", "xlam"),
        ("{{ messages }}", "qwen2", "qwen25"),
        (None, "gpt_oss", "gpt-oss"),
        (None, "granite", "granite"),
        (None, "smollm3", "qwen25"),
        (None, "cohere2", "cohere_command4"),
        ("{{ messages }}", "gpt2", "json"),
    ],
)
def test_detection(tmp_path_factory: pytest.TempPathFactory, template: str, model_type: str, found: str) -> None:
    tokenizer = Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.getbasetemp() / "detection"))
    assert choose_format("auto", template=template, model_type=model_type, tokenizer=tokenizer).name == found
    assert choose_format("llama3", template=template, model_type=model_type, tokenizer=tokenizer).name == "llama3"


def test_functions_with_odd_schemas() -> None:
    functions = {"f": Function("f", {"properties": {"a": True, "b": {"type": ["integer", None]}}, "type": "object"})}
    pairs = (("a", "x"), ("b", "2"))
    text = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in pairs)
    assert read(FORMATS["glm45"], [f"<tool_call>f{text}</tool_call>"], functions) == ("", [("f", '{"a": "x", "b": 2}')])
