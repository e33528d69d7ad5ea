"""Kimi K2: calls in a section, each with an id `functions.NAME:INDEX` that names the function."""

import re

from palladio.http.tool_calls.json_call import SectionedCallParser, SectionMarks
from palladio.http.tool_calls.reader import MalformedCallError, Step

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"

_MAX_ID = 256
_ID = re.compile(r"(?:functions\.)?(.+):\d+", re.DOTALL)


class KimiK2Parser(SectionedCallParser):
    """The id is kept as it is: the model reads it again in the tool's answer."""

    _marks = SectionMarks(SECTION, CALL, SECTION_END)

    def _call(self) -> Step[None]:
        text, _ = yield from self._reader.text_until((ARGUMENTS,), limit=_MAX_ID)
        call_id = _ID.fullmatch(text.strip())
        if call_id is None:
            raise MalformedCallError
        yield from self._arguments(call_id[1], text.strip())
        yield from self._reader.space()
        yield from self._reader.accept(CALL_END)
