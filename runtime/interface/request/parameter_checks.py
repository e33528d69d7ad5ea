"""Checks of single parameters: numbers, lengths, token ids, stop strings and patterns."""

import math

from palladio.runtime.interface.errors import InvalidRequestError


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_int(name: str, value: object, low: int, high: int | None) -> None:
    """
    Raises:
        InvalidRequestError: not an integer, or not in low … high (None: no limit).
    """
    if not is_int(value) or value < low or (high is not None and value > high):  # type: ignore[operator]
        bounds = f"an integer ≥ {low}" if high is None else f"an integer in [{low}, {high}]"
        raise InvalidRequestError.of("{param} must be {bounds}, got {value!r}", param=name, bounds=bounds, value=value)


def check_float(name: str, value: object, low: float, high: float | None, *, open_low: bool = False) -> None:
    """
    Raises:
        InvalidRequestError: not a finite number, or not in low … high (None: no limit; `open_low`: low is not in).
    """
    if (
        not is_number(value)
        or value < low  # type: ignore[operator]
        or (open_low and value == low)
        or (high is not None and value > high)  # type: ignore[operator]
    ):
        bounds = f"a number {'>' if open_low else '≥'} {low:g}" + ("" if high is None else f" and ≤ {high:g}")
        raise InvalidRequestError.of("{param} must be {bounds}, got {value!r}", param=name, bounds=bounds, value=value)


MAX_STOP_STRINGS = 64
MAX_STOP_LENGTH, MAX_STOP_CHARACTERS = 4096, 16_384  # of one stop string, and of all: their search is made beforehand
STOP_REGEX = "stop_regex"
MAX_STOP_PATTERNS = 8
MAX_PATTERN = 256  # characters
MAX_LOGPROB_IDS = 128  # columns that the programs compute for each row
MAX_STOP_TOKEN_IDS = 64  # entries of the row of ids that min_tokens suppresses
MAX_ALLOWED_IDS = 1 << 14  # each of a request's samples is told all of them


def check_lengths(min_tokens: int, max_tokens: int | None) -> None:
    """
    Raises:
        InvalidRequestError: min_tokens is over max_tokens.
    """
    if max_tokens is not None and min_tokens > max_tokens:
        message, names = "{param} ({least}) must not be over {limit} ({most})", {"limit": "max_tokens"}
        raise InvalidRequestError.of(message, param="min_tokens", fields=names, least=min_tokens, most=max_tokens)


def read_stop_strings(value: object) -> tuple[str, ...]:
    """
    Raises:
        InvalidRequestError: they are none, too many or too long.
    """
    stop = [value] if isinstance(value, str) else value
    if not isinstance(stop, list | tuple) or not all(isinstance(string, str) and string for string in stop):
        raise InvalidRequestError.of("{param} must be a non-empty string or a list of them", param="stop")
    if len(stop) > MAX_STOP_STRINGS:
        message = "{param} takes at most {most} strings, got {count}"
        raise InvalidRequestError.of(message, param="stop", most=MAX_STOP_STRINGS, count=len(stop))
    if (longest := max(map(len, stop), default=0)) > MAX_STOP_LENGTH:
        message = "{param} takes strings of at most {most} characters, got one of {longest}"
        raise InvalidRequestError.of(message, param="stop", most=MAX_STOP_LENGTH, longest=longest)
    if (size := sum(map(len, stop))) > MAX_STOP_CHARACTERS:
        message = "{param} takes strings of at most {most} characters together, got {size}"
        raise InvalidRequestError.of(message, param="stop", most=MAX_STOP_CHARACTERS, size=size)
    return tuple(stop)


def read_stop_ids(value: object) -> tuple[int, ...]:
    """
    Raises:
        InvalidRequestError: they are no ids, or too many.
    """
    name = "stop_token_ids"
    if not isinstance(value, list | tuple) or not set(map(type, value)) <= {int} or (value and min(value) < 0):
        raise InvalidRequestError.of("{param} must be a list of token ids ≥ 0", param=name)
    if len(value) > MAX_STOP_TOKEN_IDS:
        message = "{param} takes at most {most} ids, got {count}"
        raise InvalidRequestError.of(message, param=name, most=MAX_STOP_TOKEN_IDS, count=len(value))
    return tuple(value)


def read_allowed_ids(value: object) -> tuple[int, ...]:
    """The ids once each, in order.

    Raises:
        InvalidRequestError: they are none, or too many.
    """
    name = "allowed_token_ids"
    if not isinstance(value, list | tuple) or not set(map(type, value)) <= {int} or not value or min(value) < 0:
        raise InvalidRequestError.of("{param} must be a list of token ids ≥ 0, at least one", param=name)
    if len(value) > MAX_ALLOWED_IDS:
        message = "{param} takes at most {most} ids, got {count}"
        raise InvalidRequestError.of(message, param=name, most=MAX_ALLOWED_IDS, count=len(value))
    return tuple(sorted(set(value)))


def read_logprob_ids(value: object) -> tuple[int, ...] | None:
    """The ids once each, in the order given; None: there are none.

    Raises:
        InvalidRequestError: they are no ids, or too many.
    """
    name = "logprob_token_ids"
    if not isinstance(value, list | tuple) or not set(map(type, value)) <= {int} or (value and min(value) < 0):
        raise InvalidRequestError.of("{param} must be a list of token ids ≥ 0", param=name)
    ids = tuple(dict.fromkeys(value))
    if len(ids) > MAX_LOGPROB_IDS:
        message = "{param} takes at most {most} ids, got {count}"
        raise InvalidRequestError.of(message, param=name, most=MAX_LOGPROB_IDS, count=len(ids))
    return ids or None


def read_stop_regex(value: object) -> tuple[str, ...]:
    """The patterns; what they say is looked at where they are followed.

    Raises:
        InvalidRequestError: they are none, too many or too long.
    """
    given = [value] if isinstance(value, str) and value else value
    if not isinstance(given, list | tuple) or not all(isinstance(pattern, str) and pattern for pattern in given):
        raise InvalidRequestError.of("{param} must be a non-empty pattern or a list of them", param=STOP_REGEX)
    if len(given) > MAX_STOP_PATTERNS or any(len(pattern) > MAX_PATTERN for pattern in given):
        message = "{param} takes at most {most} patterns of at most {longest} characters"
        raise InvalidRequestError.of(message, param=STOP_REGEX, most=MAX_STOP_PATTERNS, longest=MAX_PATTERN)
    return tuple(given)
