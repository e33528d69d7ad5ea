"""Grammars for arguments that a family writes one by one: plain text for strings, JSON for the rest.

Not enforced for plain text: length, pattern and format of strings. Parameters come in the order of the schema.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palladio.http.tool_calls.grammars.lark import Rules, either, joined, quoted
from palladio.http.tool_calls.reading.base import Function
from palladio.http.tool_calls.reading.typed_values import types_of

_ANY_NAME = r"/[^<>=\"\n]+/"
_NAME = "/[A-Za-z_][A-Za-z0-9_]*/"
_NUMBERS = {"integer": "number"}
_JSON_TYPES = ("string", "number", "boolean", "object", "array", "null")
_MAX_NESTED = 16
_NOTES = ("type", "title", "description", "default", "examples", "additionalProperties")


def tagged_arguments(
    opening: Callable[[str], tuple[str, str]], closing: str, *, gap: str
) -> Callable[[Rules, Function], str]:
    """Arguments of the form opening, value, closing, gap.

    Args:
        opening: whether the value is a string ("true" or "false") → what comes before and after the parameter's name.
        closing: comes after the value.
        gap: white space after that.
    """

    def arguments(rules: Rules, function: Function) -> str:
        schema = function.parameters
        required, parts = _required(schema), list[str]()
        for name, value in _properties(schema).items():
            is_text = types_of(value, schema) == {"string"}
            before, after = opening("true" if is_text else "false")
            body = _plain_text(rules, value, closing) if is_text else _json_text(rules, value, schema, closing)
            expression = joined(rules.text(before + name + after), body, rules.text(gap))
            parts.append(_one_of(rules, required, name, expression))
        if schema.get("additionalProperties") and not parts:
            before, after = opening("true")
            free = joined(rules.text(before), _ANY_NAME, rules.text(after), rules.text_before(closing), rules.text(gap))
            parts.append(f"({free})*")
        return " ".join(parts)

    return arguments


def typed_arguments(before: str, between: str, after: str, closing: str) -> Callable[[Rules, Function], str]:
    """Arguments of the form before, name, between, type, after, value, closing. The types are those of JSON, but for
    integers, which are numbers."""

    def arguments(rules: Rules, function: Function) -> str:
        schema = function.parameters
        required, parts = _required(schema), list[str]()
        for name, value in _properties(schema).items():
            types = {_NUMBERS.get(kind, kind) for kind in types_of(value, schema)} or _JSON_TYPES
            typed: list[str] = []
            for kind in sorted(types):
                is_text = kind == "string"
                body = _plain_text(rules, value, closing) if is_text else _json_text(rules, value, schema, closing)
                typed.append(joined(rules.text(kind + after), body))
            parts.append(_one_of(rules, required, name, joined(rules.text(before + name + between), either(typed))))
        if schema.get("additionalProperties") and not parts:
            kind = either([quoted(kind) for kind in _JSON_TYPES])
            free = (rules.text(before), _ANY_NAME, rules.text(between), kind, rules.text(after))
            parts.append(f"({joined(*free, rules.text_before(closing))})*")
        return " ".join(parts)

    return arguments


def element_arguments(mark: str, gap: str) -> Callable[[Rules, Function], str]:
    """Arguments in elements that are named by them, each tag after a mark; lists and objects are JSON there."""

    def arguments(rules: Rules, function: Function) -> str:
        schema = function.parameters
        required, parts = _required(schema), list[str]()
        for name, value in _properties(schema).items():
            closing = f"{mark}</{name}>"
            is_text = types_of(value, schema) == {"string"}
            body = _plain_text(rules, value, closing) if is_text else _json_text(rules, value, schema, closing)
            parts.append(_one_of(rules, required, name, joined(rules.text(f"{mark}<{name}>"), body, rules.text(gap))))
        if schema.get("additionalProperties") and not parts:
            start = (rules.text(f"{mark}<"), _ANY_NAME, quoted(">"))
            end = (rules.text_before(f"{mark}</"), _ANY_NAME, quoted(">"), rules.text(gap))
            parts.append(f"({joined(*start, *end)})*")
        return " ".join(parts)

    return arguments


def python_arguments(rules: Rules, function: Function) -> str:
    """`a=1, b="x"`: the required ones, then any of the others."""
    return _listed(rules, function.parameters, _PYTHON)


def json_named_arguments(rules: Rules, function: Function) -> str:
    """The same with JSON's own constants."""
    return _listed(rules, function.parameters, _JSON)


def bare_arguments(quote: str) -> Callable[[Rules, Function], str]:
    """`a:1,b:[{c:true}]`, with a mark at both ends of a string. What is no plain list or object is JSON."""
    listing = _bare_listing(quote, _MAX_NESTED)
    return lambda rules, function: _listed(rules, function.parameters, listing)


def _bare_listing(quote: str, levels: int) -> "_Listing":
    """How arguments with bare keys are listed.

    Args:
        levels: lists and objects within each other; deeper ones are JSON.
    """

    def value(rules: Rules, schema: object, root: Mapping[str, Any]) -> str:
        types = types_of(schema, root) if levels else frozenset()
        if types == {"string"}:
            return joined(rules.text(quote), _plain_text(rules, schema, quote))
        if types == {"array"} and (plain := _plain(schema, "items")) is not None:
            item = rules.rule(_bare_listing(quote, levels - 1).value(rules, plain["items"], root))
            return f'"[" ({item} ("," {item})*)? "]"'
        if types == {"object"} and (plain := _plain(schema, "properties", "required")) is not None:
            return joined('"{"', _listed(rules, plain, _bare_listing(quote, levels - 1), root), '"}"')
        if levels and (not types or types in ({"array"}, {"object"})) and _says_nothing(schema):
            return _bare_value(rules, quote, types)
        return _json(rules, schema, root)

    return _Listing(":", ",", value)


def _bare_value(rules: Rules, quote: str, types: frozenset[str]) -> str:
    """Write the expression of any value.

    Args:
        types: array, object or both: only values of these types; none: scalars as well.
    """
    text = joined(rules.text(quote), rules.text_before(quote))
    scalar = rules.json({"type": ["number", "boolean", "null"]})

    def written(value: str) -> dict[str, str]:
        member = f'{_NAME} ":" {value}'
        return {"array": f'"[" ({value} ("," {value})*)? "]"', "object": f'"{{" ({member} ("," {member})*)? "}}"'}

    anything = rules.recursive(lambda name: either([text, scalar, *written(name).values()]))
    return either([written(anything)[kind] for kind in types]) if types else anything


@dataclasses.dataclass(frozen=True, slots=True)
class _Listing:
    """How arguments are listed.

    Attributes:
        equals: between name and value.
        comma: between two arguments.
        value: an expression for a value, of its schema and of what references point into.
    """

    equals: str
    comma: str
    value: Callable[[Rules, object, Mapping[str, Any]], str]


def _listed(rules: Rules, schema: Mapping[str, Any], listing: _Listing, root: Mapping[str, Any] | None = None) -> str:
    """Write the required arguments, then any of the others.

    Args:
        root: what references point into, if not the schema.
    """
    root = schema if root is None else root
    required = _required(schema)
    properties = _properties(schema)
    comma = f" {quoted(listing.comma)} "
    if schema.get("additionalProperties") and not properties:
        one = rules.rule(f"{_NAME} {quoted(listing.equals)} {listing.value(rules, {}, {})}")
        return f"({one} ({comma.strip()} {one})*)?"
    given = {
        name: rules.rule(f"{quoted(name + listing.equals)} {listing.value(rules, value, root)}")
        for name, value in properties.items()
    }
    first = [given[name] for name in properties if name in required]
    others = [given[name] for name in properties if name not in required]
    tail = " ".join(f"({comma.strip()} {name})?" for name in others)
    if first:
        return f"{comma.join(first)} {tail}".strip()
    rules.reserve(len(others) ** 2)  # names of what may follow each
    starts = [
        " ".join([name, *(f"({comma.strip()} {later})?" for later in others[position + 1 :])])
        for position, name in enumerate(others)
    ]
    return f"{either(starts)}?" if len(starts) > 1 else f"({starts[0]})?" if starts else ""


def _one_of(rules: Rules, required: frozenset[str], name: str, expression: str) -> str:
    """One argument, which may be left out unless it is required."""
    rule = rules.rule(expression)
    return rule if name in required else f"{rule}?"


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(schema.get("required") or ())


def _says_nothing(schema: object) -> bool:
    """Whether a schema says nothing but the type."""
    if not isinstance(schema, Mapping):
        return schema is True
    return all(key in _NOTES for key in schema) and schema.get("additionalProperties") in (None, True)


def _plain(schema: object, holds: str, *others: str) -> Mapping[str, Any] | None:
    """The schema of a list or of an object, if it says nothing of itself but what it holds."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get(holds), Mapping):
        return None
    return schema if all(key in (holds, *others, *_NOTES) for key in schema) else None


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _plain_text(rules: Rules, schema: object, closing: str) -> str:
    choices = _strings(schema)
    if choices is None:
        return rules.text_before(closing)
    return f"{either([rules.text(choice) for choice in choices])} {rules.text(closing)}"


def _strings(schema: object) -> Sequence[str] | None:
    """The values of an enumeration of strings that are not empty."""
    values = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(values, list) and values and all(isinstance(value, str) and value for value in values):
        return values
    return None


def _json(rules: Rules, schema: object, root: Mapping[str, Any]) -> str:
    """The value as JSON; what it refers to comes along."""
    if not isinstance(schema, Mapping):
        return rules.json({})
    shared = {key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root}
    return rules.json(shared | dict(schema))


def _json_text(rules: Rules, schema: object, root: Mapping[str, Any], closing: str) -> str:
    return f"{_json(rules, schema, root)} {rules.text(closing)}"


def _python(rules: Rules, schema: object, root: Mapping[str, Any]) -> str:
    """As Python writes it: the simple constants; JSON's strings, numbers, lists and objects are literals of both."""
    types = types_of(schema, root)
    if types == {"boolean"}:
        return '("True" | "False")'
    if types == {"null"}:
        return '"None"'
    return _json(rules, schema, root)


_PYTHON = _Listing("=", ", ", _python)
_JSON = _Listing("=", ", ", _json)
