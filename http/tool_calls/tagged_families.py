"""The families that write each argument by itself, in tags: GLM, and those that tag functions and parameters, such as
Qwen3-Coder and all with `<invoke>`."""

import dataclasses
import re

from palladio.http.tool_calls.reading.named_values import NamedCallParser, NamedValues
from palladio.http.tool_calls.reading.output import CallOutput
from palladio.http.tool_calls.reading.reader import MalformedCallError, Step

_MAX_NAME = 256
_NAME = re.compile(r'\s*name\s*=\s*"([^"]*)"')
_IS_STRING = re.compile(r'\bstring\s*=\s*"(true|false)"')


class Glm45Parser(NamedCallParser):
    """GLM 4.5 and 4.6 write a line break after each part, GLM 4.7 none."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"
    KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"

    def _read(self) -> Step[None]:
        while (yield from self._find((self.OPEN,))):
            yield from self._attempt(self._call())

    def _call(self) -> Step[None]:
        name, mark = yield from self._reader.text_until((self.KEY, self.CLOSE, self.OPEN), limit=_MAX_NAME)
        if mark == self.OPEN:
            self._reader.back(len(mark))
        yield from self._named_call(name.strip(), lambda values: self._arguments(values, mark))

    def _arguments(self, values: NamedValues, mark: str) -> Step[None]:
        while mark == self.KEY:
            key, end = yield from self._reader.text_until((self.KEY_END, self.VALUE), limit=_MAX_NAME)
            if end == self.KEY_END:
                yield from self._reader.expect_after_space(self.VALUE)
            others = (self.KEY, self.CLOSE, self.OPEN)
            yield from values.read(self._reader, key.strip(), self.VALUE_END, others=others)
            mark = self.KEY if (yield from self._reader.accept_after_space(self.KEY)) else ""
        yield from self._reader.accept(self.CLOSE)


@dataclasses.dataclass(frozen=True, slots=True)
class ElementTags:
    """How a family writes a call as an element that holds an element for each parameter.

    Attributes:
        before: marks that surround the calls, and say nothing themselves, in the order in which they come.
        function, parameter: how their opening tags begin; what follows, up to `>`, names them.
        has_attributes: it does so in an attribute `name`; else it is the name.
        function_end, parameter_end: their closing tags.
        after: as `before`, after a call.

    Models leave out closing tags and the `>` of opening ones.
    """

    before: tuple[str, ...]
    function: str
    function_end: str
    parameter: str
    parameter_end: str
    after: tuple[str, ...]
    has_attributes: bool

    @property
    def ends_of_value(self) -> tuple[str, ...]:
        """What a value ends at where its closing tag is missing."""
        tail = ' name="' if self.has_attributes else ""
        return (self.parameter + tail, self.function_end, self.function + tail, *self.before, *self.after)

    def name(self, head: str) -> str:
        """
        Raises:
            MalformedCallError: it has none.
        """
        if not self.has_attributes:
            return head.strip()
        name = _NAME.match(head)
        if name is None:
            raise MalformedCallError
        return name[1]

    def is_string(self, head: str) -> bool | None:
        """Whether the parameter's value is a string, if the tag says it."""
        said = _IS_STRING.search(head) if self.has_attributes else None
        return None if said is None else said[1] == "true"


class ElementParser(NamedCallParser):
    """Values are typed by the schema, unless the tag says itself whether it is a string. Models often leave out the
    marks before the first call."""

    def __init__(self, output: CallOutput, tags: ElementTags) -> None:
        super().__init__(output)
        self._tags = tags

    def _read(self) -> Step[None]:
        while found := (yield from self._find((*self._tags.before, self._tags.function))):
            yield from self._attempt(self._call(found))

    def _call(self, found: str) -> Step[None]:
        tags = self._tags
        if found != tags.function:
            yield from self._accept_each(tags.before[tags.before.index(found) + 1 :])
            yield from self._reader.expect_after_space(tags.function)
        head = yield from self._head()
        yield from self._named_call(tags.name(head), self._arguments)

    def _arguments(self, values: NamedValues) -> Step[None]:
        tags = self._tags
        yield from self._reader.space()
        while (yield from self._reader.accept(tags.parameter)):
            head = yield from self._head()
            key, is_string = tags.name(head), tags.is_string(head)
            others = tags.ends_of_value
            yield from values.read(self._reader, key, tags.parameter_end, others=others, is_string=is_string)
            yield from self._reader.space()
        yield from self._reader.accept(tags.function_end)
        yield from self._accept_each(tags.after)

    def _head(self) -> Step[str]:
        """The rest of an opening tag, up to its `>` or to the end of its line, which is not read."""
        yield from self._reader.space()
        head, mark = yield from self._reader.text_until((">", "\n"), limit=_MAX_NAME)
        if mark == "\n":
            self._reader.back(1)
        return head

    def _accept_each(self, marks: tuple[str, ...]) -> Step[None]:
        for mark in marks:
            yield from self._reader.accept_after_space(mark)
