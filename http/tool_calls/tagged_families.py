"""The families that write each argument by itself, in tags: those with marks around keys and values, such as GLM, and
those that tag functions and parameters, such as Qwen3-Coder and all with `<invoke>`."""

import dataclasses
import re

from palladio.http.tool_calls.json_call import JsonCallParser
from palladio.http.tool_calls.reading.named_values import NamedCallParser, NamedValues
from palladio.http.tool_calls.reading.output import CallOutput
from palladio.http.tool_calls.reading.reader import MalformedCallError, Step

_MAX_NAME = 256
_IS_STRING = re.compile(r'\bstring\s*=\s*"(true|false)"')
_TYPE = re.compile(r'\btype\s*=\s*"([^"]*)"')
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_TEXT_TYPES = ("string", "str")


class TaggedCallParser(NamedCallParser, JsonCallParser):
    """Common part of both: a model that writes a call as JSON inside of the marks is understood, too."""

    def _json_calls(self) -> Step[None]:
        """One call, or a list."""
        if not (yield from self._reader.accept_after_space("[")):
            yield from self._json_call()
            return
        while True:
            yield from self._reader.space()
            yield from self._json_call()
            if (yield from self._ends_list("")):
                return

    def _accept_each(self, marks: tuple[str, ...]) -> Step[None]:
        for mark in marks:
            yield from self._reader.accept_after_space(mark)


@dataclasses.dataclass(frozen=True, slots=True)
class KeyTags:
    """How a family writes a call as a name, and marks around each key and each value.

    Attributes:
        call, call_end: around each call.
        key, key_end, value, value_end: around those.
        before, after: around all calls; "" for none.
        name_end: comes after the name; "" for none.
        type, type_end: may stand around the value's type, between key and value; "" for none.
    """

    call: str
    call_end: str
    key: str = "<arg_key>"
    key_end: str = "</arg_key>"
    value: str = "<arg_value>"
    value_end: str = "</arg_value>"
    before: str = ""
    after: str = ""
    name_end: str = ""
    type: str = ""
    type_end: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(mark for mark in dataclasses.astuple(self) if mark)


class KeyedParser(TaggedCallParser):
    """Models write line breaks between the parts, or none."""

    def __init__(self, output: CallOutput, tags: KeyTags) -> None:
        super().__init__(output)
        self._tags = tags

    def _read(self) -> Step[None]:
        openings = tuple(mark for mark in (self._tags.before, self._tags.call) if mark)
        while found := (yield from self._find(openings)):
            yield from self._attempt(self._call(found))

    def _call(self, found: str) -> Step[None]:
        tags = self._tags
        if found == tags.before and not (yield from self._reader.accept_after_space(tags.call)):
            yield from self._json_calls()
        elif (yield from self._reader.peek_after_space()) in ("{", "["):
            yield from self._json_calls()
            yield from self._reader.accept_after_space(tags.call_end)
        else:
            yield from self._keyed_call()
        if tags.after:
            yield from self._reader.accept_after_space(tags.after)

    def _keyed_call(self) -> Step[None]:
        tags = self._tags
        ends = (tags.key, tags.call_end, tags.call, *((tags.name_end,) if tags.name_end else ()))
        name, mark = yield from self._reader.text_until(ends, limit=_MAX_NAME)
        if mark == tags.call:
            self._reader.back(len(mark))
        elif mark == tags.name_end:
            mark = tags.key if (yield from self._reader.accept_after_space(tags.key)) else ""
        yield from self._named_call(name.strip(), lambda values: self._values(values, mark))

    def _values(self, values: NamedValues, mark: str) -> Step[None]:
        tags = self._tags
        while mark == tags.key:
            key, end = yield from self._reader.text_until((tags.key_end, tags.value), limit=_MAX_NAME)
            is_string = None
            if end == tags.key_end:
                is_string = yield from self._type()
                yield from self._reader.expect_after_space(tags.value)
            others = (tags.key, tags.call_end, tags.call)
            yield from values.read(self._reader, key.strip(), tags.value_end, others=others, is_string=is_string)
            mark = tags.key if (yield from self._reader.accept_after_space(tags.key)) else ""
        yield from self._reader.accept_after_space(tags.call_end)

    def _type(self) -> Step[bool | None]:
        """Whether the value is a string, if a type stands before it that says so."""
        if not self._tags.type or not (yield from self._reader.accept_after_space(self._tags.type)):
            return None
        kind, _ = yield from self._reader.text_until((self._tags.type_end,), limit=_MAX_NAME)
        return kind.strip() in _TEXT_TYPES or None


@dataclasses.dataclass(frozen=True, slots=True)
class ElementTags:
    """How a family writes a call as an element that holds an element for each parameter.

    Attributes:
        before: marks that surround the calls, and say nothing themselves, in the order in which they come.
        function, parameter: how their opening tags begin; what follows, up to `tag_end`, names them.
        has_attributes: it does so in an attribute; else it is the name.
        function_end, parameter_end: their closing tags.
        after: as `before`, after a call.
        tag_end: ends an opening tag.
        attributes: that hold the name of the function and of the parameter.
        is_exact: line breaks at the ends of a value are part of it.
        has_cdata: a value may stand in a CDATA section, which is exact.

    Models leave out closing tags and the end of opening ones.
    """

    before: tuple[str, ...]
    function: str
    function_end: str
    parameter: str
    parameter_end: str
    after: tuple[str, ...]
    has_attributes: bool
    tag_end: str = ">"
    attributes: tuple[str, str] = ("name", "name")
    is_exact: bool = False
    has_cdata: bool = False

    @property
    def ends_of_value(self) -> tuple[str, ...]:
        """What a value ends at where its closing tag is missing."""
        of_function, of_parameter = (f" {name}=" if self.has_attributes else "" for name in self.attributes)
        return (
            self.parameter + of_parameter,
            self.function_end,
            self.function + of_function,
            *self.before,
            *self.after,
        )

    def name(self, head: str) -> str:
        """
        Raises:
            MalformedCallError: the function has no name.
        """
        return self._name(head, self.attributes[0])

    def key(self, head: str) -> str:
        """
        Raises:
            MalformedCallError: the parameter has no name.
        """
        return self._name(head, self.attributes[1])

    def is_string(self, head: str) -> bool | None:
        """Whether the parameter's value is a string, if the tag says it."""
        if not self.has_attributes:
            return None
        if said := _IS_STRING.search(head):
            return said[1] == "true"
        kind = _TYPE.search(head)
        return None if kind is None else kind[1] in _TEXT_TYPES

    def _name(self, head: str, attribute: str) -> str:
        if not self.has_attributes:
            return head.strip()
        found = re.match(rf"""\s*{attribute}\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'/>]+))""", head)
        if found is None:
            raise MalformedCallError
        return found[1] or found[2] or found[3] or ""


class ElementParser(TaggedCallParser):
    """Values are typed by the schema, unless the tag says itself whether it is a string. Models often leave out the
    marks before the first call, and some write all arguments as one JSON object."""

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
            if (yield from self._reader.peek_after_space()) == "{":
                yield from self._json_call()
                yield from self._accept_each(tags.after)
                return
            yield from self._reader.expect_after_space(tags.function)
        head = yield from self._head()
        if tags.has_attributes and head.endswith("/"):  # an empty element
            name = tags.name(head.removesuffix("/"))
            yield from self._named_call(name, lambda _: self._accept_each(tags.after))
        elif (yield from self._reader.peek_after_space()) == "{":
            yield from self._arguments(tags.name(head), ends=(tags.function_end,))
            yield from self._accept_each((tags.function_end, *tags.after))
        else:
            yield from self._named_call(tags.name(head), self._values)

    def _values(self, values: NamedValues) -> Step[None]:
        tags = self._tags
        while (yield from self._reader.accept_after_space(tags.parameter)):
            head = yield from self._head()
            key, is_string = tags.key(head), tags.is_string(head)
            closing, others, is_exact = tags.parameter_end, tags.ends_of_value, tags.is_exact
            if tags.has_cdata and (yield from self._reader.accept(_CDATA)):
                closing, others, is_exact = _CDATA_END + closing, (), True
            reader = self._reader
            yield from values.read(reader, key, closing, others=others, is_string=is_string, is_exact=is_exact)
        yield from self._reader.accept(tags.function_end)
        yield from self._accept_each(tags.after)

    def _head(self) -> Step[str]:
        """The rest of an opening tag, up to its end or to the end of its line, which is not read."""
        yield from self._reader.space()
        head, mark = yield from self._reader.text_until((self._tags.tag_end, "\n"), limit=_MAX_NAME)
        if mark == "\n":
            self._reader.back(1)
        return head


class MuseParser(ElementParser):
    """Each call is a message to its function; the header may be gone, as the reasoning parser leaves it."""

    START, TO, MESSAGE, ENDS = "<|start|>", "to=", "<|message|>", ("<|eom|>", "<|eot|>")
    TAGS = ElementTags(
        before=("<atem:function_calls>",),
        function="<atem:invoke",
        function_end="</atem:invoke>",
        parameter="<atem:parameter",
        parameter_end="</atem:parameter>",
        after=("</atem:function_calls>",),
        has_attributes=True,
        is_exact=True,
    )

    def __init__(self, output: CallOutput) -> None:
        super().__init__(output, self.TAGS)

    def _read(self) -> Step[None]:
        while found := (yield from self._find((self.START, self.TO, *self.TAGS.before, self.TAGS.function))):
            if (yield from self._attempt(self._message(found))):
                for mark in self.ENDS:
                    yield from self._reader.accept_after_space(mark)

    def _message(self, found: str) -> Step[None]:
        if found in (self.START, self.TO):
            (found,) = self.TAGS.before
            yield from self._reader.text_until((self.MESSAGE,), limit=_MAX_NAME)
            yield from self._reader.expect_after_space(found)
        yield from self._call(found)
