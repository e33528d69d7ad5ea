"""Copying JSON from a model's text, so that what was copied so far can be closed to valid JSON at any time."""

import json
import re
from collections.abc import Callable

from palladio.http.tool_calls.reading.reader import CutOffError, MalformedCallError, Reader, Step

MAX_DEPTH = 128

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r"[A-Za-z0-9+\-.]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERALS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_CLOSERS = {"{": "}", "[": "]"}


class JsonCopy:
    """Copies one JSON value.

    Separators, keys and unfinished scalars are held back until a value follows. What models get wrong often is put
    right: a comma before the end, Python's True, False and None, line breaks and unknown escapes in strings.

    Args:
        write: gets the pieces; together with `closing()` they are always valid JSON, once there was a first one.
    """

    def __init__(self, reader: Reader, write: Callable[[str], None]) -> None:
        self._reader = reader
        self._write = write
        self._closers: list[str] = []
        self._held = ""
        self._is_first = True  # nothing has come in the innermost container yet

    def closing(self) -> str:
        """What makes the copied text whole."""
        return "".join(reversed(self._closers))

    def value(self) -> Step[None]:
        """
        Raises:
            MalformedCallError: it is not JSON; the reader is where it stopped being JSON.
            CutOffError: the text has ended within it.
        """
        yield from self._reader.space()
        yield from self._begin_value()
        while self._closers:
            inside = self._closers[-1]
            yield from self._hold_space()
            character = yield from self._reader.peek()
            if character == inside:
                yield from self._reader.take()
                self._closers.pop()
                self._put(self._held.replace(",", "") + character)
                self._is_first = False
                continue
            if self._is_first:
                self._is_first = False
            elif character == ",":
                self._held += yield from self._reader.take()
                yield from self._hold_space()
                if (yield from self._reader.peek()) == inside:
                    continue  # a comma too many
            else:
                raise MalformedCallError if character else CutOffError
            if inside == "}":
                yield from self._key()
            yield from self._begin_value()

    def _begin_value(self) -> Step[None]:
        """Copies a scalar, or the opening of a container."""
        character = yield from self._reader.peek()
        if character in ("{", "["):
            if len(self._closers) == MAX_DEPTH:
                raise MalformedCallError
            yield from self._reader.take()
            self._put(self._held + character)
            self._closers.append(_CLOSERS[character])
            self._is_first = True
            return
        if character == '"':
            yield from self._reader.take()
            self._put(self._held + character)
            self._closers.append('"')
            yield from copy_string(self._reader, self._write)
            self._closers.pop()
            self._write('"')
        else:
            word = yield from self._reader.word(_WORD)
            if not (yield from self._reader.peek()):
                raise CutOffError  # more digits might have come
            literal = _LITERALS.get(word) or (word if _NUMBER.fullmatch(word) else None)
            if literal is None:
                raise MalformedCallError
            self._put(self._held + literal)
        self._is_first = False

    def _key(self) -> Step[None]:
        parts: list[str] = []
        yield from self._reader.expect('"')
        yield from copy_string(self._reader, parts.append)
        self._held += f'"{"".join(parts)}"'
        yield from self._hold_space()
        yield from self._reader.expect(":")
        self._held += ":"
        yield from self._hold_space()

    def _hold_space(self) -> Step[None]:
        self._held += yield from self._reader.space()

    def _put(self, text: str) -> None:
        self._write(text)
        self._held = ""


def copy_string(reader: Reader, write: Callable[[str], None]) -> Step[None]:
    """Copies a JSON string after its opening quote, and reads the closing one.

    Raises:
        CutOffError: the text has ended within it.
    """
    while True:
        if plain := reader.run(_PLAIN):
            write(plain)
        character = yield from reader.take()
        if character == '"':
            return
        if character == "\\":
            write((yield from _escape(reader)))
        elif character < " ":
            write(json.dumps(character)[1:-1])
        else:
            write(character)


def _escape(reader: Reader) -> Step[str]:
    """An escape after its backslash."""
    character = yield from reader.take()
    if character != "u":
        if character in '"\\/bfnrt':
            return "\\" + character
        return character if character == "'" else "\\\\" + json.dumps(character, ensure_ascii=False)[1:-1]
    high = yield from _four_digits(reader)
    if not 0xD800 <= int(high, 16) < 0xE000:
        return "\\u" + high
    if int(high, 16) < 0xDC00 and (yield from reader.accept("\\u")):
        low = yield from _four_digits(reader)
        paired = 0xDC00 <= int(low, 16) < 0xE000
        if paired:
            return f"\\u{high}\\u{low}"
        return "\\ufffd" + ("\\ufffd" if 0xD800 <= int(low, 16) < 0xDC00 else f"\\u{low}")
    return "\\ufffd"  # half of a pair is no character


def _four_digits(reader: Reader) -> Step[str]:
    digits = ""
    for _ in range(4):
        digits += yield from reader.take()
    if not _HEX.fullmatch(digits):
        raise MalformedCallError
    return digits


def read_string(reader: Reader) -> Step[str]:
    """Reads a JSON string, opening quote included, and decodes it.

    Raises:
        MalformedCallError: it is none.
        CutOffError: the text has ended within it.
    """
    yield from reader.expect('"')
    parts: list[str] = []
    yield from copy_string(reader, parts.append)
    text = json.loads(f'"{"".join(parts)}"')
    assert isinstance(text, str)
    return text
