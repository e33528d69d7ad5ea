"""Tools, calls and results as plain text, for chat templates that know none of them."""

from pathlib import Path
from typing import Any

import pytest

from palladio.http.prompts.generic_tools import with_calls_as_text, with_tools
from palladio.http.prompts.tools import ToolPlan
from palladio.http.tool_calls.formats import FORMATS
from palladio.http.wire.protocol_chat import ToolFields
from palladio.runtime.interface.config.grammar_config import GrammarConfig
from tests.http.prompts.test_tools import ANSWER
from tests.http.prompts.tool_model import TOOLS, Model, tool
from tests.http.tool_calls.tool_texts import SAMPLES

TEXT = SAMPLES["json"].text
USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
FUNCTIONS = [tool("now", {"type": "object"})]


def plan_of(model: Model, config: GrammarConfig = GrammarConfig(), **fields: Any) -> ToolPlan:
    body = ToolFields(tools=TOOLS, **fields)
    return ToolPlan.of(body, FORMATS["hermes"], model.tokenizer, config, is_written=False)


def test_any_text_or_calls_that_keep_to_their_schemas(tmp_path: Path) -> None:
    model = Model(tmp_path / "model", ())
    plan = plan_of(model)
    assert plan.grammar is not None
    for good in ("Hello [1] {x}", TEXT, f"I look.\n{TEXT}", '[{"name": "John", "age": 3}]'):
        assert model.allowed(plan.grammar, good) == (good, True)
    wrong = TEXT.replace("city", "town")
    assert model.allowed(plan.grammar, wrong)[0] != wrong
    alone = plan_of(model, parallel_tool_calls=False).grammar
    assert alone is not None
    assert model.allowed(alone, TEXT)[0] != TEXT


def test_a_forced_call_is_in_the_models_own_format(tmp_path: Path) -> None:
    model = Model(tmp_path / "model", ())
    plan = plan_of(model, tool_choice="required")
    assert (plan.is_generic, plan.grammar) == (False, plan_of(model, tool_choice="required").grammar)
    assert plan.grammar is not None
    assert model.allowed(plan.grammar, SAMPLES["hermes"].text) == (SAMPLES["hermes"].text, True)


def test_calls_beside_an_answer_in_json(tmp_path: Path) -> None:
    model = Model(tmp_path / "model", ())
    grammar = plan_of(model).grammar_with(ANSWER)
    assert grammar is not None
    for good in (TEXT, '{"z": 1}'):
        assert model.allowed(grammar, good) == (good, True)
    assert model.allowed(grammar, "Hello")[0] == ""


def test_a_schema_that_no_grammar_keeps_to_leaves_the_arguments_free(tmp_path: Path) -> None:
    model = Model(tmp_path / "model", ())
    odd = tool("odd", {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True, "items": {}}}})
    plan = ToolPlan.of(ToolFields(tools=[odd]), FORMATS["json"], model.tokenizer, is_written=False)
    assert plan.grammar is not None
    good = '[{"name": "odd", "arguments": {"y": 1}}]'
    assert model.allowed(plan.grammar, good) == (good, True)


def test_a_server_without_grammars_reads_calls_all_the_same(tmp_path: Path) -> None:
    plan = plan_of(Model(tmp_path / "model", ()), GrammarConfig(grammar_backend="none"))
    assert (plan.grammar, plan.reads_calls, plan.is_generic) == (None, True, True)


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([{"role": "system", "content": "Be brief."}, USER], 0),
        ([USER, ASSISTANT, USER], 0),
        ([ASSISTANT, {"role": "user", "content": [{"type": "text", "text": "hi"}]}], 1),
        ([ASSISTANT], 0),
    ],
)
def test_where_the_tools_stand(messages: list[dict[str, Any]], place: int) -> None:
    told = with_tools(messages, FUNCTIONS)
    named = [number for number, message in enumerate(told) if '"name":"now"' in str(message["content"])]
    assert named == [place]
    others = [message for message in told if message in messages]
    assert others == [message for number, message in enumerate(messages) if number != place or messages == [ASSISTANT]]


def test_results_and_what_the_user_says_next_are_one_message() -> None:
    calls = [{"function": {"name": name, "arguments": {"a": 1}}} for name in ("f", "g")]
    results = [{"role": "tool", "name": name, "content": f"of {name}"} for name in ("f", "g")]
    told, positions = with_calls_as_text(
        [USER, {"role": "assistant", "content": "Wait.", "tool_calls": calls}, *results, USER, ASSISTANT, USER],
        results_too=True,
    )
    assert [message["role"] for message in told] == ["user", "assistant", "user", "assistant", "user"]
    assert positions == [0, 1, 2, 5, 6]
    assert told[1] == {
        "role": "assistant",
        "content": 'Wait.\n\n[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"a": 1}}]',
    }
    assert told[2]["content"] == "Result of f:\nof f\n\nResult of g:\nof g\n\nhi"
    kept, _ = with_calls_as_text([USER, *results, USER], results_too=False)
    assert [message["role"] for message in kept] == ["user", "tool", "tool", "user"]
