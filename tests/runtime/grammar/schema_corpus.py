"""JSON schemas as clients send them: of pydantic's models, and of tools of MCP servers."""

import dataclasses
import datetime
import enum
from typing import Annotated, Any, Literal, Optional

import pydantic
from pydantic import BaseModel, Field


@dataclasses.dataclass(frozen=True)
class Case:
    """
    Attributes:
        good: an instance.
        bad: no instances, as this server reads the schema by default.
    """

    name: str
    schema: dict[str, Any]
    good: tuple[Any, ...]
    bad: tuple[Any, ...] = ()


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Address(BaseModel):
    street: str
    city: str
    zip: str | None = None


class Person(BaseModel):
    """A person."""

    name: str = Field(description="full name", min_length=1, max_length=40)
    age: int = Field(ge=0, le=150)
    address: Optional[Address] = None  # noqa: UP045 (as many write it)
    tags: list[str] = []
    color: Color = Color.RED


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Either(BaseModel):
    pet: Cat | Dog | None


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Counts(BaseModel):
    counts: dict[str, int]
    anything: dict[str, Any] = {}
    models: dict[str, Address] = {}


class Flags(BaseModel):
    colors: set[Color]
    sizes: frozenset[Literal["s", "m", "l"]] = frozenset()
    switches: set[bool] = set()


class Base(BaseModel):
    id: int


class Derived(Base):
    model_config = pydantic.ConfigDict(json_schema_extra={"examples": [{"id": 1, "note": "x"}]})
    note: str


class Strictly(BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    x: float


class Loosely(BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    x: float


class Times(BaseModel):
    day: datetime.date
    at: datetime.datetime | None = None
    pair: tuple[int, str] = (0, "")
    code: Annotated[str, Field(pattern=r"^\d{2}-\w+$")]


class Empty(BaseModel):
    pass


class ByColor(BaseModel):
    of: dict[Color, int]
    sizes: dict[Literal["s", "m"], bool] = {}


class Sized(BaseModel):
    big: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
    unsigned: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0


PYDANTIC = (
    Case("a person", Person.model_json_schema(), ({"name": "Ada", "age": 36},), ({"name": "Ada", "age": 3, "x": 1},)),
    Case(
        "an optional model",
        Person.model_json_schema(),
        ({"name": "A", "age": 1, "address": {"street": "s", "city": "c"}}, {"name": "A", "age": 1, "address": None}),
        ({"name": "A", "age": 1, "address": {"street": "s", "city": "c", "more": 1}},),
    ),
    Case(
        "a discriminated union",
        Owner.model_json_schema(),
        ({"pet": {"kind": "dog", "barks": True}}, {"pet": {"kind": "cat", "lives": 9}}),
        ({"pet": {"kind": "dog", "barks": True, "lives": 9}}, {"pet": {"kind": "dog", "lives": 9}}),
    ),
    Case(
        "a union",
        Either.model_json_schema(),
        ({"pet": {"kind": "cat", "lives": 9}}, {"pet": None}),
        ({"pet": {"kind": "cat", "lives": 9, "x": 1}},),
    ),
    Case(
        "a recursive model",
        Tree.model_json_schema(),
        ({"value": 1, "children": [{"value": 2, "children": []}]},),
        ({"value": 1, "children": [{"value": 2, "x": 1}]},),
    ),
    Case(
        "dictionaries",
        Counts.model_json_schema(),
        ({"counts": {"a": 1}, "anything": {"x": [1]}, "models": {"h": {"street": "s", "city": "c"}}},),
        ({"counts": {"a": "x"}}, {"counts": {}, "more": 1}, {"counts": {}, "models": {"h": {"street": "s", "x": 1}}}),
    ),
    Case(
        "sets",
        Flags.model_json_schema(),
        ({"colors": ["blue", "red"], "sizes": ["l"], "switches": [False, True]}, {"colors": []}),
        ({"colors": ["red", "red"]}, {"colors": ["pink"]}, {"colors": [], "switches": [True, True]}),
    ),
    Case(
        "dictionaries with listed keys",
        ByColor.model_json_schema(),
        ({"of": {"red": 1, "blue": 2}, "sizes": {"s": True}}, {"of": {}}),
        ({"of": {"pink": 1}}, {"of": {"red": "x"}}, {"of": {}, "sizes": {"x": True}}),
    ),
    Case("an heir", Derived.model_json_schema(), ({"id": 1, "note": "x"},), ({"id": 1},)),
    Case("extra forbidden", Strictly.model_json_schema(), ({"x": 1.5},), ({"x": 1.5, "y": 1},)),
    Case("extra allowed", Loosely.model_json_schema(), ({"x": 1.5}, {"x": 1.5, "y": [1]}), ({"y": 1},)),
    Case(
        "formats",
        Times.model_json_schema(),
        ({"day": "2024-05-06", "at": "2024-05-06T07:08:09Z", "pair": [1, "x"], "code": "12-ab_3"},),
        ({"day": "2024-05-06", "code": "1٣-ab"}, {"day": "tomorrow", "code": "12-a"}),
    ),
    Case("no fields", Empty.model_json_schema(), ({},), ({"x": 1},)),
    Case(
        "64 bits", Sized.model_json_schema(), ({"big": -(10**18)}, {"big": 2**63 - 1, "unsigned": 0}), ({"big": 2**63},)
    ),
    Case(
        "an old reference",  # pydantic before 2.9: allOf of one, beside annotations
        {
            "$defs": {"A": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
            "type": "object",
            "properties": {"a": {"allOf": [{"$ref": "#/$defs/A"}], "default": {"n": 1}, "description": "x"}},
        },
        ({"a": {"n": 2}}, {}),
        ({"a": {"n": 2, "m": 1}},),
    ),
    Case(
        "a list of models at the top",
        pydantic.TypeAdapter(list[Address]).json_schema(),
        ([{"street": "s", "city": "c"}], []),
        ([{"street": "s", "city": "c", "x": 1}],),
    ),
)


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


TEXT, NUMBER = {"type": "string"}, {"type": "number"}

MCP = (
    Case(
        "edit_file",
        _object(
            {
                "path": TEXT,
                "edits": {
                    "type": "array",
                    "items": _object(
                        {"oldText": TEXT, "newText": TEXT}, "oldText", "newText", additionalProperties=False
                    ),
                },
                "dryRun": {"type": "boolean", "default": False, "description": "Preview"},
            },
            *("path", "edits"),
            **{"additionalProperties": False, "$schema": "http://json-schema.org/draft-07/schema#"},
        ),
        ({"path": "a", "edits": [{"oldText": "x", "newText": "y"}]},),
    ),
    Case(
        "create_entities",
        _object(
            {
                "entities": {
                    "type": "array",
                    "items": _object(
                        {"name": TEXT, "entityType": TEXT, "observations": {"type": "array", "items": TEXT}},
                        *("name", "entityType", "observations"),
                    ),
                }
            },
            "entities",
        ),
        ({"entities": [{"name": "n", "entityType": "t", "observations": ["o"]}]},),
        ({"entities": [{"name": "n", "entityType": "t", "observations": [], "x": 1}]},),
    ),
    Case("no arguments", {"type": "object", "properties": {}}, ({},), ({"x": 1},)),
    Case("a free object", _object({"arguments": {"type": "object"}}), ({"arguments": {"a": {"b": 1}}}, {})),
    Case(
        "one of two is needed",
        _object({"id": TEXT, "name": TEXT}, anyOf=[{"required": ["id"]}, {"required": ["name"]}]),
        ({"id": "x"}, {"name": "y"}),
        ({}, {"id": "x", "more": 1}),
    ),
    Case(
        "alternatives that add properties",
        _object(
            {"url": TEXT},
            "url",
            anyOf=[_object({"body": TEXT}, "body"), _object({"file": TEXT}, "file")],
        ),
        ({"url": "u", "body": "b"}, {"url": "u", "file": "f"}),
        ({"url": "u"},),
    ),
    Case(
        "parts that add up",
        {
            "definitions": {"Base": _object({"id": TEXT, "at": _object({"x": NUMBER}, "x")}, "id")},
            "allOf": [
                {"$ref": "#/definitions/Base"},
                _object({"name": TEXT, "at": _object({"y": NUMBER}, "y")}, "name"),
            ],
        },
        ({"id": "i", "name": "n"}, {"id": "i", "at": {"x": 1, "y": 2}, "name": "n"}),
        ({"id": "i"},),
    ),
    Case(
        "a reference with more",
        {
            "$defs": {"Base": _object({"id": TEXT}, "id")},
            **_object({"item": {"$ref": "#/$defs/Base", **_object({"n": NUMBER}, "n")}}, "item"),
        },
        ({"item": {"id": "i", "n": 1}},),
        ({"item": {"id": "i"}},),
    ),
    Case(
        "names by pattern",
        _object({"type": {"const": "env"}}, "type", patternProperties={r"^[A-Z]\d$": TEXT}),
        ({"type": "env", "A1": "x"},),
        ({"type": "env", "A1": 5},),
    ),
    Case(
        "a query by its type",
        _object(
            {"type": {"enum": ["range", "term"]}, "low": NUMBER, "text": TEXT},
            "type",
            **{
                "if": {"properties": {"type": {"const": "range"}}},
                "then": {"required": ["low"]},
                "else": {"required": ["text"]},
            },
        ),
        ({"type": "range", "low": 1}, {"type": "term", "text": "x"}),
        ({"type": "range", "text": "x"}, {"type": "term"}, {"type": "term", "low": 1}, {"type": "other", "text": "x"}),
    ),
    Case(
        "conditions together",
        _object(
            {"kind": {"type": "string", "enum": ["a", "b", "c"]}, "x": NUMBER, "y": NUMBER},
            "kind",
            allOf=[
                {"if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}, "then": {"required": ["x"]}},
                {"if": {"properties": {"kind": {"const": "b"}}, "required": ["kind"]}, "then": {"required": ["y"]}},
            ],
        ),
        ({"kind": "a", "x": 1}, {"kind": "b", "y": 1}, {"kind": "c"}),
        ({"kind": "a", "y": 1}, {"kind": "b"}, {"kind": "c", "z": 1}),
    ),
    Case(
        "excluded values",
        _object(
            {
                "branch": {"type": "string", "not": {"enum": ["main", "master"]}},
                "port": {"type": "integer", "minimum": 0, "maximum": 9, "not": {"const": 0}},
                "level": {"enum": ["low", "high", "off"], "not": {"const": "off"}},
                "value": {"not": {"type": "null"}},
            }
        ),
        (
            {"branch": "mai"},
            {"branch": "maine"},
            {"branch": ""},
            {"port": 1},
            {"level": "low"},
            {"value": [1]},
            {"value": 5},
        ),
        ({"branch": "main"}, {"branch": "master"}, {"port": 0}, {"level": "off"}, {"value": None}),
    ),
    Case(
        "records and floats, as zod writes them",
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "headers": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": TEXT},
                "ratio": {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
            },
            "required": ["headers"],
            "additionalProperties": False,
        },
        ({"headers": {"x-a": "b"}}, {"headers": {}, "ratio": -0.5}),
        ({"headers": {"x-a": 1}}, {"ratio": 1}),
    ),
    Case(
        "labels, each once",
        _object(
            {
                "labels": {
                    "type": "array",
                    "uniqueItems": True,
                    "items": {"enum": list("abcdefgh")},
                    "maxItems": 2,
                    "minItems": 1,
                }
            }
        ),
        ({"labels": ["h", "a"]}, {"labels": ["c"]}),
        ({"labels": ["a", "a"]}, {"labels": []}, {"labels": ["a", "b", "c"]}),
    ),
    Case(
        "a required property that is not listed",
        {"type": "object", "properties": {"a": TEXT}, "required": ["b"]},
        ({"b": 1}, {"a": "x", "b": 2}),
        ({"a": "x"},),
    ),
)

CORPUS = PYDANTIC + MCP
