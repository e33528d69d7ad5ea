"""What schemas may ask for: multiples of numbers, alone and together, and optional properties."""

import json
from typing import Any

import pytest

from palladio.runtime.grammar.limits import MAX_LEAST_CHARACTERS, MAX_OPTIONAL, check_schema_limits
from palladio.runtime.grammar.schema_multiples import MAX_MULTIPLE, MAX_MULTIPLES
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.text.schemas.least_sizes import LeastSizes


def properties(count: int) -> dict[str, Any]:
    return {f"p{number}": {"type": "integer"} for number in range(count)}


def of(multiple: float) -> dict[str, Any]:
    return {"type": "number", "multipleOf": multiple}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (of(4_999_999), f"at #: multipleOf 4999999 is over the limit of {MAX_MULTIPLE}"),
        (of(1e300), "multipleOf 1e[+]300 is over"),
        (of(0.30000000000000004), "multipleOf 0.30000000000000004 is over"),
        (of(1e-12), "9 decimals"),
        (of(12.0001), "multipleOf 12.0001 is over"),
        ({"properties": {"a/b": {"items": of(10_001)}}}, "at #/properties/a~1b/items: multipleOf"),
        ({"$defs": {"x": of(65_537)}, "$ref": "#/$defs/x"}, r"at #/\$defs/x: multipleOf"),
        ({"somewhere": {"else": of(65_537)}, "$ref": "#/somewhere/else"}, "at #/somewhere/else: multipleOf"),
        ({"allOf": [of(997), of(991)]}, "at #: the least common multiple .* is 988027"),
        ({"multipleOf": 997, "allOf": [{"allOf": [of(991)]}]}, "least common multiple"),
        ({"$defs": {"x": of(997)}, "$ref": "#/$defs/x", "multipleOf": 991}, "least common multiple"),
        ({"multipleOf": 997, "anyOf": [{"type": "integer"}, of(991)]}, "least common multiple"),
        ({"anyOf": [of(97), of(89)], "oneOf": [of(83), of(79)]}, "least common multiple"),
        ({"allOf": [of(0.001), of(977)]}, "least common multiple .* is 977000"),
        (
            {"allOf": [{"properties": {"x": of(997)}}, {"properties": {"x": of(991)}}]},
            "at #/properties/x: the least common multiple",
        ),
        ({"items": {"allOf": [{"items": of(997)}, {"items": of(991)}]}}, "at #/items/items: the least"),
        ({"prefixItems": [of(9000 + i) for i in range(6)]}, f"over the limit of {MAX_MULTIPLES}"),
        (
            {"properties": {"x": {"type": "object", "properties": properties(MAX_OPTIONAL + 1)}}},
            f"at #/properties/x: the object has {MAX_OPTIONAL + 1} optional properties, over the limit of",
        ),
    ],
)
def test_too_much(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        check_schema_limits(schema, "the schema", "response_format")
    assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    "schema",
    [
        of(MAX_MULTIPLE),
        of(0.01),
        of(1e-9),
        of(2.5e3),
        {"properties": {"a": of(997), "b": of(991)}},
        {"anyOf": [of(997), of(991)]},
        {"allOf": [of(12), of(8), of(0.5)]},
        {"allOf": [{"properties": {"x": of(997)}}, {"properties": {"y": of(991)}}]},
        {"const": {"multipleOf": 4_999_999}},
        {"properties": {"multipleOf": {"type": "string"}}},
        {"multipleOf": "for the compiler to refuse"},
        {"allOf": [{"$ref": "#"}, of(3)], "multipleOf": 5},
        {"type": "object", "properties": properties(MAX_OPTIONAL)},
        {"type": "object", "properties": properties(3000), "required": [f"p{number}" for number in range(2000)]},
        True,
        5,
    ],
)
def test_what_may_be_asked_for(schema: Any) -> None:
    check_schema_limits(json.loads(json.dumps(schema)), "the schema", "grammar")


LONG = {"type": "string", "minLength": 1000}
SHARED = {"$defs": {"a": {"type": "array", "minItems": 300, "items": {"$ref": "#/$defs/b"}}, "b": LONG}}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "string", "minLength": 10**9}, "#"),
        ({"minLength": 10**9, "maxLength": 10**10}, "#"),
        ({"type": ["string", "array"], "minLength": 10**9, "minItems": 10**6}, "#"),
        ({"type": "array", "minItems": 10**6}, "#"),
        ({"type": "object", "minProperties": 10**6}, "#"),
        ({"type": "object", "minProperties": 300, "additionalProperties": LONG}, "#"),
        ({"type": "object", "minProperties": 1, "propertyNames": {"minLength": 10**9}}, "#"),
        ({"type": "array", "minItems": 300, "items": LONG}, "#"),
        ({"type": "array", "minItems": 300, "prefixItems": [LONG] * 290, "items": LONG}, "#"),
        ({"type": "array", "minItems": 3000, "items": {"type": "string", "pattern": "^a{100}$"}}, "#"),
        ({"anyOf": [{"type": "string", "minLength": 10**9}, {"type": "array", "minItems": 10**6}]}, "#/anyOf/1"),
        ({"properties": {"a": {"items": {"type": "string", "minLength": 10**9}}}}, "#/properties/a/items"),
        (SHARED | {"$ref": "#/$defs/a"}, r"#/\$defs/a"),
        (SHARED | {"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/$defs/a"}}}, "#/"),
    ],
)
def test_no_schema_asks_for_an_endless_text(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"at {place}.*: its minimum counts ask for about"):
        check_schema_limits(schema, "the {param} (json_schema)", "grammar")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": MAX_LEAST_CHARACTERS, "maxLength": 10**9},
        {"type": ["string", "null"], "minLength": 10**9},
        {"anyOf": [{"type": "null"}, {"type": "array", "minItems": 30_000}]},
        {"type": "array", "minItems": 20, "items": {"type": "string", "minLength": 2000}},
        {"type": "array", "minItems": 300, "items": {"type": "object", "properties": {"a": LONG}}},
        {"type": "array", "minItems": 1, "maxItems": 10**9, "items": {"$ref": "#"}},
    ],
)
def test_what_an_output_can_hold_passes(schema: dict[str, Any]) -> None:
    check_schema_limits(schema, "the {param} (json_schema)", "grammar")


def test_each_part_of_a_schema_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often others refer to it: else the time would double with each level."""
    measured: list[int] = []
    measure = LeastSizes._of

    def counting(sizes: LeastSizes, part: Any) -> int:
        measured.append(id(part))
        return measure(sizes, part)

    monkeypatch.setattr(LeastSizes, "_of", counting)
    for depth in (10, 20):
        measured.clear()
        both = [{"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(depth)]
        check_schema_limits({"$defs": {f"a{n}": part for n, part in enumerate(both)}}, "{param}", "grammar")
        assert len(measured) <= 3 * depth + 1
