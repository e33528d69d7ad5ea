"""Which grammars are surely cheap to compile, by a look at their text, and what makes one expensive."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping

from palladio.runtime.interface.request.grammar_spec import Grammar
from palladio.runtime.text.schemas.json_schemas import all_schemas

_MAX_CHARACTERS = {"json_schema": 4096, "choice": 1 << 14, "regex": 1024}
_MAX_LARK = 1 << 15  # of a tool's grammar, whose schemas are looked at one by one
_MAX_COUNT = 1000  # of a schema's minLength and the like
_MAX_REPEATS = 200  # of all counts of a pattern together
_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_KNOWN = frozenset(
    {
        *("$defs", "definitions", "$ref", "$schema", "$id", "title", "description", "default", "examples"),
        *("type", "properties", "required", "additionalProperties", "items", "prefixItems", "enum", "const", "anyOf"),
        *("minItems", "maxItems", "minLength", "maxLength", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
_COSTLY = ("multipleOf", "pattern", "patternProperties", "allOf", "oneOf", "not", "propertyNames", "x-guidance")
_MAX_NAMED = 3  # places in a message


def is_surely_cheap(grammar: Grammar) -> bool:
    """Whether compiling it takes some milliseconds, and what it compiles to some hundred kilobytes. If not, it may."""
    if grammar.parts:  # a tool's grammar: little but its schemas
        schemas = all(is_surely_cheap(Grammar("json_schema", text)) for _, text in grammar.parts)
        return schemas and len(grammar.text) <= _MAX_LARK
    if len(grammar.text) > _MAX_CHARACTERS.get(grammar.kind, 0):
        return False
    if grammar.kind == "regex":
        return _repeats(grammar.text) <= _MAX_REPEATS
    if grammar.kind == "choice":
        return True
    try:
        return _is_plain(json.loads(grammar.text))
    except (ValueError, RecursionError):
        return True  # it is refused at once


def estimated_bytes(grammar: Grammar) -> int:
    """What a grammar that is surely cheap compiles to, at most."""
    return (1 << 16) + 256 * len(grammar.text)


def costly_places(grammar: Grammar) -> str:
    """What of it to simplify, in words."""
    found: list[str] = []
    if grammar.kind == "json_schema":
        with contextlib.suppress(ValueError, RecursionError):
            found = list(dict.fromkeys(_places(json.loads(grammar.text))))
    if not found:
        return "lower its counts, or make it shorter"
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return f"simplify {', '.join(found[:_MAX_NAMED])}{more}"


def _is_plain(schema: object) -> bool:
    for _, part in all_schemas(schema):
        if not part.keys() <= _KNOWN:
            return False
        counts = [part[key] for key in _COUNTS if key in part]
        if any(not isinstance(count, int) or count > _MAX_COUNT for count in counts):
            return False
        if "format" in part and ("minLength" in part or "maxLength" in part):
            return False  # the compiler looks whether a text can be both
        if "anyOf" in part and ("properties" in part or "items" in part or "prefixItems" in part or "$ref" in part):
            return False  # each alternative is merged with the keywords next to it
    return True


def _places(schema: object) -> Iterator[str]:
    for path, part in all_schemas(schema):
        yield from (f"{path}/{key}" for key in _COSTLY if key in part)
        yield from (f"{path}/{key}" for key in _COUNTS if isinstance(part.get(key), int) and part[key] > _MAX_COUNT)
        yield from (f"{path}/{key}" for key in ("anyOf", "properties", "enum") if _size(part, key) > _MAX_COUNT)


def _size(part: Mapping[str, object], key: str) -> int:
    value = part.get(key)
    return len(value) if isinstance(value, list | Mapping) else 0


def _repeats(pattern: str) -> int:
    return sum(int((most or least)[:9]) for least, most in _COUNT.findall(pattern))
