"""Bounds of `multipleOf` in JSON schemas.

It becomes an automaton with a state for each remainder, and schemas that hold for one number together become one with a
state for each remainder of their least common multiple. The compiler does not bound that, and cannot be interrupted.
"""

import decimal
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from palladio.runtime.text.schemas.json_schemas import all_schemas, escape_pointer, resolve_reference

MAX_MULTIPLE = 10_000  # without its decimal point
MAX_MULTIPLES = 50_000  # all different ones of a schema together
MAX_DECIMALS = 9
_MAX_DEPTH = 64  # of references, and of places, that are followed
_MAX_LOOKS = 10_000  # at schemas that hold together, in one schema


class _Multiple(NamedTuple):
    """digits / 10 ** decimals"""

    digits: int
    decimals: int

    @classmethod
    def of(cls, value: object) -> Self | None:
        """None: it is no positive number, which is for the compiler to refuse."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            return None
        parts = decimal.Decimal(repr(value)).normalize().as_tuple()
        exponent = int(parts.exponent)
        digits = int("".join(map(str, parts.digits)))
        return cls(digits * 10 ** min(exponent, MAX_DECIMALS), 0) if exponent >= 0 else cls(digits, -exponent)

    @property
    def is_over(self) -> bool:
        return self.digits > MAX_MULTIPLE or self.decimals > MAX_DECIMALS


_LIMIT = f"over the limit of {MAX_MULTIPLE} (counted without the decimal point, of at most {MAX_DECIMALS} decimals)"


def check_multiples(root: object) -> None:
    """
    Raises:
        ValueError: the compiler would have too many remainders to count; the message begins with the place.
    """
    found: set[_Multiple] = set()
    for path, part in all_schemas(root):
        multiple = _Multiple.of(part.get("multipleOf"))
        if multiple is not None and multiple.is_over:
            raise ValueError(f"{path}: multipleOf {part['multipleOf']} is {_LIMIT}: round it, or check it afterwards")
        found |= {multiple} if multiple is not None else set()
    total = sum(multiple.digits for multiple in found)
    if total > MAX_MULTIPLES:
        raise ValueError(
            f"#: the values of multipleOf add up to {total} (without decimal points), over the limit of "
            f"{MAX_MULTIPLES}: use fewer, or lower, values"
        )
    if len(found) > 1:
        together = _Together(root)
        for path, part in all_schemas(root):
            together.check(path, [part])


class _Together:
    """Looks for the multiples that hold for one value together."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._num_looks = 0

    def check(self, path: str, schemas: Sequence[object], depth: int = 0) -> None:
        """
        Args:
            schemas: all of which hold for the value at `path`.

        Raises:
            ValueError: their least common multiple is too large.
        """
        flat, groups = self._flatten(schemas)
        base = _common(flat)
        inner = [[self._of_branch(branch) for branch in group] for group in groups]
        if len(inner) == 1:
            worst = max((_least([base, branch]) for branch in inner[0]), default=base)
        else:  # alternatives combine in as many ways as there are; all at once is no less
            worst = _least([base, *(branch for group in inner for branch in group)])
        if worst.is_over:
            raise ValueError(
                f"{path}: the least common multiple of the multipleOf that hold together is {worst.digits}, {_LIMIT}: "
                "use fewer, or lower, values"
            )
        if len(flat) > 1 and depth < _MAX_DEPTH:
            for name, parts in _shared_places(flat):
                self.check(f"{path}/{name}", parts, depth + 1)

    def _of_branch(self, branch: object) -> _Multiple:
        """The least common multiple of one alternative, with all of the alternatives in it."""
        flat, groups = self._flatten([branch])
        inner = [self._flatten(group)[0] for group in groups]
        return _least([_common(flat), *map(_common, inner)])

    def _flatten(self, schemas: Sequence[object]) -> tuple[list[Mapping[str, Any]], list[list[object]]]:
        """The schemas that hold for the same value, through allOf and references; and the lists of alternatives."""
        flat: dict[int, Mapping[str, Any]] = {}
        groups: list[list[object]] = []
        open_ones = list(schemas)
        while open_ones:
            schema = open_ones.pop()
            if not isinstance(schema, Mapping) or id(schema) in flat:
                continue
            self._num_looks += 1
            if self._num_looks > _MAX_LOOKS:
                raise ValueError("#: too many schemas hold together to find their least common multipleOf")
            flat[id(schema)] = schema
            open_ones += schema["allOf"] if isinstance(schema.get("allOf"), list) else []
            if isinstance(schema.get("$ref"), str):
                open_ones.append(resolve_reference(self._root, schema["$ref"]))
            groups += [schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
        return list(flat.values()), groups


def _common(schemas: Iterable[Mapping[str, Any]]) -> _Multiple:
    found = [_Multiple.of(schema.get("multipleOf")) for schema in schemas]
    return _least([multiple for multiple in found if multiple is not None])


def _least(multiples: Sequence[_Multiple]) -> _Multiple:
    """The least common multiple; 0 of none."""
    given = [multiple for multiple in multiples if multiple.digits]
    if not given:
        return _Multiple(0, 0)
    decimals = max(multiple.decimals for multiple in given)
    return _Multiple(math.lcm(*(one.digits * 10 ** (decimals - one.decimals) for one in given)), decimals)


def _shared_places(flat: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[object]]]:
    """The places in a value that more than one of the schemas says something about."""
    places: dict[str, list[object]] = {}
    for schema in flat:
        if isinstance(schema.get("properties"), Mapping):
            for name, part in schema["properties"].items():
                places.setdefault(f"properties/{escape_pointer(str(name))}", []).append(part)
        if "items" in schema:
            places.setdefault("items", []).append(schema["items"])
    yield from ((path, parts) for path, parts in places.items() if len(parts) > 1)
