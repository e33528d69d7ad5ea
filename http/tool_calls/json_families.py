"""The families whose calls carry their arguments as JSON, each with marks of its own around name and arguments."""

import dataclasses
import re

from palladio.http.tool_calls.json_call import JsonCallParser, SectionedCallParser, SectionMarks
from palladio.http.tool_calls.reading.json_text import read_string
from palladio.http.tool_calls.reading.output import CallOutput
from palladio.http.tool_calls.reading.reader import MalformedCallError, Step

_MAX_NAME = 256
_OBJECT_END = ("}",)
_ANYTHING = re.compile(r".+", re.DOTALL)
_TAG = "<|python_tag|>"
_MAX_ID = 256
_ID = re.compile(r"(?:functions\.)?(.+):\d+", re.DOTALL)
_MAX_HEADER = 512
_RECIPIENT = re.compile(r"\bto=functions\.([A-Za-z0-9_.\-]+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Tags:
    """
    Attributes:
        opening: comes before a call, or before a list of calls.
        closing: comes after it; "" for none.
        answer: surround an answer without calls, and are dropped.
    """

    opening: str
    closing: str
    answer: tuple[str, ...] = ()


class TaggedJsonParser(JsonCallParser):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>` and the like; the closing mark may be missing."""

    def __init__(self, output: CallOutput, tags: Tags) -> None:
        super().__init__(output)
        self._tags = tags

    def _read(self) -> Step[None]:
        while found := (yield from self._find((self._tags.opening, *self._tags.answer))):
            if found in self._tags.answer:
                self._reader.release()
            elif (yield from self._attempt(self._calls())):
                yield from self._reader.space()
                if self._tags.closing:
                    yield from self._reader.accept(self._tags.closing)

    def _calls(self) -> Step[None]:
        """One call, or a list."""
        if not (yield from self._reader.accept_after_space("[")):
            yield from self._json_call()
            return
        yield from self._reader.space()
        yield from self._json_call()
        yield from self._more_calls()

    def _more_calls(self) -> Step[None]:
        """The rest of a list after its first call."""
        while True:
            if (yield from self._ends_list(self._tags.closing)):
                return
            yield from self._reader.space()
            yield from self._json_call()


class ApertusParser(TaggedJsonParser):
    """A list of objects of one member, whose key is the function."""

    OPEN, CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"

    def __init__(self, output: CallOutput) -> None:
        super().__init__(output, Tags(self.OPEN, self.CLOSE))

    def _json_call(self, *, bare: bool = False) -> Step[None]:
        yield from self._reader.expect("{")
        name = yield from read_string(self._reader)
        yield from self._reader.expect_after_space(":")
        if (yield from self._arguments(name, ends=_OBJECT_END)):
            yield from self._reader.accept_after_space("}")


class GigaChat3Parser(TaggedJsonParser):
    """A call is a message with a role of its own, which ends the text before it; newer models have a mark instead."""

    TEXT_END, ROLE_END, CALL = "<|message_sep|>", "<|role_sep|>", "<|function_call|>"
    ROLE = f"function call{ROLE_END}"

    def __init__(self, output: CallOutput) -> None:
        super().__init__(output, Tags(self.ROLE, self.TEXT_END))

    def _read(self) -> Step[None]:
        while found := (yield from self._find((self.TEXT_END, self.ROLE, self.CALL))):
            if found == self.TEXT_END and not (yield from self._reader.peek_after_space()):
                self._reader.release()  # the end of an answer
            elif (yield from self._attempt(self._message(found))):
                yield from self._reader.accept_after_space(self.TEXT_END)

    def _message(self, found: str) -> Step[None]:
        if found == self.TEXT_END and not (yield from self._reader.accept(self.CALL)):
            yield from self._reader.expect(self.ROLE)
        yield from self._reader.space()
        yield from self._json_call()


class InklingParser(JsonCallParser):
    """Each message has a mark of its kind; those of texts are dropped, and so is a name before a call's."""

    MESSAGE, TEXT = "<|message_model|>", "<|content_text|>"
    CALL, END = "<|content_invoke_tool_json|>", "<|end_message|>"

    def _read(self) -> Step[None]:
        is_text = False
        while found := (yield from self._find((self.MESSAGE, self.TEXT, self.CALL, self.END))):
            if found == self.TEXT or (found == self.MESSAGE and (yield from self._reader.accept(self.TEXT))):
                self._reader.release()
                is_text = True
            elif found == self.END and is_text:
                self._reader.release()
                is_text = False
            elif (yield from self._attempt(self._message(found))):
                yield from self._reader.accept_after_space(self.END)

    def _message(self, found: str) -> Step[None]:
        if found == self.END:
            raise MalformedCallError
        if found == self.MESSAGE:
            yield from self._reader.text_until((self.CALL,), limit=_MAX_NAME)
        yield from self._reader.space()
        yield from self._json_call()


class InternlmParser(TaggedJsonParser):
    """What is for another tool than a function, such as `<|interpreter|>`, is content."""

    ACTION, PLUGIN, END = "<|action_start|>", "<|plugin|>", "<|action_end|>"

    def __init__(self, output: CallOutput) -> None:
        super().__init__(output, Tags(self.ACTION, self.END))

    def _calls(self) -> Step[None]:
        yield from self._reader.expect_after_space(self.PLUGIN)
        yield from super()._calls()


class MistralParser(TaggedJsonParser):
    """The id that may stand in `[CALL_ID]` becomes the call's."""

    def __init__(self, output: CallOutput) -> None:
        super().__init__(output, Tags("[TOOL_CALLS]", ""))

    def _calls(self) -> Step[None]:
        if (yield from self._reader.peek_after_space()) in ("[", "{"):
            yield from super()._calls()
            return
        ends = ("[ARGS]", "{", self._tags.opening)
        name, mark = yield from self._reader.text_until(("[CALL_ID]", *ends), limit=_MAX_NAME)
        call_id = None
        if mark == "[CALL_ID]":
            call_id, mark = yield from self._reader.text_until(ends, limit=_MAX_NAME)
        if mark != "[ARGS]":
            self._reader.back(len(mark))
        yield from self._arguments(name.strip(), call_id and call_id.strip(), ends=(self._tags.opening,))


class PlainJsonParser(TaggedJsonParser):
    """Only for outputs that a grammar holds to it: any other text stays content."""

    def __init__(self, output: CallOutput) -> None:
        super().__init__(output, Tags("", ""))

    def _read(self) -> Step[None]:
        self._reader.mark()
        yield from self._reader.space()
        yield from self._attempt(self._calls())
        while (yield from self._reader.peek()):
            self._output.content(self._reader.run(_ANYTHING))


class Llama3Parser(JsonCallParser):
    """Any `{` may begin a call: it is one if the object's first key fits and the name is of a known function."""

    def _read(self) -> Step[None]:
        while found := (yield from self._find((_TAG, "{"))):
            if found == "{":
                self._reader.back(1)
            read = yield from self._attempt(self._call())
            while read:
                if (yield from self._reader.peek_after_space()) != ";":
                    break
                self._reader.mark()
                yield from self._reader.take()
                yield from self._reader.space()
                if not (yield from self._reader.peek()):
                    self._reader.release()  # a semicolon too many
                    break
                read = yield from self._attempt(self._call())

    def _call(self) -> Step[None]:
        yield from self._reader.space()
        yield from self._json_call(bare=True)


class DeepSeekParser(SectionedCallParser):
    """V3.1 writes `name<｜tool▁sep｜>{…}`.

    Args:
        fenced: as V3 writes it: `function<｜tool▁sep｜>name`, and the arguments in a fenced block of JSON.
    """

    SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    CALL, NAME_END, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

    _marks = SectionMarks(SECTION, CALL, SECTION_END)

    def __init__(self, output: CallOutput, *, fenced: bool) -> None:
        super().__init__(output)
        self._fenced = fenced
        self._ends = (self.CALL_END, self.CALL, self.SECTION_END)

    def _call(self) -> Step[None]:
        head_ends = () if self._fenced else self._ends
        head, mark = yield from self._reader.text_until((self.NAME_END, *head_ends), limit=_MAX_NAME)
        if self._fenced:
            head, mark = yield from self._reader.text_until(("\n", *self._ends), limit=_MAX_NAME)
        if mark in self._ends:
            self._reader.back(len(mark))
        elif self._fenced:
            yield from self._reader.accept_after_space("```json")
        yield from self._arguments(head.strip(), ends=("```", *self._ends))
        if self._fenced:
            yield from self._reader.accept_after_space("```")
        yield from self._reader.accept_after_space(self.CALL_END)


class KimiK2Parser(SectionedCallParser):
    """The id is kept as it is: the model reads it again in the tool's answer."""

    SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

    _marks = SectionMarks(SECTION, CALL, SECTION_END)

    def _call(self) -> Step[None]:
        ends = (self.CALL_END, self.CALL, self.SECTION_END)
        text, mark = yield from self._reader.text_until((self.ARGUMENTS, *ends), limit=_MAX_ID)
        if mark != self.ARGUMENTS:
            self._reader.back(len(mark))
        call_id = _ID.fullmatch(text.strip())
        if call_id is None:
            raise MalformedCallError
        yield from self._arguments(call_id[1], text.strip(), ends=(self.CALL_END, self.CALL, self.SECTION_END))
        yield from self._reader.accept_after_space(self.CALL_END)


class Plamo3Parser(SectionedCallParser):
    """The marks are several tokens each."""

    SECTION, SECTION_END = "<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"
    CALL, CALL_END = "<|plamo:begin_tool_request:plamo|>", "<|plamo:end_tool_request:plamo|>"
    NAME, NAME_END = "<|plamo:begin_tool_name:plamo|>", "<|plamo:end_tool_name:plamo|>"
    TYPE, BODY = "<|plamo:constrain|>json", "<|plamo:msg|>"
    ARGUMENTS = f"<|plamo:begin_tool_arguments:plamo|>{TYPE}{BODY}"
    ARGUMENTS_END = "<|plamo:end_tool_arguments:plamo|>"
    PIECES = ("<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<|plamo:constrain|>", BODY)

    _marks = SectionMarks(SECTION, CALL, SECTION_END)

    def _call(self) -> Step[None]:
        ends = (self.ARGUMENTS_END, self.CALL_END, self.CALL, self.SECTION_END)
        yield from self._reader.expect_after_space(self.NAME)
        name, _ = yield from self._reader.text_until((self.NAME_END,), limit=_MAX_NAME)
        yield from self._reader.accept_after_space(self.ARGUMENTS.removesuffix(self.TYPE + self.BODY))
        yield from self._reader.accept(self.TYPE)
        yield from self._reader.accept(self.BODY)
        yield from self._arguments(name.strip(), ends=ends)
        yield from self._reader.accept_after_space(self.ARGUMENTS_END)
        yield from self._reader.accept_after_space(self.CALL_END)


class GptOssParser(JsonCallParser):
    """The recipient may stand before the channel or after it. A message without a recipient, or to a tool of another
    kind, is content with its marks: the reasoning parser has divided messages before."""

    START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
    CALL, END = "<|call|>", "<|end|>"

    def _read(self) -> Step[None]:
        while (yield from self._find((self.START, self.CHANNEL))):
            is_call = yield from self._attempt(self._message())
            if is_call and not (yield from self._reader.accept_after_space(self.CALL)):
                yield from self._reader.accept(self.END)

    def _message(self) -> Step[None]:
        ends = (self.CALL, self.END, self.START)
        header, mark = yield from self._reader.text_until((self.MESSAGE, *ends), limit=_MAX_HEADER)
        if mark != self.MESSAGE:  # a call without arguments
            self._reader.back(len(mark))
        recipient = _RECIPIENT.search(header)
        if recipient is None:
            raise MalformedCallError
        yield from self._arguments(recipient[1], ends=(self.CALL, self.END, self.START, self.CHANNEL))
