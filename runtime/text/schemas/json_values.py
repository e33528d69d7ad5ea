"""Values in JSON schemas: when two are the same, which types they have, and which ones a schema lists."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from palladio.runtime.text.schemas.json_schemas import resolve_reference

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_MAX_LOOKS = 200  # at schemas, for the values of one; references may lead in circles
_LISTING = frozenset({"enum", "const", "anyOf", "oneOf", "$ref", "type"})
_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "discriminator", "$comment"})


def key_of(value: object) -> str:
    """The same for two values that a schema does not distinguish: 1 and 1.0, but not 1 and true."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def distinct(values: Iterable[Any]) -> list[Any]:
    return list({key_of(value): value for value in values}.values())


def types_of_schema(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """What its `type` says; all where it says nothing."""
    given = schema.get("type", TYPES)
    return (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else TYPES


def has_type(value: object, types: Iterable[str]) -> bool:
    match value:
        case bool():
            names = {"boolean"}
        case int():
            names = {"integer", "number"}
        case float():
            names = {"integer", "number"} if value.is_integer() else {"number"}
        case str():
            names = {"string"}
        case None:
            names = {"null"}
        case list():
            names = {"array"}
        case _:
            names = {"object"}
    return not names.isdisjoint(types)


class _Lister:
    """Follows references and alternatives, but not more than _MAX_LOOKS: each may stand for several others."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._num_looks = 0

    def values(self, schema: object) -> list[Any] | None:
        self._num_looks += 1
        if not isinstance(schema, Mapping) or self._num_looks > _MAX_LOOKS or schema.keys() - _LISTING - _ANNOTATIONS:
            return None
        types = types_of_schema(schema)
        ways = [key for key in ("enum", "const", "anyOf", "oneOf", "$ref") if key in schema]
        if len(ways) > 1:
            return None
        values: list[Any] | None = None
        if not ways and "type" in schema and set(types) <= {"boolean", "null"}:
            values = [False, True, None]
        elif ways:
            values = self._of_way(ways[0], schema[ways[0]])
        return None if values is None else distinct(value for value in values if has_type(value, types))

    def _of_way(self, way: str, given: object) -> list[Any] | None:
        if way == "const":
            return [given]
        if way == "enum":
            return given if isinstance(given, list) else None
        if way == "$ref":
            return self.values(resolve_reference(self._root, given)) if isinstance(given, str) else None
        found: list[Any] = []
        for part in given if isinstance(given, list) else [None]:
            values = self.values(part)
            if values is None:
                return None
            found += values
        return found


def listed_values(schema: object, root: object) -> list[Any] | None:
    """The values that a schema lists: constants, enumerations, true and false, null, and alternatives of these.

    None: it does not list them.
    """
    return _Lister(root).values(schema)
