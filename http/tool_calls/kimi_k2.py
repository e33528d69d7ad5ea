"""Kimi K2: calls in a section, each with an id `functions.NAME:INDEX` that names the function."""

import re

from palladio.http.tool_calls.json_call import JsonCallParser
from palladio.http.tool_calls.reader import MalformedCallError, Step

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

_MAX_ID = 256
_ID = re.compile(r"(?:functions\.)?(.+):\d+", re.DOTALL)


class KimiK2Parser(JsonCallParser):
    """The id is kept as it is: the model reads it again in the tool's answer."""

    def _read(self) -> Step[None]:
        while found := (yield from self._find((SECTION, CALL, SECTION_END))):
            if found == SECTION_END and self._output.after_call:
                self._reader.release()
            else:
                yield from self._attempt(self._call(found))

    def _call(self, found: str) -> Step[None]:
        if found != CALL:
            yield from self._reader.space()
            yield from self._reader.expect(CALL)
        text, _ = yield from self._reader.text_until((ARGUMENTS,), limit=_MAX_ID)
        call_id = _ID.fullmatch(text.strip())
        if call_id is None:
            raise MalformedCallError
        yield from self._arguments(call_id[1], text.strip())
        yield from self._reader.space()
        yield from self._reader.accept(CALL_END)
