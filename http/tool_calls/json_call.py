"""Reading a call that is written as a JSON object with a name and arguments."""

import dataclasses
import re

import orjson

from palladio.http.tool_calls.reading.json_text import JsonCopy, read_string
from palladio.http.tool_calls.reading.python_literals import literal_json
from palladio.http.tool_calls.reading.reader import MalformedCallError, Step
from palladio.http.tool_calls.reading.scripted import ScriptedParser

_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args")
_NULLS = ("null", "None")
_NOTHING = ("", "[]", *_NULLS)  # what a string may hold instead of an object without members
_WORD = re.compile(r"\w+")
_NEXT_MEMBER = (",", "}")
_HARMLESS = ("type", "id", "tool_call_id", "call_id", "index")  # of a bare object that may stand before the name


@dataclasses.dataclass(slots=True)
class _OpenCall:
    """A call that is being read.

    Attributes:
        arguments: that came before the name.
        begun: its name is out: what comes of the rest, it stands.
    """

    name: str | None = None
    arguments: list[str] = dataclasses.field(default_factory=list)
    begun: bool = False

    def is_of(self, name: str) -> None:
        """What it calls."""
        self.name = name

    def begin(self) -> None:
        """Its name is out."""
        self.begun = True


class JsonCallParser(ScriptedParser):
    """Common part of the families whose arguments are JSON."""

    def _json_call(self, *, bare: bool = False) -> Step[None]:
        """Reads `{"name": …, "arguments": {…}}`, the names as all families write them, the keys in any order.

        Args:
            bare: there is no mark before the call: an unknown key before the name shows that it is other JSON text.

        Raises:
            MalformedCallError: it is no call of a function that is known.
        """
        call = _OpenCall()
        try:
            yield from self._members(call, bare=bare)
        except MalformedCallError:
            if not call.begun:
                raise
        if call.name is None:
            raise MalformedCallError
        if not call.begun:
            self._begin(call.name)
            self._output.arguments("".join(call.arguments) or "{}")

    def _members(self, call: "_OpenCall", *, bare: bool) -> Step[None]:
        """Reads the object. Raises MalformedCallError where it breaks, whatever has been read."""
        yield from self._reader.expect("{")
        depth = 1  # some models put the two into {"function": {…}}
        while depth:
            character = yield from self._reader.peek_after_space()
            if character in ("}", ","):
                yield from self._reader.take()
                depth -= character == "}"
                continue
            key = yield from read_string(self._reader)
            yield from self._reader.expect_after_space(":")
            character = yield from self._reader.peek_after_space()
            if key == "function" and character == "{":
                yield from self._reader.take()
                depth += 1
            elif call.name is None and (key in _NAMES or key == "function"):
                name = yield from read_string(self._reader)
                if name not in self._output.functions:
                    raise MalformedCallError
                call.is_of(name)
            elif key in _ARGUMENTS and call.name is not None and not call.begun:
                is_whole = yield from self._arguments(call.name, ends=_NEXT_MEMBER)
                call.begin()
                if not is_whole:
                    return
            elif key in _ARGUMENTS and not call.begun and not call.arguments:
                yield from self._collect_arguments(call.arguments, _NEXT_MEMBER)
            elif bare and call.name is None and key not in _HARMLESS:
                raise MalformedCallError
            else:
                yield from JsonCopy(self._reader, lambda _: None).value()

    def _arguments(self, name: str, call_id: str | None = None, *, ends: tuple[str, ...]) -> Step[bool]:
        """Reads an object and passes it on as it comes; the call begins with it. False: it is broken or cut off.

        Args:
            ends: what comes after it: if there is nothing before, the function has no arguments.

        Raises:
            MalformedCallError: it is no object. Once the call has begun: never; what is broken or cut off is closed.
        """
        if (yield from self._reader.peek_after_space()) != "{":
            parts: list[str] = []
            yield from self._collect_arguments(parts, ends)
            self._begin(name, call_id)
            self._output.arguments("".join(parts))
            return True
        self._begin(name, call_id)
        copy = JsonCopy(self._reader, self._output.arguments)
        try:
            yield from copy.value()
        except MalformedCallError:
            self._output.arguments(copy.closing())
            return False
        return True

    def _collect_arguments(self, parts: list[str], ends: tuple[str, ...]) -> Step[None]:
        """Reads an object, or what some models write instead: nothing, null, an empty list, or the object's text as a
        string."""
        if (yield from self._reader.ends_or_has(ends)):
            parts.append("{}")
            return
        character = yield from self._reader.peek()
        if character == "{":
            yield from JsonCopy(self._reader, parts.append).value()
            return
        if character == '"':
            parts.append(_object_in((yield from read_string(self._reader))))
            return
        if (yield from self._reader.accept("[")):
            yield from self._reader.expect_after_space("]")
        elif (yield from self._reader.word(_WORD)) not in _NULLS:
            raise MalformedCallError
        parts.append("{}")


@dataclasses.dataclass(frozen=True, slots=True)
class SectionMarks:
    """What stands before a section of calls, before each call, and after the section."""

    opening: str
    call: str
    closing: str


class SectionedCallParser(JsonCallParser):
    """Common part of the families that put calls into a section, which the model may leave out."""

    _marks: SectionMarks

    def _read(self) -> Step[None]:
        marks = self._marks
        while found := (yield from self._find((marks.opening, marks.call, marks.closing))):
            if found == marks.closing and self._output.after_call:
                self._reader.release()
            else:
                yield from self._attempt(self._marked_call(found))

    def _marked_call(self, found: str) -> Step[None]:
        if found != self._marks.call:
            yield from self._reader.expect_after_space(self._marks.call)
        yield from self._call()

    def _call(self) -> Step[None]:
        """Reads a call after its mark."""
        raise NotImplementedError


def _object_in(text: str) -> str:
    """The object that a string holds, as JSON or as Python writes it.

    Raises:
        MalformedCallError: it holds something else.
    """
    if text.strip() in _NOTHING:
        return "{}"
    try:
        is_object, written = isinstance(orjson.loads(text), dict), text
    except orjson.JSONDecodeError:
        written = literal_json(text) or ""
        is_object = written.startswith("{")
    if not is_object:
        raise MalformedCallError
    return written
