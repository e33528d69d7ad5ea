"""Objects of a JSON schema that allow no properties but the listed ones, though the schema does not say so.

xgrammar's strict mode, SGLang's default, reads schemas like this. A small model that may add properties goes on adding
them. An object stays open where closing it could leave no value at all: where another schema holds for the same value.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from palladio.runtime.text.schemas.json_schemas import all_schemas, resolve_reference, schema_parts

_BRANCHES = ("allOf", "anyOf", "oneOf")
_CONDITIONS = ("not", "if", "then", "else")
# Keywords that restrict a value, apart from its type and its bounds.
_RESTRICTING = frozenset(
    {"$ref", "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"}
    | {"required", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "enum", "const"}
    | {"items", "prefixItems", *_BRANCHES, *_CONDITIONS}
)
_KEEPS_OPEN = _RESTRICTING & {
    *("$ref", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames", "enum", "const")
}


def closed_objects(root: object) -> frozenset[int]:
    """The `id` of each schema within the root (and the root's) that is to forbid properties that it does not list."""
    shared = _shared(root)
    return frozenset(id(part) for _, part in all_schemas(root) if id(part) not in shared and _can_close(part))


def _can_close(part: Mapping[str, Any]) -> bool:
    names = part.get("properties")
    if not isinstance(names, Mapping) or not _KEEPS_OPEN.isdisjoint(part):
        return False
    least = part.get("minProperties")
    if isinstance(least, int) and least > len(names):
        return False
    return _keeps_to(names, {key: value for key, value in part.items() if key != "properties"})


def _keeps_to(names: Mapping[str, Any], part: object) -> bool:
    """Whether the other keywords name no further properties."""
    if not isinstance(part, Mapping):
        return True
    required, properties = part.get("required"), part.get("properties")
    if isinstance(required, list) and any(isinstance(name, str) and name not in names for name in required):
        return False
    if isinstance(properties, Mapping) and not properties.keys() <= names.keys():
        return False
    if not _KEEPS_OPEN.isdisjoint(part):
        return False
    return all(_keeps_to(names, branch) for branch in _branches(part))


def _branches(part: Mapping[str, Any]) -> Iterator[object]:
    """Schemas within it that hold, or may hold, for the same value."""
    for key in _BRANCHES:
        yield from part[key] if isinstance(part.get(key), list) else ()
    yield from (part[key] for key in _CONDITIONS if key in part)
    dependent = part.get("dependentSchemas")
    yield from dependent.values() if isinstance(dependent, Mapping) else ()


def _shared(root: object) -> set[int]:
    """The schemas that hold for a value together with others, and all within them."""
    open_ones: list[object] = []
    for _, part in all_schemas(root):
        saying = _RESTRICTING & part.keys()
        is_choice = len(saying) == 1 and not _is_several(part.get("allOf"))
        open_ones += [branch for branch in _branches(part) if not (is_choice and _is_reference(branch))]
        if "$ref" in saying and len(saying) > 1:
            open_ones.append(_target(root, part))
    found: set[int] = set()
    while open_ones:
        one = open_ones.pop()
        if not isinstance(one, Mapping) or id(one) in found:
            continue
        found.add(id(one))
        open_ones += [inner for _, inner in schema_parts(one)]
        open_ones.append(_target(root, one))
    return found


def _is_reference(part: object) -> bool:
    """Whether it is an alternative that stands in a place of its own, such as a model of a union."""
    return isinstance(part, Mapping) and _RESTRICTING & part.keys() == {"$ref"}


def _is_several(branches: object) -> bool:
    return isinstance(branches, list) and len(branches) > 1


def _target(root: object, part: Mapping[str, Any]) -> object:
    return resolve_reference(root, part["$ref"]) if isinstance(part.get("$ref"), str) else None
