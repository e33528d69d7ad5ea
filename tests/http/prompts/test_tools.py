"""ToolPlan: which tools a request offers, what is wrong with others, and the grammars that calls are held to."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from palladio.http.prompts.tools import ToolPlan
from palladio.http.tool_calls.base import Function
from palladio.http.tool_calls.formats import FORMATS, MISTRAL_COMPACT, ToolFormat
from palladio.http.wire.protocol_chat import ToolFields
from palladio.runtime.grammar.backend import BackendSettings
from palladio.runtime.grammar.llguidance_backend import LlguidanceBackend
from palladio.runtime.interface.config import GrammarConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.grammar_spec import Grammar
from palladio.runtime.text.tokenizer import Tokenizer
from tests.http.tool_calls.test_tool_calls import read
from tests.http.tool_calls.tool_texts import SAMPLES, WEATHER, Sample

EOS = "<|eos|>"
COMPACT = Sample('[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}', {"city": "Paris"})
ALL_FORMATS = {**{name: (form, SAMPLES[name]) for name, form in FORMATS.items()}, "compact": (MISTRAL_COMPACT, COMPACT)}
FREE = {name: pair for name, pair in ALL_FORMATS.items() if pair[0].reads_free_text}
ANSWER = Grammar("json_schema", '{"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"]}')


class Model:
    """A tokenizer of bytes, in which `marks` are tokens of their own, and its grammars."""

    def __init__(self, directory: Path, marks: tuple[str, ...], *, special: bool = True) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        self.fast = FastTokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
        self.fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.fast.decoder = decoders.ByteLevel()
        self.fast.add_special_tokens([EOS])
        self.fast.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
        directory.mkdir(exist_ok=True)
        self.fast.save(str(directory / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS}
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        self.tokenizer = Tokenizer.load(directory)
        self.eos_id = self.fast.token_to_id(EOS)
        self.backend = LlguidanceBackend(
            BackendSettings(self.fast.to_str(), self.fast.get_vocab_size(), (self.eos_id,))
        )

    def allowed(self, grammar: Grammar, text: str) -> tuple[str, bool]:
        """How much of the text the grammar takes, and whether the output may end there."""
        matcher = self.backend.compile(grammar).new_matcher().native
        ids = self.fast.encode(text, add_special_tokens=False).ids
        count = matcher.try_consume_tokens(ids)
        return self.fast.decode(ids[:count], skip_special_tokens=False), matcher.is_accepting()

    def walk(self, grammar: Grammar, seed: int) -> str | None:
        """Some text that the grammar allows; None: it found no end."""
        matcher, choose = self.backend.compile(grammar).new_matcher().native, random.Random(seed)
        ids: list[int] = []
        while len(ids) < 600:
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            options = np.flatnonzero(bits).tolist()
            closing = [i for i in options if i == self.eos_id or self.tokenizer.token_text(i) in '"})],']
            token_id = choose.choice(closing if closing and choose.random() < 0.7 else options)
            if token_id == self.eos_id:
                return self.fast.decode(ids, skip_special_tokens=False)
            assert matcher.consume_token(token_id)
            ids.append(token_id)
        return None


@pytest.fixture(params=["special", "added", "text"])
def marks_are(request: pytest.FixtureRequest) -> str:
    return request.param


def tool(name: str, parameters: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


TOOLS = [tool("get_weather", WEATHER), tool("now")]
STRICT = [tool("get_weather", WEATHER, strict=True), tool("now", strict=True)]


def new_model(tmp_path: Path, form: ToolFormat, marks_are: str) -> Model:
    marks = () if marks_are == "text" else form.syntax.marks
    return Model(tmp_path / "model", marks, special=marks_are == "special")


@pytest.mark.parametrize(("form", "sample"), ALL_FORMATS.values(), ids=list(ALL_FORMATS))
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


@pytest.mark.parametrize(("form", "sample"), ALL_FORMATS.values(), ids=list(ALL_FORMATS))
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


SCHEMAS: dict[str, dict[str, Any]] = {
    "plan_trip": {
        "type": "object",
        "properties": {
            "to": {"enum": ["Paris", "Rome", "Ürümqi"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 30},
            "sure": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
            "with": {"anyOf": [{"$ref": "#/$defs/who"}, {"type": "null"}]},
        },
        "required": ["days", "to"],
        "additionalProperties": False,
        "$defs": {"who": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}},
        "title": "PlanTrip",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    },
    "only_optional": {
        "type": "object",
        "properties": {"x": {"type": "boolean"}, "y": {"type": "boolean"}},
        "additionalProperties": False,
    },
    "nothing": {"type": "object"},
}


@pytest.mark.parametrize("form", [form for form, _ in ALL_FORMATS.values()], ids=list(ALL_FORMATS))
def test_what_the_grammar_allows_is_read_and_fits_the_schema(tmp_path: Path, form: ToolFormat, marks_are: str) -> None:
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


@pytest.mark.parametrize(("form", "sample"), FREE.values(), ids=list(FREE))
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


@pytest.mark.parametrize(("form", "sample"), FREE.values(), ids=list(FREE))
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


NOW = {"type": "function", "function": {"name": "now"}}
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
        ToolPlan.of(body, form, model.tokenizer)
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
