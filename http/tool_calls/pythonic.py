"""Llama 4, LFM2 and others: a Python list of calls, `[f(a=1), g(b="x")]`."""

import dataclasses
import re

import orjson

from palladio.http.tool_calls.reading.named_values import NamedCallParser, NamedValues
from palladio.http.tool_calls.reading.output import CallOutput
from palladio.http.tool_calls.reading.python_literals import MAX_DEPTH, literal_json
from palladio.http.tool_calls.reading.reader import MalformedCallError, Step
from palladio.http.tool_calls.reading.typed_values import parameter_schema, to_json, types_of

_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclasses.dataclass(frozen=True, slots=True)
class PythonTags:
    """Marks around the list; the model may leave them out."""

    opening: str = "<|python_start|>"
    closing: str = "<|python_end|>"


class PythonicParser(NamedCallParser):
    """A `[` begins calls if the name of a known function and a parenthesis follow. Values are literals; an argument
    without a name is the parameter at its place in the schema."""

    def __init__(self, output: CallOutput, tags: PythonTags = PythonTags()) -> None:
        super().__init__(output)
        self._tags = tags

    def _read(self) -> Step[None]:
        while found := (yield from self._find((self._tags.opening, "["))):
            if (yield from self._attempt(self._calls(found))):
                yield from self._reader.accept_after_space(self._tags.closing)

    def _calls(self, found: str) -> Step[None]:
        if found != "[":
            yield from self._reader.expect_after_space("[")
        while True:
            yield from self._reader.space()
            name = yield from self._reader.word(_NAME)
            yield from self._reader.expect_after_space("(")
            is_whole = yield from self._named_call(name, self._arguments)
            if not is_whole or (yield from self._ends_list(self._tags.closing)):
                return

    def _arguments(self, values: NamedValues) -> Step[None]:
        """The arguments up to the closing parenthesis."""
        schema = values.schema
        properties = schema.get("properties")
        places = list(properties) if isinstance(properties, dict) else []
        for place in range(len(places) + 1000):
            if (yield from self._reader.accept_after_space(")")):
                return
            text, end = yield from self._value_text()
            key, equals, value = text.partition("=")
            if not equals or not _NAME.fullmatch(key.strip()):
                if place >= len(places):
                    raise MalformedCallError
                key, value = places[place], text
            key = key.strip()
            values.add(key, _literal(value.strip(), types_of(parameter_schema(schema, key), schema)))
            if end == ")":
                return
        raise MalformedCallError

    def _value_text(self) -> Step[tuple[str, str]]:
        """The text of one argument, and the comma or parenthesis after it."""
        text: list[str] = []
        closers: list[str] = []
        while True:
            character = yield from self._reader.take()
            if not closers and character in (",", ")"):
                return "".join(text), character
            text.append(character)
            if character in ("'", '"'):
                yield from self._string(character, text)
            elif character in _PAIRS:
                if len(closers) == MAX_DEPTH:
                    raise MalformedCallError
                closers.append(_PAIRS[character])
            elif character in (")", "]", "}") and (not closers or closers.pop() != character):
                raise MalformedCallError

    def _string(self, quote_mark: str, text: list[str]) -> Step[None]:
        """The rest of a string literal, in one or three quotation marks."""
        ending = quote_mark
        if (yield from self._reader.accept(quote_mark * 2)):
            text.append(quote_mark * 2)
            ending = quote_mark * 3
        while not (yield from self._reader.accept(ending)):
            character = yield from self._reader.take()
            text.append(character)
            if character == "\\":
                text.append((yield from self._reader.take()))
        text.append(ending)


class PythonLinesParser(PythonicParser):
    """Olmo 3: a call on each line, in tags that it always writes."""

    def _read(self) -> Step[None]:
        while (yield from self._find((self._tags.opening,))):
            if (yield from self._attempt(self._lines())):
                yield from self._reader.accept_after_space(self._tags.closing)

    def _lines(self) -> Step[None]:
        while True:
            yield from self._reader.space()
            name = yield from self._reader.word(_NAME)
            yield from self._reader.expect_after_space("(")
            is_whole = yield from self._named_call(name, self._arguments)
            yield from self._reader.space()
            if not is_whole or (yield from self._reader.ends_or_has((self._tags.closing,))):
                return
            self._reader.mark()


def _literal(text: str, types: frozenset[str]) -> str:
    """A Python or JSON literal as JSON; anything else as the schema has it, in the end as a string."""
    try:
        orjson.loads(text)
        return text
    except orjson.JSONDecodeError:
        pass
    found = literal_json(text)
    return to_json(text, types) if found is None else found
