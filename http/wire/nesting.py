"""Reading the JSON of requests. What holds too much, or is nested too deeply, is refused where it comes in: nothing
else runs while JSON is read, and much that walks it calls itself."""

from typing import Any

import orjson

from palladio.http.wire.json_cost import NESTED_VALUES, JsonMeter, values_message
from palladio.runtime.interface.errors import InvalidRequestError

MAX_DEPTH = 128

_CONTAINERS = frozenset((dict, list))


def read_json(
    text: str | bytes,
    what: str = "",
    *,
    param: str | None = None,
    code: str | None = None,
    meter: JsonMeter | None = None,
    is_counted: bool = False,
) -> Any:
    """The value that a JSON text of a request stands for.

    Args:
        what: the text, in messages; not needed with `param`, whose path says it.
        param, code: of the errors.
        meter: counts what it holds, with what it has counted before; default: NESTED_VALUES are allowed.
        is_counted: that has been done.

    Raises:
        InvalidRequestError: it is malformed, holds too much, or is nested deeper than MAX_DEPTH.
    """
    fields = {} if param is None else {"what": param}
    if not is_counted:
        meter = meter or JsonMeter(NESTED_VALUES)
        if meter.exceeds(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text):
            rest = values_message("", meter.limit)
            raise InvalidRequestError.of("{what}{rest}", param=param, code=code, fields=fields, what=what, rest=rest)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        if "limit" not in exc.msg:  # orjson has one of its own, which is higher
            message = "{what} is not valid JSON: {why}"
            error = InvalidRequestError.of(message, param=param, code=code, fields=fields, what=what, why=exc)
            raise error from None
    else:
        if not _is_too_deep(text, value):
            return value
    message = "{what} is nested deeper than {most} levels of objects and lists"
    raise InvalidRequestError.of(message, param=param, code=code, fields=fields, what=what, most=MAX_DEPTH)


def _is_too_deep(text: str | bytes, value: Any) -> bool:
    """Level by level: the time goes with the number of values, whatever strings hold."""
    num_openings = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    if num_openings <= MAX_DEPTH:
        return False
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return False
        values = (outer.values() if isinstance(outer, dict) else outer for outer in level if outer)
        level = [inner for inside in values for inner in inside if type(inner) in _CONTAINERS]
    return True
