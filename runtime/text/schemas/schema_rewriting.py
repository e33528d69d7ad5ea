"""A client's JSON schema as the compiler is to have it: closed where it lists properties, and in keywords it knows."""

import json
from collections.abc import Mapping
from typing import Any

from palladio.runtime.text.schemas.json_schemas import (
    OF_LIST,
    OF_MANY,
    OF_ONE,
    escape_pointer,
    without_annotations,
)
from palladio.runtime.text.schemas.pattern_classes import with_written_classes
from palladio.runtime.text.schemas.schema_closing import closed_objects
from palladio.runtime.text.schemas.schema_emulation import (
    MAX_CONDITIONS,
    MAX_WRITTEN,
    with_condition,
    with_countable_bounds,
    with_named_properties,
    with_orders,
    with_plain_pattern,
    without_excluded,
    without_unevaluated,
)


class UnsupportedSchemaError(ValueError):
    """A schema holds what cannot be kept to."""


def rewritten(schema: Any, *, closes_objects: bool) -> Any:
    """
    Args:
        closes_objects: an object that lists its properties has no others, unless the schema says so; else the standard
            holds, by which it may.

    Raises:
        UnsupportedSchemaError: a keyword is not supported like this; the message begins with the place.
    """
    plain = without_annotations(schema)
    return _Writer(plain, closed_objects(plain) if closes_objects else frozenset()).write(plain, "#")


class _Writer:
    """
    Args:
        root: without annotations.
        closed: the `id` of each schema in it that is to be closed.
    """

    def __init__(self, root: Any, closed: frozenset[int]) -> None:
        self._root = root
        self._closed = closed
        self._num_conditions = 0
        self._num_written = 0

    def write(self, schema: Any, path: str) -> Any:
        """The schema at that place, with all within it."""
        if not isinstance(schema, Mapping):
            return schema
        part: dict[str, Any] = {}
        for key, value in schema.items():
            if key == "not" or key == "if":
                part[key] = value  # of constants, which stay as they are
            elif key in OF_ONE:
                part[key] = self.write(value, f"{path}/{key}")
            elif key in OF_MANY and isinstance(value, Mapping):
                part[key] = {
                    name: self.write(inner, f"{path}/{key}/{escape_pointer(str(name))}")
                    for name, inner in value.items()
                }
            elif key in OF_LIST and isinstance(value, list):
                part[key] = [self.write(inner, f"{path}/{key}/{position}") for position, inner in enumerate(value)]
            else:
                part[key] = value
        if id(schema) in self._closed:
            part["additionalProperties"] = False
        try:
            return self._emulate(_with_patterns(with_plain_pattern(part)))
        except ValueError as error:
            raise UnsupportedSchemaError(f"{path}: {error}") from None

    def _emulate(self, part: dict[str, Any]) -> dict[str, Any]:
        part = with_countable_bounds(without_unevaluated(part))
        if "propertyNames" in part:
            part = self._counted(with_named_properties(part, self._root), "propertyNames")
        if part.get("uniqueItems") is True:
            part = self._counted(with_orders(part, self._root), "uniqueItems")
        if isinstance(part.get("not"), Mapping) and part["not"]:
            part = without_excluded(part, self._root)
        if not {"if", "then", "else"}.isdisjoint(part):
            self._num_conditions += 1
            if self._num_conditions > MAX_CONDITIONS:
                raise ValueError(f"`if` is there more than {MAX_CONDITIONS} times, the limit: they combine")
            part = with_condition(part, self._root)
        return part

    def _counted(self, part: dict[str, Any], keyword: str) -> dict[str, Any]:
        """The part, which is longer than what the client wrote."""
        self._num_written += len(json.dumps(part))
        if self._num_written > 2 * MAX_WRITTEN:
            raise ValueError(f"{keyword} comes to too much text with those before it: leave it out")
        return part


def _with_patterns(part: dict[str, Any]) -> dict[str, Any]:
    if isinstance(part.get("pattern"), str):
        part["pattern"] = with_written_classes(part["pattern"])
    patterns = part.get("patternProperties")
    if isinstance(patterns, dict):
        written = {with_written_classes(name): inner for name, inner in patterns.items()}
        part["patternProperties"] = written if len(written) == len(patterns) else patterns
    return part
