"""Grammars for arguments that a family writes one by one: plain text for strings, JSON for the rest.

Not enforced for plain text: length, pattern and format of strings. Parameters come in the order of the schema.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palladio.http.tool_calls.grammars.lark import Rules, either, joined, quoted
from palladio.http.tool_calls.reading.base import Function
from palladio.http.tool_calls.reading.typed_values import types_of

_ANY_NAME = r"/[^<>=\"\n]+/"
_NAME = "/[A-Za-z_][A-Za-z0-9_]*/"


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
        required = frozenset(schema.get("required") or ())
        parts: list[str] = []
        for name, value in _properties(schema).items():
            is_text = types_of(value, schema) == {"string"}
            before, after = opening("true" if is_text else "false")
            body = _plain_text(rules, value, closing) if is_text else _json_text(rules, value, schema, closing)
            expression = rules.rule(joined(rules.text(before + name + after), body, rules.text(gap)))
            parts.append(expression if name in required else f"{expression}?")
        if schema.get("additionalProperties") and not parts:
            before, after = opening("true")
            free = joined(rules.text(before), _ANY_NAME, rules.text(after), rules.text_before(closing), rules.text(gap))
            parts.append(f"({free})*")
        return " ".join(parts)

    return arguments


def python_arguments(rules: Rules, function: Function) -> str:
    """`a=1, b="x"`: the required ones, then any of the others."""
    schema = function.parameters
    required = frozenset(schema.get("required") or ())
    properties = _properties(schema)
    if schema.get("additionalProperties") and not properties:
        one = rules.rule(f'{_NAME} "=" {rules.json({})}')
        return f'({one} (", " {one})*)?'
    given = {
        name: rules.rule(f"{quoted(name + '=')} {_python(rules, value, schema)}") for name, value in properties.items()
    }
    first = [given[name] for name in properties if name in required]
    others = [given[name] for name in properties if name not in required]
    tail = " ".join(f'(", " {name})?' for name in others)
    comma = ' ", " '
    if first:
        return f"{comma.join(first)} {tail}".strip()
    rules.reserve(len(others) ** 2)  # names of what may follow each
    starts = [
        " ".join([name, *(f'(", " {later})?' for later in others[position + 1 :])])
        for position, name in enumerate(others)
    ]
    return f"{either(starts)}?" if len(starts) > 1 else f"({starts[0]})?" if starts else ""


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
