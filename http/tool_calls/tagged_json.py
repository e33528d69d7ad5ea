"""Calls as JSON objects, or lists of them, after a mark: the way of most families, with marks of their own."""

import dataclasses

from palladio.http.tool_calls.json_call import JsonCallParser
from palladio.http.tool_calls.output import CallOutput
from palladio.http.tool_calls.reader import Step


@dataclasses.dataclass(frozen=True, slots=True)
class Tags:
    """
    Attributes:
        opening: comes before a call, or before a list of calls.
        closing: comes after it; "" for none.
    """

    opening: str
    closing: str


class TaggedJsonParser(JsonCallParser):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>` and the like; the closing mark may be missing."""

    def __init__(self, output: CallOutput, tags: Tags) -> None:
        super().__init__(output)
        self._tags = tags

    def _read(self) -> Step[None]:
        while (yield from self._find((self._tags.opening,))):
            if (yield from self._attempt(self._calls())):
                yield from self._reader.space()
                if self._tags.closing:
                    yield from self._reader.accept(self._tags.closing)

    def _calls(self) -> Step[None]:
        """One call, or a list."""
        yield from self._reader.space()
        if not (yield from self._reader.accept("[")):
            yield from self._json_call()
            return
        yield from self._reader.space()
        yield from self._json_call()
        yield from self._more_calls()

    def _more_calls(self) -> Step[None]:
        """The rest of a list after its first call."""
        while True:
            if (yield from self._ends_list()):
                return
            yield from self._reader.space()
            yield from self._json_call()
