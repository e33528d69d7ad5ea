"""Regular expressions of clients, in which \\d and \\w mean ASCII, as they do for a JSON schema's author."""

from collections.abc import Mapping

_ASCII = {"d": "0-9", "w": "A-Za-z0-9_"}
_UNICODE = {"d": r"\p{Nd}", "w": r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"}
UNICODE = "(?u)"  # a pattern that begins with it means the classes of Unicode


def with_written_classes(pattern: str) -> str:
    r"""The pattern with \d, \D, \w and \W written out: as ASCII, or as Unicode's if it begins with (?u), which is left
    out then: the compiler looks for ^ at the very beginning."""
    classes = _UNICODE if pattern.startswith(UNICODE) else _ASCII
    pattern = pattern.removeprefix(UNICODE)
    parts: list[str] = []
    depth = 0  # of bracketed classes, which may stand in each other
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            parts.append(_escape(pattern[position : position + 2], classes, is_inside=depth > 0))
            position += 2
            continue
        if character == "[":
            depth += 1
            length = _opening_length(pattern, position)
            parts.append(pattern[position : position + length])
            position += length
            continue
        depth -= character == "]" and depth > 0
        parts.append(character)
        position += 1
    return "".join(parts)


def _opening_length(pattern: str, position: int) -> int:
    """Characters of `[` and what follows it without ending the class: `[^`, `[]`, `[^]`."""
    length = 2 if pattern.startswith("[^", position) else 1
    return length + pattern.startswith("]", position + length)


def _escape(escape: str, classes: Mapping[str, str], *, is_inside: bool) -> str:
    letter = escape[1:]
    ranges = classes.get(letter.lower())
    if ranges is None:
        return escape
    if letter.isupper():
        return f"[^{ranges}]"  # within a class, too
    return ranges if is_inside else f"[{ranges}]"
