"""Keywords of JSON schemas that the compiler does not know, written in known ones, where that is exact.

Each function takes a schema and returns one without the keyword; a ValueError says why there is none.
"""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from palladio.runtime.text.schemas.json_values import TYPES, has_type, key_of, listed_values, types_of_schema
from palladio.runtime.text.schemas.pattern_classes import with_written_classes

MAX_ORDERS = 120  # of the values of an array with uniqueItems: those of five values
MAX_CONDITIONS = 8  # `if` in one schema: they combine
MAX_WRITTEN = 1 << 16  # characters that uniqueItems or propertyNames of one schema may come to
MAX_EXCLUDED = 64  # values of one `not`
MAX_EXCLUDED_TEXT = 128  # characters of such a value
LOWEST_INTEGER = -(2**63) + 1024  # the compiler counts in 64 bits, by way of floating point numbers
HIGHEST_REAL = 10**18  # it writes no upper bound of numbers that is much above
_ELSEWHERE = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "contains"})
_ANNOTATIONS = frozenset({"title", "description", "$comment", "default", "examples"})
_LOWER_BOUNDS = ("minimum", "exclusiveMinimum")
_UPPER_BOUNDS = ("maximum", "exclusiveMaximum")


def with_alternatives(schema: Mapping[str, Any], alternatives: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema, where one of the alternatives holds as well."""
    if len(alternatives) == 1 and schema.keys().isdisjoint(alternatives[0]):
        return {**schema, **alternatives[0]}
    if "anyOf" not in schema:
        return {**schema, "anyOf": list(alternatives)}
    others = schema.get("allOf")
    return {**schema, "allOf": [*(others if isinstance(others, list) else ()), {"anyOf": list(alternatives)}]}


def with_orders(schema: Mapping[str, Any], root: object) -> dict[str, Any]:
    """Without `uniqueItems`: each order of the values that the items may have is written out."""
    rest = {key: value for key, value in schema.items() if key != "uniqueItems"}
    least, most = rest.get("minItems", 0), rest.get("maxItems", math.inf)
    if not isinstance(least, int) or not isinstance(most, int | float):
        raise ValueError("minItems and maxItems must be integers")
    if most <= 1:
        return rest
    values = None if "prefixItems" in rest else listed_values(rest.get("items"), root)
    if values is None:
        raise ValueError(
            "uniqueItems is supported for items of an enum, not for others: leave it out, and drop what is there twice "
            "afterwards"
        )
    longest = int(min(len(values), most))
    if least > longest:
        raise ValueError(f"uniqueItems leaves at most {longest} items, and minItems asks for {least}")
    orders = 1
    for position in range(longest):
        orders *= len(values) - position
        if orders > MAX_ORDERS:
            raise ValueError(
                f"uniqueItems over {len(values)} values has more than {MAX_ORDERS} orders, the limit (that of 5 "
                "values): set a maxItems, or leave it out, and drop what is there twice afterwards"
            )
    size = orders * sum(len(json.dumps(value)) for value in values)
    if size > MAX_WRITTEN:
        raise ValueError(f"uniqueItems over these values takes {size} characters, over the limit of {MAX_WRITTEN}")
    kept = {key: value for key, value in rest.items() if key not in ("items", "minItems", "maxItems")}
    alternatives: list[dict[str, Any]] = [
        {"prefixItems": [{"const": value} for value in order], "items": False, "minItems": least}
        for order in itertools.permutations(values, longest)
    ]
    return with_alternatives(kept, alternatives if longest else [{"maxItems": 0}])


def without_excluded(schema: Mapping[str, Any], root: object) -> dict[str, Any]:
    """Without a `not` of constants and types: what it leaves is said instead."""
    rest = {key: value for key, value in schema.items() if key != "not"}
    values, types = _excluded(schema["not"], root)
    given = listed_values({key: rest[key] for key in ("enum", "const", "type") if key in rest}, root)
    if given is not None:
        keys = {key_of(value) for value in values}
        left = [value for value in given if key_of(value) not in keys and not has_type(value, types)]
        if not left:
            raise ValueError("`not` excludes all values that there are")
        return {key: value for key, value in rest.items() if key not in ("enum", "const")} | {"enum": left}
    kept = [name for name in types_of_schema(rest) if name not in types]
    if ("number" in types and "integer" in kept) or ("integer" in types and "number" in kept):
        kept = [name for name in kept if name != "integer"]
        if "integer" in types and "number" in kept:
            raise ValueError("`not` of integers is not supported where other numbers are allowed")
    if not kept:
        raise ValueError("`not` excludes all types that there are")
    if "number" in kept and "integer" in kept:
        kept.remove("integer")
    free = [name for name in kept if not any(has_type(value, [name]) for value in values)]
    alternatives: list[dict[str, Any]] = [{"type": free if len(free) > 1 else free[0]}] if free else []
    for name in kept:
        if name not in free:
            alternatives += _left_of(name, [value for value in values if has_type(value, [name])])
    if not alternatives:
        raise ValueError("`not` excludes all values that there are")
    without_type = {key: value for key, value in rest.items() if key != "type"}
    return with_alternatives(without_type, alternatives)


def _excluded(schema: object, root: object) -> tuple[list[Any], tuple[str, ...]]:
    """The values and the types that a `not` speaks of."""
    values = listed_values(schema, root)
    if values is not None:
        if len(values) > MAX_EXCLUDED:
            raise ValueError(f"`not` of {len(values)} values is over the limit of {MAX_EXCLUDED}")
        return values, ()
    if isinstance(schema, Mapping) and "type" in schema and schema.keys() - _ANNOTATIONS == {"type"}:
        types = types_of_schema(schema)
        return [], (*types, "integer") if "number" in types else types
    raise ValueError('unimplemented key: "not" is supported for constants, enumerations and types only')


def _left_of(name: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    """Schemas for the values of a type but these."""
    match name:
        case "null":
            return []
        case "boolean":
            return [{"enum": [value for value in (False, True) if value not in values]}] if len(values) < 2 else []
        case "string":
            return [{"type": "string", "pattern": _other_text(values)}]
        case "integer":
            return _gaps(sorted(int(value) for value in values))
        case "number":
            return _real_gaps(sorted(values))
    raise ValueError(f'unimplemented key: "not" of constants that are {"objects" if name == "object" else "arrays"}')


def _gaps(values: Sequence[int]) -> list[dict[str, Any]]:
    """The integers between these, below and above."""
    found: list[dict[str, Any]] = [{"type": "integer", "maximum": values[0] - 1}]
    for low, high in itertools.pairwise(values):
        if high - low > 1:
            found.append({"type": "integer", "minimum": low + 1, "maximum": high - 1})
    return [*found, {"type": "integer", "minimum": values[-1] + 1}]


def _real_gaps(values: Sequence[float]) -> list[dict[str, Any]]:
    inner = [
        {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        for low, high in itertools.pairwise(values)
    ]
    below: dict[str, Any] = {"type": "number", "exclusiveMaximum": values[0]}
    return [below, *inner, {"type": "number", "exclusiveMinimum": values[-1]}]


def _other_text(values: Sequence[str]) -> str:
    """A pattern of all texts but these: each way to leave them, by the beginning that is shared with one."""
    if max(map(len, values)) > MAX_EXCLUDED_TEXT:
        raise ValueError(f"`not` of a text of more than {MAX_EXCLUDED_TEXT} characters is over the limit")
    if any(mark in value for mark in '"\\' for value in values):  # the compiler's [^"] takes an escaped one
        raise ValueError("`not` of a text with a quotation mark or a backslash is not supported")
    following: dict[str, set[str]] = {"": set()}
    for value in values:
        for length, character in enumerate(value):
            following.setdefault(value[:length], set()).add(character)
        following.setdefault(value, set())
    whole = frozenset(values)
    ways = []
    for beginning, characters in following.items():
        other = f"[^{''.join(map(_escaped, sorted(characters)))}]" if characters else "(?s:.)"
        rest = f"{other}(?s:.)*"
        ways.append("".join(map(_escaped, beginning)) + (rest if beginning in whole else f"({rest})?"))
    return f"^({'|'.join(ways)})$"


def _escaped(character: str) -> str:
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):X}}}"


def with_condition(schema: Mapping[str, Any], root: object) -> dict[str, Any]:
    """Without `if`, `then` and `else`: either the condition and `then` hold, or its opposite and `else`."""
    rest = {key: value for key, value in schema.items() if key not in ("if", "then", "else")}
    condition, then, otherwise = schema.get("if"), schema.get("then", True), schema.get("else", True)
    if "if" not in schema or isinstance(condition, bool):
        chosen = True if "if" not in schema else then if condition else otherwise
        return rest if chosen is True else {**rest, "allOf": [*(rest.get("allOf") or ()), chosen]}
    if then is True and otherwise is True:
        return rest
    alternatives = [_both(condition, then)]
    alternatives += [_both(opposite, otherwise) for opposite in _opposites(condition, rest, root)]
    return with_alternatives(rest, alternatives)


def _both(first: Any, second: Any) -> dict[str, Any]:
    return dict(first) if second is True or second == {} else {"allOf": [first, second]}


def _opposites(condition: object, rest: Mapping[str, Any], root: object) -> list[dict[str, Any]]:
    """What holds, one or the other, where the condition does not: of properties with constants, and required ones."""
    known = {"properties", "required", "type"} | _ANNOTATIONS
    if not isinstance(condition, Mapping) or condition.keys() - known or condition.get("type", "object") != "object":
        raise ValueError('unimplemented key: "if" is supported for constants of properties and for required ones only')
    found: list[dict[str, Any]] = []
    properties_of_rest = rest.get("properties") if isinstance(rest.get("properties"), Mapping) else {}
    properties = condition.get("properties", {})
    for name, part in properties.items() if isinstance(properties, Mapping) else ():
        if listed_values(part, root) is None:
            raise ValueError(f'unimplemented key: "if" is supported for constants only, not for those of {name!r}')
        same = properties_of_rest.get(name) if isinstance(properties_of_rest, Mapping) else None
        listed = listed_values(same, root)
        excluded = {"not": part} if listed is None else {"enum": listed, "not": part}
        try:
            other = without_excluded(excluded, root)
        except ValueError:
            continue  # the property has no other value
        found.append({"type": "object", "properties": {name: other}, "required": [name]})
    always = rest.get("required")
    needed = condition.get("required", [])
    absent = [name for name in needed if not isinstance(always, list) or name not in always]
    found += [{"type": "object", "properties": {name: False}} for name in absent if isinstance(name, str)]
    if "type" in condition and types_of_schema(rest) != ("object",):
        found.append({"type": [name for name in TYPES if name not in ("object", "integer")]})
    return found


def with_named_properties(schema: Mapping[str, Any], root: object) -> dict[str, Any]:
    """Without `propertyNames`: names that are listed become properties, and a pattern one of `patternProperties`."""
    rest = {key: value for key, value in schema.items() if key != "propertyNames"}
    names = schema["propertyNames"]
    rule = {key: value for key, value in names.items() if key not in _ANNOTATIONS} if isinstance(names, dict) else names
    if rule is True or rule in ({}, {"type": "string"}):
        return rest  # every name is a text
    if not {"properties", "patternProperties"}.isdisjoint(rest):
        raise ValueError('unimplemented key: "propertyNames" is not supported beside properties or patternProperties')
    value, closed = rest.get("additionalProperties", True), {**rest, "additionalProperties": False}
    listed = listed_values(names, root)
    if listed is not None:
        if len(listed) * len(json.dumps(value)) > MAX_WRITTEN:
            message = f"propertyNames over {len(listed)} names takes more than {MAX_WRITTEN} characters, the limit"
            raise ValueError(message)
        return closed | {"properties": {name: value for name in listed if isinstance(name, str)}}
    pattern = _pattern_of(rule) if isinstance(rule, dict) and rule.pop("type", "string") == "string" else None
    if pattern is None:
        message = 'unimplemented key: "propertyNames" is supported for an enum, a const, a pattern or lengths only'
        raise ValueError(message)
    return closed | {"patternProperties": {with_written_classes(pattern): value}}


def _pattern_of(rule: Mapping[str, Any]) -> str | None:
    """The pattern of texts with a pattern or with lengths; None: the rule asks for more."""
    if rule.keys() == {"pattern"}:
        return rule["pattern"] if isinstance(rule["pattern"], str) else None
    least, most = rule.get("minLength", 0), rule.get("maxLength", "")
    is_said = type(least) is int and (most == "" or type(most) is int) and not rule.keys() - {"minLength", "maxLength"}
    return f"^(?s:.){{{least},{most}}}$" if is_said else None


# A text of such characters alone is not allowed: pydantic writes it for decimals, and others for what is not blank.
_NOT_ALONE = re.compile(
    r"\^\(\?!\^?(?:\[(?P<set>(?:[^]\\^]|\\.)(?:[^]\\]|\\.)*)]|\\s)\*\$\)(?P<rest>[^|]*)\Z", re.DOTALL
)


def with_plain_pattern(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without a look-ahead against texts of certain characters alone: another character must be there."""
    found = _NOT_ALONE.match(schema["pattern"]) if isinstance(schema.get("pattern"), str) else None
    if found is None:
        return dict(schema)
    other = r"\S" if found["set"] is None else with_written_classes(f"[^{found['set']}]")
    others = schema.get("allOf")
    all_of = [*(others if isinstance(others, list) else ()), {"pattern": other}]
    return {**schema, "pattern": f"^{found['rest']}", "allOf": all_of}


def without_unevaluated(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without `unevaluatedProperties` and `unevaluatedItems`, where they allow all, or where no other keyword describes
    properties and items in another place."""
    part = dict(schema)
    for key, plain in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if part.get(key) in (True, {}):
            del part[key]
        elif key in part and _ELSEWHERE.isdisjoint(part):
            part.setdefault(plain, part.pop(key))
    return part


def with_countable_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Bounds of 64-bit integers and of floating point numbers: one that the compiler cannot count with becomes the
    last that it can, within."""
    low = {key: LOWEST_INTEGER for key in _LOWER_BOUNDS if _is_low(schema.get(key))}
    is_above = any(_is_high(schema.get(key)) for key in _LOWER_BOUNDS)
    if is_above or "number" not in types_of_schema(schema):
        return {**schema, **low}
    return {**schema, **low, **{key: HIGHEST_REAL for key in _UPPER_BOUNDS if _is_high(schema.get(key))}}


def _is_low(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < LOWEST_INTEGER


def _is_high(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > HIGHEST_REAL


def has_low_constant(value: object) -> bool:
    """Whether a constant holds an integer that ends the compiler's process."""
    open_ones = [value]
    while open_ones:
        one = open_ones.pop()
        if isinstance(one, int) and _is_low(one):
            return True
        open_ones += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return False
