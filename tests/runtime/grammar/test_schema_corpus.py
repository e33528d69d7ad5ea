"""Schemas of real clients: each compiles, takes its instances, and no others that would be read wrongly."""

import contextlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from palladio.runtime.grammar.backend import JsonFormat
from palladio.runtime.grammar.compiler import json_format_of
from palladio.runtime.grammar.llguidance_backend import LlguidanceBackend
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.text.schemas.schema_rewriting import UnsupportedSchemaError, rewritten
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.cpu_time import least_cpu_seconds
from tests.runtime.grammar.schema_corpus import CORPUS, Case
from tests.runtime.grammar.test_llguidance_backend import make, takes


@pytest.fixture(scope="module")
def tokenizer(tiny_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_dir)


@pytest.fixture(scope="module")
def backend(tiny_dir: Path) -> LlguidanceBackend:
    return make(tiny_dir)


@pytest.fixture(scope="module")
def standard(tiny_dir: Path) -> LlguidanceBackend:
    return make(tiny_dir, JsonFormat(closes_objects=False))


def fits(backend: LlguidanceBackend, tokenizer: Tokenizer, schema: Any, value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    return takes(backend, tokenizer, Grammar("json_schema", json.dumps(schema)), text)


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_the_corpus(backend: LlguidanceBackend, standard: LlguidanceBackend, tokenizer: Tokenizer, case: Case) -> None:
    for value in case.good:
        jsonschema.validate(value, case.schema)
        assert fits(backend, tokenizer, case.schema, value), value
        assert fits(standard, tokenizer, case.schema, value), value
    for value in case.bad:
        assert not fits(backend, tokenizer, case.schema, value), value


CITY = {"type": "object", "properties": {"name": {"type": "string"}}}
OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    "schema",
    [
        CITY,
        {"type": "array", "items": CITY},
        {"$ref": "#/$defs/City", "$defs": {"City": CITY}},
        {"anyOf": [{"$ref": "#/$defs/City"}, {"type": "null"}], "$defs": {"City": CITY}},
        {"type": "object", "additionalProperties": CITY},
        CITY | {"anyOf": [{"required": ["name"]}, {"required": []}]},
    ],
)
def test_objects_are_closed_unless_the_standard_is_asked_for(
    backend: LlguidanceBackend, standard: LlguidanceBackend, tokenizer: Tokenizer, schema: dict[str, Any]
) -> None:
    city: Any = {"name": "x", "more": 1}
    value = [city] if schema.get("type") == "array" else {"a": city} if "additionalProperties" in schema else city
    assert not fits(backend, tokenizer, schema, value)
    assert fits(standard, tokenizer, schema, value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        CITY | {"additionalProperties": True},
        CITY | {"required": ["more"]},
        CITY | {"required": ["name"], "minProperties": 2},
        CITY | {"patternProperties": {"^m": {"type": "integer"}}},
        CITY | {"$ref": "#/$defs/More", "$defs": {"More": {"properties": {"more": {"type": "integer"}}}}},
        CITY | {"allOf": [{"properties": {"more": {"type": "integer"}}, "required": ["more"]}]},
        {"allOf": [CITY, {"properties": {"more": {"type": "integer"}}, "required": ["more"]}]},
        {"anyOf": [CITY, {"type": "null"}]},
        {"$defs": {"City": CITY}, "allOf": [{"$ref": "#/$defs/City"}, {"required": ["more"]}]},
        {"enum": [{"name": "x", "more": 1}], "properties": {"name": {"type": "string"}}},
    ],
)
def test_objects_that_stay_open(backend: LlguidanceBackend, tokenizer: Tokenizer, schema: dict[str, Any]) -> None:
    assert fits(backend, tokenizer, schema, {"name": "x", "more": 1})


def test_structural_tags_are_read_alike(backend: LlguidanceBackend, tokenizer: Tokenizer) -> None:
    tag = {"structures": [{"begin": "<f>", "schema": CITY, "end": "</f>"}], "triggers": ["<f>"]}
    grammar = Grammar("structural_tag", json.dumps(tag))
    assert takes(backend, tokenizer, grammar, '<f>{"name": "x"}</f>')
    assert not takes(backend, tokenizer, grammar, '<f>{"name": "x", "more": 1}</f>')


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"\d+", "12", "٣"),
        (r"\w+", "a_1", "é"),
        (r"[\w.-]+", "a.b-1", "é"),
        (r"[^\d]", "٣", "1"),
        (r"\D\W", "٣é", "1a"),
        (r"[\D]", "٣", "1"),
        (r"(?u)\d+", "٣", "x"),
        (r"(?u)\w", "é", "-"),
        (r"\\d", r"\d", "1"),
        (r"[]\d]", "]", "٣"),
    ],
)
def test_digits_and_letters_are_ascii(
    backend: LlguidanceBackend, tokenizer: Tokenizer, pattern: str, good: str, bad: str
) -> None:
    schema = {"type": "string", "pattern": f"^({pattern})$" if "(?u)" not in pattern else f"(?u)^{pattern[4:]}$"}
    assert takes(backend, tokenizer, Grammar("regex", pattern), good)
    assert not takes(backend, tokenizer, Grammar("regex", pattern), bad)
    assert fits(backend, tokenizer, schema, good)
    assert not fits(backend, tokenizer, schema, bad)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"not": {"const": 5}}, [4, 6, 5.5, "5", True, [5]], [5]),
        ({"type": "number", "not": {"enum": [1, 2.5]}}, [0, 1.5, 2.4, 3], [1, 2.5, "x"]),
        ({"type": ["string", "null"], "not": {"const": None}}, ["", "x"], [None]),
        ({"type": "boolean", "not": {"const": True}}, [False], [True]),
        ({"type": "string", "pattern": "^a+$", "not": {"const": "aa"}}, ["a", "aaa"], ["aa", "b"]),
        ({"type": "string", "not": {"enum": ["é", "a\n", "[a]"]}}, ["a", "è", "a\nb", "[a", '"'], ["é", "a\n", "[a]"]),
        ({"not": {"type": "number"}}, ["1", None], [1, 1.5]),
        ({"uniqueItems": True, "items": {"type": "boolean"}, "type": "array"}, [[], [True, False]], [[True, True]]),
        ({"uniqueItems": True, "type": "array", "maxItems": 1}, [["x"], []], [["x", "y"]]),
        ({"uniqueItems": True, "type": ["array", "null"], "items": {"const": 1}}, [None, [1]], [[1, 1], 1]),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, [0, -(10**18)], [2**63, 1.5]),
        ({"type": "number", "minimum": -3.4e38, "maximum": 3.4e38}, [0, -1.5, 2.5, 10**12], ["x"]),
        ({"type": ["number", "null"], "maximum": 1.7e308}, [None, 7.25], ["x"]),
        ({"type": "object", "propertyNames": {"pattern": "^k\\d$"}}, [{}, {"k1": "x"}], [{"k": 1}, {"kk": 1}]),
        ({"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3}}, [{"kk": 1}], [{"k": 1}, {"kkkk": 1}]),
        (
            {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]},
            [1.5, "1.5", "-.5", "007"],
            ["", "-", "+.", "x"],
        ),
        ({"type": ["string", "null"], "pattern": r"^(?!\s*$).+"}, ["a", " a ", None], ["", "  ", 1]),
        ({"type": "string", "pattern": r"^(?!^[\d]*$)\w*$"}, ["a1", "a"], ["", "12", "-"]),
        (OPEN | {"unevaluatedProperties": False}, [{"a": 1}], [{"a": 1, "b": 1}]),
        (OPEN | {"unevaluatedProperties": True}, [{"a": 1}], [{"a": "x"}]),
        ({"prefixItems": [{"type": "boolean"}], "type": "array", "unevaluatedItems": False}, [[True]], [[True, 1]]),
        ({"type": "object", "propertyNames": {"const": "a"}, "required": ["a"]}, [{"a": 1}], [{}, {"a": 1, "b": 1}]),
        (
            {
                "type": "object",
                "properties": {"a": {}, "b": {}},
                "if": {"required": ["a"]},
                "then": {"required": ["b"]},
            },
            [{}, {"b": 1}, {"a": 1, "b": 1}],
            [{"a": 1}],
        ),
        ({"then": {"required": ["a"]}, "type": "object"}, [{}], [1]),
    ],
)
def test_keywords_in_other_words(
    backend: LlguidanceBackend, tokenizer: Tokenizer, schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        assert fits(backend, tokenizer, schema, value), value
    for value in bad:
        assert not fits(backend, tokenizer, schema, value), value


LETTERS = {"enum": list("abcdef")}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"properties": {"x": {"type": "array", "uniqueItems": True, "items": LETTERS}}},
            "at #/properties/x: uniqueIt.*120",
        ),
        ({"uniqueItems": True, "items": {"type": "string"}}, "at #: uniqueItems is supported for items of an enum"),
        ({"uniqueItems": True, "items": LETTERS, "minItems": 9}, "uniqueItems leaves at most 6 items"),
        ({"uniqueItems": True, "items": {"enum": ["x" * 600, *"abcd"]}}, "takes .* characters, over the limit"),
        ({"items": {"propertyNames": {"format": "uri"}}}, "at #/items: .*propertyNames.* an enum, a const, a pattern"),
        ({"anyOf": [OPEN], "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "string", "pattern": "^(?!a$)b"}, "look-around"),
        ({"type": "string", "pattern": "^(?![ab]*$)c|d"}, "look-around"),
        ({"properties": {"a": {}}, "propertyNames": {"const": "a"}}, "propertyNames.* beside properties"),
        ({"not": {"const": {}}}, '"not" of constants that are objects'),
        ({"type": "string", "not": {"const": 'a"b'}}, "a quotation mark or a backslash"),
        ({"not": {"required": ["x"]}}, '"not" is supported for constants'),
        ({"items": {"not": {"const": "x" * 200}}}, "at #/items: .* 128 characters"),
        (
            {"if": {"properties": {"x": {"type": "integer"}}}, "then": {"required": ["y"]}},
            '"if" is supported for constants',
        ),
        ({"allOf": [{"if": {"required": [name]}, "then": {"required": ["x"]}} for name in "abcdefghi"]}, "more than 8"),
        ({"const": -(2**63)}, "at #/const: an integer below"),
        ({"properties": {"x": {"enum": [1, {"y": [-(2**63) + 1]}]}}}, "at #/properties/x/enum: an integer below"),
    ],
)
def test_what_cannot_be_written_is_named(backend: LlguidanceBackend, schema: dict[str, Any], message: str) -> None:
    """The lowest integers would end the process."""
    with pytest.raises(InvalidRequestError, match=message):
        backend.compile(Grammar("json_schema", json.dumps(schema)))


HOSTILE: dict[str, Any] = {
    "references that multiply": {
        "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 20} for n in range(15)} | {"d15": {"const": 1}},
        "type": "array",
        "uniqueItems": True,
        "items": {"$ref": "#/$defs/d0"},
    },
    "a circle": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/items"}},
    "many values": {"type": "array", "uniqueItems": True, "items": {"enum": list(range(30_000))}},
    "many names": {
        "items": {"items": {"propertyNames": {"enum": [f"{n}" for n in range(900)]}, "additionalProperties": True}},
        "propertyNames": {"enum": [f"{n}" for n in range(9000)]},
        "additionalProperties": {"propertyNames": {"enum": [f"{n}" for n in range(900)]}},
    },
    "many of them": {"prefixItems": [{"uniqueItems": True, "items": {"enum": list("abcde")}} for _ in range(500)]},
    "many joined": {"allOf": [{"$ref": "#/$defs/x"}] * 3000, "$defs": {"x": {"properties": {"a": {"$ref": "#"}}}}},
    "many excluded": {"not": {"enum": [f"{n}" * 20 for n in range(3000)]}},
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_rewriting_takes_little(name: str) -> None:
    """What a short schema becomes is bounded, and so is the time that it takes: the front does it for tools, too."""
    text = ""

    def write() -> None:
        nonlocal text
        with contextlib.suppress(UnsupportedSchemaError):
            text = json.dumps(rewritten(HOSTILE[name], closes_objects=True))

    assert least_cpu_seconds(write) < 0.5
    assert len(text) < 1 << 19


@pytest.mark.parametrize(("reading", "closes"), [(None, True), ("closed", True), ("standard", False)])
def test_the_flag_says_how_schemas_are_read(reading: str | None, closes: bool) -> None:
    flags = {"model_path": "x"} | ({} if reading is None else {"json_additional_properties": reading})
    assert json_format_of(EngineConfig.from_flags(flags)).closes_objects == closes
