"""Reading values of JSON whose form no wire model says."""

from typing import Any, TypeVar

from palladio.runtime.interface.errors import InvalidRequestError

T = TypeVar("T")


def typed(value: object, kind: type[T], path: str, what: str) -> T:
    """The value, which has to be of this type.

    Args:
        path: of the field.
        what: it has to be, in words.

    Raises:
        InvalidRequestError: it is not.
    """
    if not isinstance(value, kind):
        raise InvalidRequestError.of("{param} must be {what}", param=path, what=what)
    return value


def without_nulls(value: object, path: str, what: str) -> dict[str, Any]:
    """The fields of an object; those that are null are not given.

    Raises:
        InvalidRequestError: it is no object.
    """
    return {name: field for name, field in typed(value, dict, path, what).items() if field is not None}
