"""ToolPlan: schemas of functions and of answers beside them; which are refused, and what their grammars allow."""

import json
from pathlib import Path
from typing import Any

import pytest

from palladio.http.prompts.tools import ToolPlan
from palladio.http.tool_calls.formats import FORMATS
from palladio.http.tool_calls.tool_format import ToolFormat
from palladio.http.wire.protocol_chat import ToolFields
from palladio.runtime.interface.config.grammar_config import GrammarConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from tests.http.prompts.tool_model import TOOLS, Model, tool
from tests.http.tool_calls.tool_texts import WEATHER

LAX = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"type": "integer", "format": "int64"}, "uniqueItems": False},
        "b": {"type": "object", "properties": {"c": {"type": "string", "format": "color"}}},
    },
    "required": ["a", "b"],
}


@pytest.mark.parametrize("form", [FORMATS["qwen25"], FORMATS["qwen3_coder"], FORMATS["pythonic"]])
def test_what_only_annotates_is_no_error(tmp_path: Path, form: ToolFormat) -> None:
    model = Model(tmp_path, ())
    plan = ToolPlan.of(ToolFields(tools=[tool("f", LAX)], tool_choice="required"), form, model.tokenizer)
    assert plan.grammar is not None
    model.backend.compile(plan.grammar)
    beside = ToolPlan.of(ToolFields(tools=[tool("f", LAX)]), FORMATS["qwen25"], model.tokenizer)
    grammar = beside.grammar_with(Grammar("json_schema", json.dumps(LAX)))
    assert grammar is not None
    assert model.allowed(grammar, '{"a": [1], "b": {}}') == ('{"a": [1], "b": {}}', True)


WRONG = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "foo (grammar"}}}}


@pytest.mark.parametrize("form", [FORMATS["qwen25"], FORMATS["qwen3_coder"], FORMATS["pythonic"]])
def test_a_wrong_schema_is_named(tmp_path: Path, form: ToolFormat) -> None:
    model = Model(tmp_path, ())
    tools = [tool("a", WEATHER), tool("b"), tool("c", WRONG)]
    functions = [entry["function"] for entry in tools]
    for body, name in (
        (ToolFields(tools=tools, tool_choice="required"), "tools.2.function.parameters"),
        (ToolFields(functions=functions, function_call={"name": "c"}), "functions.2.parameters"),
    ):
        grammar = ToolPlan.of(body, form, model.tokenizer).grammar
        assert grammar is not None
        with pytest.raises(InvalidRequestError) as caught:
            model.backend.compile(grammar)
        assert caught.value.param == name
        assert str(caught.value).startswith(f"{name} at #/properties/x/items: ")


def test_a_wrong_answer_schema_is_named(tmp_path: Path) -> None:
    model = Model(tmp_path, ())
    plan = ToolPlan.of(ToolFields(tools=TOOLS), FORMATS["qwen25"], model.tokenizer)
    grammar = plan.grammar_with(Grammar("json_schema", json.dumps(WRONG)), "guided_json")
    assert grammar is not None
    with pytest.raises(InvalidRequestError, match="guided_json at #/properties/x/items: ") as caught:
        model.backend.compile(grammar)
    assert caught.value.param == "guided_json"
    anything = plan.grammar_with(Grammar("json_schema", "true"))
    assert anything is not None
    assert model.allowed(anything, "[1]") == ("[1]", True)
    with pytest.raises(InvalidRequestError, match="guided_json is not valid JSON"):
        plan.grammar_with(Grammar("json_schema", "{bad"), "guided_json")


@pytest.mark.parametrize("form", [FORMATS["qwen25"], FORMATS["qwen3_coder"], FORMATS["pythonic"]])
def test_a_schema_that_cannot_be_kept_to_is_named(tmp_path: Path, form: ToolFormat) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True, "items": {}}}}
    model, place = Model(tmp_path, ()), "at #/properties/x: uniqueItems is supported for"
    body = ToolFields(tools=[tool("a", WEATHER), tool("c", schema)], tool_choice="required")
    with pytest.raises(InvalidRequestError, match=f"tools.1.function.parameters {place}") as caught:
        _ = ToolPlan.of(body, form, model.tokenizer).grammar
    assert caught.value.param == "tools.1.function.parameters"
    plan = ToolPlan.of(ToolFields(tools=TOOLS), FORMATS["qwen25"], model.tokenizer)
    with pytest.raises(InvalidRequestError, match=f"guided_json {place}"):
        plan.grammar_with(Grammar("json_schema", json.dumps(schema)), "guided_json")


def test_arguments_are_those_that_are_listed(tmp_path: Path) -> None:
    """In tools and in the answer beside them, unless the server reads schemas as the standard does."""
    model, form = Model(tmp_path, ()), FORMATS["qwen25"]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    for mode, takes_more in (("closed", False), ("standard", True)):
        config = GrammarConfig(json_additional_properties=mode)  # type: ignore[arg-type]
        body = ToolFields(tools=[tool("f", schema)], tool_choice="required")
        forced = ToolPlan.of(body, form, model.tokenizer, config)
        free = ToolPlan.of(ToolFields(tools=[tool("f")]), form, model.tokenizer, config)
        for grammar, text in (
            (forced.grammar, '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'),
            (free.grammar_with(Grammar("json_schema", json.dumps(schema))), "%s"),
        ):
            assert grammar is not None
            assert model.allowed(grammar, text % '{"n": 1}') == (text % '{"n": 1}', True)
            more = text % '{"n": 1, "m": 2}'
            assert (model.allowed(grammar, more) == (more, True)) == takes_more


COMPACT_JSON = {"x-guidance": {"whitespace_flexible": False, "whitespace_pattern": None}}


@pytest.mark.parametrize(
    ("own", "config", "right", "wrong"),
    [
        ({}, GrammarConfig(), '{"n": 1}', '{ "n":  1}'),
        ({}, GrammarConfig(constrained_json_disable_any_whitespace=True), '{"n":1}', '{"n": 1}'),
        ({}, GrammarConfig(constrained_json_whitespace_pattern="[ ]{2}"), '{  "n":  1}', '{"n": 1}'),
        (COMPACT_JSON, GrammarConfig(constrained_json_whitespace_pattern="[ ]{2}"), '{"n":1}', '{"n": 1}'),
    ],
)
def test_white_space(tmp_path: Path, own: dict[str, Any], config: GrammarConfig, right: str, wrong: str) -> None:
    """The schema's own options come first, then the server's."""
    model, form = Model(tmp_path, ()), FORMATS["qwen25"]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]} | own
    forced = ToolPlan.of(ToolFields(tools=[tool("f", schema)], tool_choice="required"), form, model.tokenizer, config)
    free = ToolPlan.of(ToolFields(tools=[tool("f")]), form, model.tokenizer, config)
    for grammar, text in (
        (forced.grammar, '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'),
        (free.grammar_with(Grammar("json_schema", json.dumps(schema))), "%s"),
    ):
        assert grammar is not None
        assert model.allowed(grammar, text % right) == (text % right, True)
        assert model.allowed(grammar, text % wrong)[0] != text % wrong
