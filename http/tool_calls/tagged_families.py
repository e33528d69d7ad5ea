"""The families that write each argument by itself, in tags: GLM, Qwen3-Coder, and those with `<invoke>`."""

import dataclasses
import re

from palladio.http.tool_calls.named_values import NamedValues
from palladio.http.tool_calls.output import CallOutput
from palladio.http.tool_calls.reader import MalformedCallError, Step
from palladio.http.tool_calls.scripted import ScriptedParser

_MAX_NAME = 256
_NAME = re.compile(r'\s*name\s*=\s*"([^"]*)"')
_IS_STRING = re.compile(r'\bstring\s*=\s*"(true|false)"')


class Glm45Parser(ScriptedParser):
    """GLM 4.5 and 4.6 write a line break after each part, GLM 4.7 none."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"
    KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"

    def _read(self) -> Step[None]:
        while (yield from self._find((self.OPEN,))):
            yield from self._attempt(self._call())

    def _call(self) -> Step[None]:
        name, mark = yield from self._reader.text_until((self.KEY, self.CLOSE), limit=_MAX_NAME)
        name = name.strip()
        self._begin(name)
        values = NamedValues(self._output, name)
        try:
            while mark == self.KEY:
                key, _ = yield from self._reader.text_until((self.KEY_END,), limit=_MAX_NAME)
                yield from self._reader.space()
                yield from self._reader.expect(self.VALUE)
                yield from values.read(self._reader, key.strip(), self.VALUE_END)
                yield from self._reader.space()
                mark = self.KEY if (yield from self._reader.accept(self.KEY)) else ""
            yield from self._reader.accept(self.CLOSE)
        except MalformedCallError:
            pass  # the call has begun: it keeps the arguments that it has
        values.end()


class Qwen3CoderParser(ScriptedParser):
    """The model often leaves out the first `<tool_call>`."""

    OPEN, CLOSE = "<tool_call>", "</tool_call>"
    FUNCTION, FUNCTION_END = "<function=", "</function>"
    PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"

    def _read(self) -> Step[None]:
        while found := (yield from self._find((self.OPEN, self.FUNCTION))):
            yield from self._attempt(self._call(found))

    def _call(self, found: str) -> Step[None]:
        if found == self.OPEN:
            yield from self._reader.space()
            yield from self._reader.expect(self.FUNCTION)
        name, _ = yield from self._reader.text_until((">",), limit=_MAX_NAME)
        name = name.strip()
        self._begin(name)
        values = NamedValues(self._output, name)
        try:
            while True:
                yield from self._reader.space()
                if not (yield from self._reader.accept(self.PARAMETER)):
                    break
                key, _ = yield from self._reader.text_until((">",), limit=_MAX_NAME)
                yield from values.read(self._reader, key.strip(), self.PARAMETER_END)
            yield from self._reader.expect(self.FUNCTION_END)
            yield from self._reader.space()
            yield from self._reader.accept(self.CLOSE)
        except MalformedCallError:
            pass  # the call has begun: it keeps the arguments that it has
        values.end()


@dataclasses.dataclass(frozen=True, slots=True)
class InvokeTags:
    """
    Attributes:
        before: marks that surround the calls, and say nothing themselves, in the order in which they come.
        prefix: of the tags invoke and parameter.
        after: as `before`, after a call.
    """

    before: tuple[str, ...]
    prefix: str
    after: tuple[str, ...]


class InvokeParser(ScriptedParser):
    """Values are typed by the schema, unless the tag says itself whether it is a string."""

    def __init__(self, output: CallOutput, tags: InvokeTags) -> None:
        super().__init__(output)
        self._tags = tags
        self._invoke, self._invoke_end = f"<{tags.prefix}invoke", f"</{tags.prefix}invoke>"
        self._parameter, self._parameter_end = f"<{tags.prefix}parameter", f"</{tags.prefix}parameter>"

    def _read(self) -> Step[None]:
        while found := (yield from self._find((*self._tags.before, self._invoke))):
            yield from self._attempt(self._call(found))

    def _call(self, found: str) -> Step[None]:
        if found != self._invoke:
            for mark in self._tags.before[self._tags.before.index(found) + 1 :]:
                yield from self._reader.space()
                yield from self._reader.accept(mark)
            yield from self._reader.space()
            yield from self._reader.expect(self._invoke)
        name = _attribute_name((yield from self._reader.text_until((">",), limit=_MAX_NAME))[0])
        self._begin(name)
        values = NamedValues(self._output, name)
        try:
            while True:
                yield from self._reader.space()
                if not (yield from self._reader.accept(self._parameter)):
                    break
                head, _ = yield from self._reader.text_until((">",), limit=_MAX_NAME)
                said = _IS_STRING.search(head)
                is_string = None if said is None else said[1] == "true"
                key = _attribute_name(head)
                yield from values.read(self._reader, key, self._parameter_end, is_string=is_string)
            yield from self._reader.expect(self._invoke_end)
            for mark in self._tags.after:
                yield from self._reader.space()
                yield from self._reader.accept(mark)
        except MalformedCallError:
            pass  # the call has begun: it keeps the arguments that it has
        values.end()


def _attribute_name(head: str) -> str:
    name = _NAME.match(head)
    if name is None:
        raise MalformedCallError
    return name[1]
