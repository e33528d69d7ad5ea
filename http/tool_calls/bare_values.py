"""Gemma 4 and FunctionGemma: `call:f{key:value,…}`, an object without quotes around keys, and marks around strings."""

import dataclasses
import re
from collections.abc import Callable

from palladio.http.tool_calls.json_call import JsonCallParser
from palladio.http.tool_calls.reading.json_text import MAX_DEPTH, read_string
from palladio.http.tool_calls.reading.output import CallOutput
from palladio.http.tool_calls.reading.reader import CutOffError, MalformedCallError, Reader, Step
from palladio.http.tool_calls.reading.typed_values import quote, to_json

_MAX_NAME = 256
_CALL = "call:"
_BARE = re.compile(r"""[^,{}\[\]<"]+""")
_CLOSERS = {"{": "}", "[": "]"}
_ANY: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class BareMarks:
    """
    Attributes:
        opening, closing: around a call.
        quote: at both ends of a string.
    """

    opening: str
    closing: str
    quote: str


class BareParser(JsonCallParser):
    """Keys and strings may have JSON's quotes instead. A word that is no literal is a string."""

    def __init__(self, output: CallOutput, marks: BareMarks) -> None:
        super().__init__(output)
        self._call_marks = marks

    def _read(self) -> Step[None]:
        while (yield from self._find((self._call_marks.opening,))):
            if (yield from self._attempt(self._call())):
                yield from self._reader.accept_after_space(self._call_marks.closing)

    def _call(self) -> Step[None]:
        yield from self._reader.expect_after_space(_CALL)
        name, _ = yield from self._reader.text_until(("{",), limit=_MAX_NAME)
        self._begin(name.strip())
        copy = _BareCopy(self._reader, self._output.arguments, self._call_marks.quote)
        try:
            yield from copy.members()
        except MalformedCallError:
            self._output.arguments(copy.closing())


class _BareCopy:
    """Copies an object as JSON.

    Args:
        write: gets the pieces, which `closing` makes whole at any time.
    """

    def __init__(self, reader: Reader, write: Callable[[str], None], mark: str) -> None:
        self._reader = reader
        self._write = write
        self._mark = mark
        self._closers: list[str] = []
        self._is_first = True

    def closing(self) -> str:
        return "".join(reversed(self._closers))

    def members(self) -> Step[None]:
        """After the opening brace.

        Raises:
            MalformedCallError: it breaks here.
            CutOffError: the text has ended.
        """
        self._open("{", "")
        while self._closers:
            inside = self._closers[-1]
            if (yield from self._ends(inside)):
                continue
            before = "" if self._is_first else ", "
            if not self._is_first:
                yield from self._reader.expect(",")
                if (yield from self._ends(inside)):
                    continue  # a comma too many
            if inside == "}":
                before += quote((yield from self._key())) + ": "
            yield from self._value(before)

    def _ends(self, closer: str) -> Step[bool]:
        if not (yield from self._reader.accept_after_space(closer)):
            return False
        self._write(self._closers.pop())
        self._is_first = False
        return True

    def _open(self, character: str, before: str) -> None:
        if len(self._closers) == MAX_DEPTH:
            raise MalformedCallError
        self._write(before + character)
        self._closers.append(_CLOSERS[character])
        self._is_first = True

    def _key(self) -> Step[str]:
        if (yield from self._reader.accept(self._mark)):
            key, _ = yield from self._reader.text_until((self._mark,), limit=_MAX_NAME)
            yield from self._reader.expect_after_space(":")
        elif (yield from self._reader.peek()) == '"':
            key = yield from read_string(self._reader)
            yield from self._reader.expect_after_space(":")
        else:
            key, _ = yield from self._reader.text_until((":",), limit=_MAX_NAME)
        return key.strip()

    def _value(self, before: str) -> Step[None]:
        character = yield from self._reader.peek_after_space()
        if character in _CLOSERS:
            yield from self._reader.take()
            self._open(character, before)
            return
        if (yield from self._reader.accept(self._mark)):
            self._write(before + '"')
            self._closers.append('"')
            found = yield from self._reader.until((self._mark,), self._add_to_string, drops_begun=True)
            if not found:
                raise CutOffError
            self._write(self._closers.pop())
        elif character == '"':
            self._write(before + quote((yield from read_string(self._reader))))
        else:
            word = (yield from self._reader.word(_BARE)).strip()
            if not (yield from self._reader.peek()):
                raise CutOffError  # more of it might have come
            if not word:
                raise MalformedCallError
            self._write(before + to_json(word, _ANY))
        self._is_first = False

    def _add_to_string(self, text: str) -> None:
        self._write(quote(text)[1:-1])
