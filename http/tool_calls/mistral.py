"""Mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}` with a mark for each call."""

from palladio.http.tool_calls.output import CallOutput
from palladio.http.tool_calls.reader import Step
from palladio.http.tool_calls.tagged_json import TaggedJsonParser, Tags

_MAX_NAME = 256


class MistralParser(TaggedJsonParser):
    """The id that may stand in `[CALL_ID]` becomes the call's."""

    def __init__(self, output: CallOutput) -> None:
        super().__init__(output, Tags("[TOOL_CALLS]", ""))

    def _calls(self) -> Step[None]:
        yield from self._reader.space()
        if (yield from self._reader.peek()) in ("[", "{"):
            yield from super()._calls()
            return
        name, mark = yield from self._reader.text_until(("[ARGS]", "[CALL_ID]", "{"), limit=_MAX_NAME)
        call_id = None
        if mark == "[CALL_ID]":
            call_id, mark = yield from self._reader.text_until(("[ARGS]", "{"), limit=_MAX_NAME)
        if mark == "{":
            self._reader.back(1)
        yield from self._arguments(name.strip(), call_id and call_id.strip())
