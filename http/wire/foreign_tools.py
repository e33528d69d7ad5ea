"""Definitions of tools as other APIs than chat write them."""

from collections.abc import Collection, Mapping
from typing import Any

from palladio.runtime.interface.errors import InvalidRequestError


def check_tool_fields(
    tool: Mapping[str, Any], path: str, known: Collection[str], neutral: Mapping[str, object]
) -> None:
    """
    Args:
        path: of the tool in the request.
        known: fields that take effect.
        neutral: values of other fields that ask for nothing.

    Raises:
        InvalidRequestError: a field that is not known has another value.
    """
    for name, value in tool.items():
        if name not in known and (name not in neutral or value != neutral[name]):
            field = f"{path}.{name[:200]}"
            raise InvalidRequestError(f"not supported yet: {field}", param=field, code="unsupported_parameter")
