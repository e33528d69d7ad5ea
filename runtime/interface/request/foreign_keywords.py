"""What becomes of sampling parameters, and of keywords of `Engine`'s methods, that only other servers have."""

from collections.abc import Mapping

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.foreign_fields import METADATA, NOT_YET, judge


def refuse_parameter(name: str, value: object) -> None:
    """Of a sampling parameter that is unknown; a value that asks for nothing passes.

    Raises:
        InvalidRequestError: in the words that a route has for it.
    """
    if name not in NOT_YET and name not in METADATA:
        raise InvalidRequestError.of("unknown sampling parameter {name!r}", param=name, name=name)
    refusal = judge(name, value, (), tuple)
    if refusal is not None:
        raise refusal.error


def refuse_keywords(method: str, given: Mapping[str, object]) -> None:
    """Of keywords that a method of `Engine` does not have; those that ask for nothing pass.

    Raises:
        InvalidRequestError: other servers have it; in the words that a route has for it.
        TypeError: nobody has it, as Python says.
    """
    for name, value in given.items():
        if name not in NOT_YET and name not in METADATA:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        if value is not None:
            refuse_parameter(name, value)
