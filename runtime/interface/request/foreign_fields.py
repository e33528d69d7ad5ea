"""What becomes of fields that a route, or a method of `Engine`, does not have."""

import dataclasses
import difflib
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.field_tables import (
    BUDGET_FIELDS,
    EMBEDS_FIELDS,
    GRAMMAR_FIELDS,
    METADATA,
    NOT_YET,
    OF_OTHER_ROUTES,
    TOOL_FIELDS,
    NotYet,
)

_PLAIN = NotYet()


def verdicts(
    known: Iterable[str], *, has_grammars: bool, has_reasoning: bool, has_tools: bool, has_embeds: bool
) -> dict[str, str]:
    """What becomes of each field of a request with a body: applied, metadata or refused; any other one is unknown.

    Args:
        known: names of the implemented fields.
        has_grammars: the server compiles grammars.
        has_reasoning: it knows how the model reasons.
        has_tools: conversations take tools.
        has_embeds: the engine takes prompts of embeddings.
    """
    names = frozenset(known)
    missing = (frozenset() if has_grammars else GRAMMAR_FIELDS) | (frozenset() if has_reasoning else BUDGET_FIELDS)
    missing |= frozenset() if has_embeds else EMBEDS_FIELDS
    if not has_tools and "tool_choice" in names:  # a parser on its own writes none
        missing |= TOOL_FIELDS
    applied = {name: "refused" if name in missing else "applied" for name in names}
    return dict.fromkeys(NOT_YET, "refused") | dict.fromkeys(METADATA, "metadata") | applied


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Attributes:
    is_final: the request must not be answered as if the field were not there.
    """

    error: InvalidRequestError
    is_final: bool


def check_field(
    name: str, value: object, known: Collection[str], elsewhere: Callable[[], Collection[str]], where: str = ""
) -> Refusal | None:
    """Check a field that a route does not have; returns None if it asks for nothing.

    Args:
        known: names of the fields that the route has.
        elsewhere: gives the names of all routes' fields.
        where: path of the object within the request, such as "sampling_params.".
    """
    if name in METADATA:
        return None
    path = f"{where}{name[:200]}"
    rule = NOT_YET.get(name)
    if rule is not None:
        hint = f" ({rule.instead})" if rule.instead else ""
        message = "not supported yet: {param}{hint}"
        error = InvalidRequestError.of(message, param=path, hint=hint, code="unsupported_parameter")
        return None if rule.passes(value) else Refusal(error, is_final=True)
    is_elsewhere = name in elsewhere()
    if is_elsewhere and OF_OTHER_ROUTES.get(name, _PLAIN).passes(value):
        return None
    meant = find_misspelt(name, known)
    if meant is None and not is_elsewhere:  # such as one of an object of this route
        meant = find_misspelt(name, elsewhere(), ())
    close = [meant] if meant is not None else difflib.get_close_matches(name[:80], [*known, *METADATA], n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    error = InvalidRequestError.of("unknown field: {param}{hint}", param=path, hint=hint, code="unknown_parameter")
    return Refusal(error, is_final=is_elsewhere or meant is not None)


_LONGEST_NAME = 64


def find_misspelt(name: str, known: Iterable[str], others: Iterable[str] = (*METADATA, *NOT_YET)) -> str | None:
    """The field that was meant by a name at most two letters from it, of a short one of four letters one; None: none
    was. Names of up to three letters are close to too many words."""
    found: dict[int, str] = {}
    if len(name) <= _LONGEST_NAME:
        for other in (*known, *others):
            most = 2 if len(other) > 4 else len(other) - 3
            if most > 0 and abs(len(name) - len(other)) <= most and _share_a_part(name, other, most):
                distance = _distance(name, other)
                if distance <= most:
                    found.setdefault(distance, other)
    return found[min(found)] if found else None


def _share_a_part(name: str, other: str, most: int) -> bool:
    """Whether one of most + 1 parts of a name is in the other, as after `most` changes one part is left unchanged. This
    rules most names out quickly."""
    cuts = [len(other) * part // (most + 1) for part in range(most + 2)]
    return any(other[begin:end] in name for begin, end in itertools.pairwise(cuts))


def _distance(left: str, right: str) -> int:
    """How many letters must be put in, left out or changed."""
    row = list(range(len(right) + 1))
    for position, letter in enumerate(left, start=1):
        above, row = row, [position]
        for column, other in enumerate(right, start=1):
            row.append(min(above[column] + 1, row[-1] + 1, above[column - 1] + (letter != other)))
    return row[-1]


def refuse_parameter(name: str, value: object) -> None:
    """Refuse an unknown sampling parameter; a value that asks for nothing passes.

    Raises:
        InvalidRequestError: in the words that a route has for it.
    """
    if name not in NOT_YET and name not in METADATA:
        raise InvalidRequestError.of("unknown sampling parameter {name!r}", param=name, name=name)
    refusal = check_field(name, value, (), tuple)
    if refusal is not None:
        raise refusal.error


def refuse_keywords(method: str, given: Mapping[str, object]) -> None:
    """Refuse keywords that a method of `Engine` does not have; a value that asks for nothing passes.

    Raises:
        InvalidRequestError: other servers have it; in the words that a route has for it.
        TypeError: no server has it, as Python says.
    """
    for name, value in given.items():
        if name not in NOT_YET and name not in METADATA:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        if value is not None:
            refuse_parameter(name, value)
