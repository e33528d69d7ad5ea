"""ToolPlan: which tools a request offers, what is wrong with others, and the grammars that calls are held to."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from palladio.http.prompts.tools import ToolPlan
from palladio.http.tool_calls.formats import FORMATS
from palladio.http.tool_calls.json_formats import MISTRAL_COMPACT
from palladio.http.tool_calls.reading.base import Function
from palladio.http.tool_calls.tool_format import ToolFormat
from palladio.http.wire.protocol_chat import ToolFields
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from tests.http.prompts.tool_model import SCHEMAS, STRICT, TOOLS, Model, tool
from tests.http.tool_calls.tool_texts import NEWEST, SAMPLES, WEATHER, Sample, read

COMPACT = Sample('[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}', {"city": "Paris"})
ALL_FORMATS = {**{name: (form, SAMPLES[name]) for name, form in FORMATS.items()}, "compact": (MISTRAL_COMPACT, COMPACT)}
FREE = {name: pair for name, pair in ALL_FORMATS.items() if pair[0].reads_free_text}
ANSWER = Grammar("json_schema", '{"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"]}')


def rows(formats: dict[str, tuple[ToolFormat, Sample]]) -> list[Any]:
    """Each format with its marks as special tokens, as added ones and as text."""
    found = []
    for name, (form, sample) in formats.items():
        for marks_are in ("special", "added", "text"):
            is_slow = name in NEWEST and marks_are != "special"
            marks = [pytest.mark.slow] if is_slow else []
            found.append(pytest.param(form, sample, marks_are, id=f"{name}-{marks_are}", marks=marks))
    return found


by_format = pytest.mark.parametrize(("form", "sample", "marks_are"), rows(ALL_FORMATS))
by_free_format = pytest.mark.parametrize(("form", "sample", "marks_are"), rows(FREE))


def new_model(tmp_path: Path, form: ToolFormat, marks_are: str) -> Model:
    marks = () if marks_are == "text" else form.syntax.marks
    return Model(tmp_path / "model", marks, special=marks_are == "special")


@by_format
def test_required(tmp_path: Path, form: ToolFormat, sample: Sample, marks_are: str) -> None:
    model = new_model(tmp_path, form, marks_are)
    plan = ToolPlan.of(ToolFields(tools=TOOLS, tool_choice="required"), form, model.tokenizer)
    assert plan.grammar is not None
    assert plan.grammar_with(None) == plan.grammar
    assert model.allowed(plan.grammar, sample.text) == (sample.text, True)
    for wrong in ("Hello", sample.text.replace("get_weather", "get_whether"), sample.text.replace("city", "town")):
        taken, _ = model.allowed(plan.grammar, wrong)
        assert taken != wrong
    assert model.allowed(plan.grammar, "")[1] is False
    assert plan.grammar_with(ANSWER) == plan.grammar, "the format is that of text, and there is none"


@by_format
def test_one_name(tmp_path: Path, form: ToolFormat, sample: Sample, marks_are: str) -> None:
    model = new_model(tmp_path, form, marks_are)
    choice = {"type": "function", "function": {"name": "now"}}
    plan = ToolPlan.of(ToolFields(tools=TOOLS, tool_choice=choice), form, model.tokenizer)
    assert plan.grammar is not None
    taken, _ = model.allowed(plan.grammar, sample.text)
    assert "get_weather" not in taken
    text = model.walk(plan.grammar, 0)
    assert text is not None
    parser = plan.new_parser()
    calls = (*parser.feed(text).calls, *parser.finish().calls)
    assert [delta.name for delta in calls if delta.name] == ["now"]
    assert json.loads("".join(delta.arguments for delta in calls)) == {}


@by_format
def test_what_the_grammar_allows_is_read_and_fits_the_schema(
    tmp_path: Path, form: ToolFormat, sample: Sample, marks_are: str
) -> None:
    model = new_model(tmp_path, form, marks_are)
    tools = [tool(name, schema) for name, schema in SCHEMAS.items()]
    plan = ToolPlan.of(ToolFields(tools=tools, tool_choice="required"), form, model.tokenizer)
    assert plan.grammar is not None
    functions = {name: Function(name, schema) for name, schema in SCHEMAS.items()}
    num_ended = 0
    for seed in range(6):
        text = model.walk(plan.grammar, seed)
        if text is None:
            continue
        num_ended += 1
        content, calls = read(form, [text], functions)
        assert (content, len(calls) >= 1) == ("", True), text
        for name, arguments in calls:
            closed = SCHEMAS[name] | {"additionalProperties": False}
            jsonschema.validate(json.loads(arguments), closed)
    assert num_ended


@by_free_format
def test_strict(tmp_path: Path, form: ToolFormat, sample: Sample, marks_are: str) -> None:
    """Text is free, until a call begins."""
    model = new_model(tmp_path, form, marks_are)
    plan = ToolPlan.of(ToolFields(tools=STRICT), form, model.tokenizer)
    assert plan.grammar is not None
    place = form.syntax.answer  # where text may be
    before = "" if place else "Look {here}, [this] <b>\n"
    for good in (before + sample.text, place + "just { text [", place):
        assert model.allowed(plan.grammar, good) == (good, True)
    wrong = before + sample.text.replace("city", "town")
    assert model.allowed(plan.grammar, wrong)[0] != wrong


@pytest.mark.parametrize(("form", "sample"), FREE.values(), ids=list(FREE))
def test_functions_that_are_not_strict_take_anything(tmp_path: Path, form: ToolFormat, sample: Sample) -> None:
    model = new_model(tmp_path, form, "special")
    tools = [tool("get_weather", WEATHER), tool("now", strict=True)]
    plan = ToolPlan.of(ToolFields(tools=tools), form, model.tokenizer)
    assert plan.grammar is not None
    other = sample.text.replace("city", "town")
    taken, ends = model.allowed(plan.grammar, other)
    assert "town" in taken
    assert (taken, ends) == (other, True) or form.syntax.arguments is not FORMATS["qwen25"].syntax.arguments


@by_free_format
def test_tools_beside_a_response_format(tmp_path: Path, form: ToolFormat, sample: Sample, marks_are: str) -> None:
    model = new_model(tmp_path, form, marks_are)
    plan = ToolPlan.of(ToolFields(tools=TOOLS), form, model.tokenizer)
    assert plan.grammar_with(None) is None
    if form.name in ("llama3", "pythonic"):
        with pytest.raises(InvalidRequestError, match="JSON is how this model writes calls"):
            plan.grammar_with(ANSWER)
        return
    grammar = plan.grammar_with(ANSWER)
    assert grammar is not None
    for good in (sample.text, form.syntax.answer + '{"z": 1}'):
        assert model.allowed(grammar, good) == (good, True)
    assert model.allowed(grammar, form.syntax.answer + "Hello")[0] == form.syntax.answer
    with pytest.raises(InvalidRequestError, match="guided_regex does not go together"):
        plan.grammar_with(Grammar("regex", "a+"), "guided_regex")


def test_an_answer_without_tools_keeps_its_grammar(tmp_path: Path) -> None:
    model = Model(tmp_path, ())
    for body in (ToolFields(), ToolFields(tools=TOOLS, tool_choice="none"), ToolFields(tools=[], tool_choice="auto")):
        plan = ToolPlan.of(body, FORMATS["qwen25"], model.tokenizer)
        assert (plan.template_tools, plan.grammar, plan.reads_calls) == (None, None, False)
        assert plan.grammar_with(ANSWER) is ANSWER
    unrecognised = ToolPlan.of(ToolFields(tools=STRICT), FORMATS["json"], model.tokenizer)
    assert unrecognised.template_tools is not None
    assert (unrecognised.grammar, unrecognised.reads_calls) == (None, False)


def test_special_tokens_that_the_parser_sees(tmp_path: Path) -> None:
    form = FORMATS["mistral"]
    special, plain = Model(tmp_path / "a", form.special), Model(tmp_path / "b", form.special, special=False)
    seen = ToolPlan.of(ToolFields(tools=TOOLS), form, special.tokenizer).visible_special_ids
    assert seen == tuple(special.fast.token_to_id(mark) for mark in form.special)
    assert ToolPlan.of(ToolFields(tools=TOOLS), form, plain.tokenizer).visible_special_ids == ()


def test_what_templates_get(tmp_path: Path) -> None:
    tools = [
        tool("a", None, strict=None, description=None),
        tool("b", {"type": "object", "properties": {}, "required": None}, description="B", strict=True, note="n"),
    ]
    plan = ToolPlan.of(ToolFields(tools=tools), FORMATS["qwen25"], Model(tmp_path, ()).tokenizer)
    empty = {"type": "object", "properties": {}}
    assert plan.template_tools == (
        {"type": "function", "function": {"name": "a", "description": "", "parameters": empty}},
        {"type": "function", "function": {"name": "b", "description": "B", "parameters": empty, "note": "n"}},
    )


def test_allowed_tools_and_the_older_fields(tmp_path: Path) -> None:
    model, form = Model(tmp_path, ()), FORMATS["qwen25"]
    named = {"type": "function", "function": {"name": "now"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    plan = ToolPlan.of(ToolFields(tools=TOOLS, tool_choice=allowed), form, model.tokenizer)
    assert plan.template_tools is not None
    assert len(plan.template_tools) == 2
    assert plan.grammar is not None
    assert "get_weather" not in plan.grammar.text
    functions = [entry["function"] for entry in TOOLS]
    plan = ToolPlan.of(ToolFields(functions=functions, function_call={"name": "now"}), form, model.tokenizer)
    assert plan.grammar is not None
    assert "get_weather" not in plan.grammar.text
    assert ToolPlan.of(ToolFields(functions=functions), form, model.tokenizer).reads_calls
    assert not ToolPlan.of(ToolFields(functions=functions, function_call="none"), form, model.tokenizer).reads_calls


@pytest.mark.parametrize("parallel", [True, False])
def test_parallel_tool_calls(tmp_path: Path, parallel: bool) -> None:
    model = Model(tmp_path, ())
    text = SAMPLES["qwen25"].text
    body = ToolFields(tools=TOOLS, tool_choice="required", parallel_tool_calls=parallel)
    plan = ToolPlan.of(body, FORMATS["qwen25"], model.tokenizer)
    assert plan.grammar is not None
    assert (model.allowed(plan.grammar, text) == (text, True)) == parallel
    parser = plan.new_parser()
    names = [delta.name for delta in (*parser.feed(text).calls, *parser.finish().calls) if delta.name]
    assert names == ["get_weather", "now"][: 2 if parallel else 1]


def test_many_tools_are_compiled_soon(tmp_path: Path) -> None:
    model = Model(tmp_path, ("<tool_call>", "</tool_call>"))
    tools = [tool(f"function_{i}", SCHEMAS["plan_trip"], strict=True) for i in range(64)]
    for choice in ("required", "auto"):
        plan = ToolPlan.of(ToolFields(tools=tools, tool_choice=choice), FORMATS["qwen25"], model.tokenizer)
        assert plan.grammar is not None
        text = '<tool_call>\n{"name": "function_63", "arguments": {"to": "Rome", "days": 3}}\n</tool_call>'
        assert model.allowed(plan.grammar, text) == (text, True)
