"""Arguments that a family writes as plain text → JSON, by the types that the tool's schema gives them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from palladio.http.tool_calls.reading.python_literals import literal_json
from palladio.runtime.text.schemas.json_schemas import resolve_reference

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_MAX_REFERENCES = 16
_MAX_SCHEMAS = 256


def parameter_schema(schema: Mapping[str, Any], name: str) -> object:
    """The schema of one parameter; {} if none is given."""
    properties = schema.get("properties")
    return properties.get(name, {}) if isinstance(properties, Mapping) else {}


def types_of(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema allows; empty: any.

    Args:
        root: what `$ref` points into.
    """
    found = _Search(root).types(schema)
    return frozenset() if found is None else frozenset(found)


def to_json(text: str, types: frozenset[str]) -> str:
    """The JSON text of a value that is written as JSON, as a Python literal, or without quotes.

    Text that fits none of the types becomes a string: a value that the tool can refuse is better than none.
    """
    stripped = text.strip()
    candidate = _PYTHON_WORDS.get(stripped, stripped)
    if "string" in types and types <= {"string", "null"}:
        return "null" if stripped in ("null", "None") and "null" in types else quote(text)
    try:
        value = orjson.loads(candidate)
    except orjson.JSONDecodeError:
        if "boolean" in types and stripped.lower() in ("true", "false"):
            return stripped.lower()
        return _from_literal(stripped, types) or quote(text)
    if not types or type_name(value) in types or (isinstance(value, int | float) and "number" in types):
        return candidate
    if "integer" in types and isinstance(value, float) and value.is_integer():
        return candidate if candidate.lstrip("-").isdigit() else str(int(value))  # past 64 bits, digits are lost
    if isinstance(value, str) and types & {"object", "array"}:
        return _unwrapped(value, types) or candidate
    return quote(text)


def quote(text: str) -> str:
    """A JSON string."""
    return json.dumps(text, ensure_ascii=False)


def type_name(value: object) -> str:
    """The JSON type of a decoded value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def _from_literal(text: str, types: frozenset[str]) -> str | None:
    """The JSON text of a Python literal that fits the types.

    Where a string fits as well, a literal is one only if it shows it: `0x10` may be part of a text, `['a']` is a list.
    """
    shows_it = text.startswith(("[", "{", "(", '"', "'"))
    written = literal_json(text) if shows_it or (types and "string" not in types) else None
    if written is None:
        return None
    value = orjson.loads(written)
    if not types:
        return written if isinstance(value, dict | list | str) else None
    if isinstance(value, str) and types & {"object", "array"}:
        return _unwrapped(value, types)
    fits = type_name(value) in types or (type_name(value) == "integer" and "number" in types)
    return written if fits else None


def _unwrapped(value: str, types: frozenset[str]) -> str | None:
    """The text of an object or list that was written as a string."""
    try:
        return value if type_name(orjson.loads(value)) in types else None
    except orjson.JSONDecodeError:
        written = literal_json(value)
    return written if written is not None and type_name(orjson.loads(written)) in types else None


class _Search:
    """Finds the types of a schema, through references and alternatives. Schemas come from clients: a few levels of
    alternatives may have too many branches, so after _MAX_SCHEMAS of them the rest counts as any type.

    Args:
        root: what `$ref` points into.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._num_left = _MAX_SCHEMAS

    def types(self, schema: object, references: int = _MAX_REFERENCES) -> set[str] | None:
        """None: any."""
        self._num_left -= 1
        if not isinstance(schema, Mapping) or not references or self._num_left < 0:
            return None
        kinds = schema.get("type")
        if isinstance(kinds, str):
            return {kinds}
        if isinstance(kinds, list):
            return {kind for kind in kinds if isinstance(kind, str)}
        if "const" in schema:
            return {type_name(schema["const"])}
        if isinstance(schema.get("enum"), list):
            return {type_name(value) for value in schema["enum"]}
        if isinstance(schema.get("$ref"), str):
            return self.types(resolve_reference(self._root, schema["$ref"]), references - 1)
        if isinstance(schema.get("properties"), Mapping):
            return {"object"}
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(schema.get(key), list):
                return _union(self.types(branch, references - 1) for branch in schema[key])
        return None


def _union(branches: Iterator[set[str] | None]) -> set[str] | None:
    found: set[str] = set()
    for branch in branches:
        if branch is None:
            return None
        found |= branch
    return found
