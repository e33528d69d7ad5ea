"""How long a value's JSON must be at least, by the counts of its schema."""

from collections.abc import Callable, Mapping
from typing import Any

from palladio.runtime.text.schemas.json_schemas import resolve_reference
from palladio.runtime.text.schemas.json_values import types_of_schema

VALUE_SIZE = 8  # characters that a value counts as, whatever it is, with its separators
_MOST = 10**15  # larger sizes count as this one
_COUNTED = {"minLength": "string", "pattern": "string", "minItems": "array", "minProperties": "object"}


class LeastSizes:
    """The least sizes of a schema's parts, in characters. Each part is looked at once, however often it is referred to.

    A part that names no type is taken for what its counts are about.

    Args:
        root: the schema.
        forced_length: characters that the counts of a pattern ask for.
    """

    def __init__(self, root: object, forced_length: Callable[[str], int]) -> None:
        self._root = root
        self._forced_length = forced_length
        self._known: dict[int, int] = {}

    def of(self, part: object) -> int:
        """The least characters of a value of this part of the schema."""
        if not isinstance(part, Mapping):
            return VALUE_SIZE
        if id(part) not in self._known:
            self._known[id(part)] = VALUE_SIZE  # where it holds itself
            self._known[id(part)] = min(self._of(part), _MOST)
        return self._known[id(part)]

    def _of(self, part: Mapping[str, Any]) -> int:
        types = types_of_schema(part) if "type" in part else {_COUNTED[key] for key in _COUNTED if key in part}
        sizes = [min((self._of_type(part, name) for name in types), default=VALUE_SIZE)]
        if isinstance(part.get("$ref"), str):
            sizes.append(self.of(resolve_reference(self._root, part["$ref"])))
        for key, choose in (("anyOf", min), ("oneOf", min), ("allOf", max)):
            branches = part.get(key)
            if isinstance(branches, list) and branches:
                sizes.append(choose(self.of(branch) for branch in branches))
        return max(sizes)

    def _of_type(self, part: Mapping[str, Any], name: object) -> int:
        match name:
            case "string":
                pattern = part.get("pattern")
                forced = self._forced_length(pattern) - len(pattern) if isinstance(pattern, str) else 0
                return max(VALUE_SIZE, _count(part, "minLength"), forced)
            case "array":
                return max(VALUE_SIZE, self._of_array(part))
            case "object":
                return max(VALUE_SIZE, self._of_object(part))
        return VALUE_SIZE

    def _of_array(self, part: Mapping[str, Any]) -> int:
        count, first = _count(part, "minItems"), part.get("prefixItems")
        given = first[:count] if isinstance(first, list) else []
        rest = self.of(part.get("items")) if count > len(given) else 0
        return sum(map(self.of, given)) + (count - len(given)) * rest

    def _of_object(self, part: Mapping[str, Any]) -> int:
        properties, required = part.get("properties"), part.get("required")
        known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        others = max(0, _count(part, "minProperties") - len(names))
        name_of_others = part.get("propertyNames")
        name_size = self._of_type(name_of_others, "string") if isinstance(name_of_others, Mapping) else VALUE_SIZE
        each = VALUE_SIZE if known else self.of(part.get("additionalProperties"))
        return sum(self.of(known.get(name)) for name in names) + others * (name_size + each)


def _count(part: Mapping[str, Any], key: str) -> int:
    value = part.get(key)
    return value if isinstance(value, int) else 0
