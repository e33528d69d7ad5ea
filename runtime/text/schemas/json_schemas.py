"""JSON schemas as data: what of them only annotates, and where in one an error is that the compiler only names."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_SECONDS = 0.5  # of looking for an error; then the path ends where it has come to

OF_ONE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
OF_MANY = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
OF_LIST = ("prefixItems", "anyOf", "allOf", "oneOf")
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")


def without_annotations(schema: Any) -> Any:
    """The schema without keywords that allow everything, but that the compiler refuses: `uniqueItems: false`, and a
    `format` unknown to the compiler (such as OpenAPI's int64), which by the standard is an annotation."""
    if not isinstance(schema, Mapping):
        return schema
    tidy: dict[str, Any] = {}
    for key, value in schema.items():
        if (key == "uniqueItems" and value is False) or (key == "format" and value not in _FORMATS):
            continue
        if key in OF_ONE:
            tidy[key] = without_annotations(value)
        elif key in OF_MANY and isinstance(value, Mapping):
            tidy[key] = {name: without_annotations(part) for name, part in value.items()}
        elif key in OF_LIST and isinstance(value, list):
            tidy[key] = [without_annotations(part) for part in value]
        else:
            tidy[key] = value
    return tidy


def locate_error(schema: object, error: str, refusal: Callable[[object], str | None]) -> str:
    """A JSON pointer to the innermost part of the schema that by itself causes the error.

    Args:
        refusal: compiles a schema; its error, or None.
    """
    deadline = time.monotonic() + MAX_SECONDS
    definitions: dict[str, Any] = {}
    if isinstance(schema, Mapping):
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    path = "#"
    while True:
        for name, part in schema_parts(schema):
            if time.monotonic() > deadline:
                return path
            if isinstance(part, Mapping) and refusal({**definitions, **part}) == error:
                path, schema = f"{path}/{name}", part
                break
        else:
            return path


def all_schemas(root: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A schema, all of its subschemas, and what they refer to within it, each once with a JSON pointer."""
    open_ones: list[tuple[str, object]] = [("#", root)]
    seen: set[int] = set()
    while open_ones:
        path, part = open_ones.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        yield path, part
        open_ones += [(f"{path}/{name}", inner) for name, inner in schema_parts(part)]
        if isinstance(part.get("$ref"), str):
            open_ones.append((part["$ref"], resolve_reference(root, part["$ref"])))


def resolve_reference(root: object, reference: str) -> object:
    """What a pointer into the same document points to; None: nothing."""
    part = root
    for name in reference.removeprefix("#").split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping):
            part = part.get(name)
        elif isinstance(part, list) and name.isdigit() and int(name) < len(part):
            part = part[int(name)]
        else:
            return None
    return part


def schema_parts(schema: object) -> Iterator[tuple[str, Any]]:
    """The subschemas of a schema, each with its path within it."""
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if key in OF_ONE:
            yield key, value
        elif key in OF_MANY and isinstance(value, Mapping):
            yield from ((f"{key}/{escape_pointer(str(name))}", part) for name, part in value.items())
        elif key in OF_LIST and isinstance(value, list):
            yield from ((f"{key}/{position}", part) for position, part in enumerate(value))


def escape_pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
