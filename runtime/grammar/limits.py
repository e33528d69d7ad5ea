"""What a grammar may ask of the compiler: bounds that are looked at before it is compiled.

An object's optional properties are items in each row of the parser, whose work grows with their square.
"""

import re
from collections.abc import Mapping

from palladio.runtime.grammar.schema_multiples import check_multiples
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.text.schemas.json_schemas import all_schemas
from palladio.runtime.text.schemas.least_sizes import LeastSizes
from palladio.runtime.text.schemas.schema_emulation import LOWEST_INTEGER, has_low_constant

_COUNT = re.compile(r"\{(\d+)")


def forced_length(pattern: str) -> int:
    """An upper bound of the characters that a regular expression leaves no choice about, by its counts alone.

    Each character counts once, times the least counts of all that it stands in. Notations that write counts alike
    (Lark, GBNF) can be asked about too; what their rules refer to is not followed.
    """
    groups: list[list[int]] = [[]]  # of each open group: the lengths of its parts
    position = 0
    while position < len(pattern):
        character = pattern[position]
        count = _COUNT.match(pattern, position) if character == "{" else None
        if character == "\\":
            groups[-1].append(1)
            position += 2
            continue
        if character == "(":
            groups.append([])
        elif character == ")" and len(groups) > 1:
            inner = sum(groups.pop())
            groups[-1].append(inner)
        elif count is not None and groups[-1]:
            groups[-1][-1] *= max(1, int(count[1][:12]))
            position = max(pattern.find("}", position), position)
        else:
            groups[-1].append(1)
        position += 1
    return sum(sum(parts) for parts in groups)


MAX_LEAST_CHARACTERS = 1 << 18  # that the counts of a schema ask for
MAX_OPTIONAL = 1000  # properties of one object


def check_schema_limits(schema: object, where: str, param: str, inside: str = "") -> None:
    """
    Args:
        where: what the message says before the JSON pointer: a template of `param`.
        param: the field to blame.
        inside: the place of the schema in it.

    Raises:
        InvalidRequestError: the schema asks for too much.
    """
    try:
        _check_constants(schema)
        check_multiples(schema)
        _check_optional(schema)
        _check_sizes(schema)
    except ValueError as error:
        raise InvalidRequestError.of(where + "{inside} at {error}", param=param, inside=inside, error=error) from None


def _check_constants(schema: object) -> None:
    """The compiler's process ends where it is to write an integer that is lower than those it can count with."""
    for path, part in all_schemas(schema):
        for key in ("const", "enum"):
            if has_low_constant(part.get(key)):
                raise ValueError(f"{path}/{key}: an integer below {LOWEST_INTEGER} is not supported: use a text")


def _check_optional(schema: object) -> None:
    for path, part in all_schemas(schema):
        properties = part.get("properties")
        if isinstance(properties, Mapping) and len(properties) > MAX_OPTIONAL:
            required = part.get("required")
            names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
            num_optional = len(properties.keys() - names)
            if num_optional > MAX_OPTIONAL:
                raise ValueError(
                    f"{path}: the object has {num_optional} optional properties, over the limit of {MAX_OPTIONAL}: "
                    "require some of them, or put them into objects of their own"
                )


def _check_sizes(schema: object) -> None:
    """No output could ever be as long as such counts ask for."""
    sizes = LeastSizes(schema, forced_length)
    large = [(path, size) for path, part in all_schemas(schema) if (size := sizes.of(part)) > MAX_LEAST_CHARACTERS]
    if large:
        path, size = max(large, key=lambda found: found[0].count("/"))
        raise ValueError(
            f"{path}: its minimum counts ask for about {size} characters or more, over the limit of "
            f"{MAX_LEAST_CHARACTERS}: lower minLength, minItems, minProperties or those of a pattern"
        )
