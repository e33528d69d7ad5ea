"""DeepSeek V3, R1-0528 and V3.1: calls in a section, with marks around each and between name and arguments."""

from palladio.http.tool_calls.json_call import SectionedCallParser, SectionMarks
from palladio.http.tool_calls.output import CallOutput
from palladio.http.tool_calls.reader import Step

SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, NAME_END, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

_MAX_NAME = 256


class DeepSeekParser(SectionedCallParser):
    """V3.1 writes `name<｜tool▁sep｜>{…}`.

    Args:
        fenced: as V3 writes it: `function<｜tool▁sep｜>name`, and the arguments in a fenced block of JSON.
    """

    _marks = SectionMarks(SECTION, CALL, SECTION_END)

    def __init__(self, output: CallOutput, *, fenced: bool) -> None:
        super().__init__(output)
        self._fenced = fenced

    def _call(self) -> Step[None]:
        head, _ = yield from self._reader.text_until((NAME_END,), limit=_MAX_NAME)
        if self._fenced:
            head, _ = yield from self._reader.text_until(("\n",), limit=_MAX_NAME)
            yield from self._reader.space()
            yield from self._reader.accept("```json")
        yield from self._arguments(head.strip())
        yield from self._reader.space()
        if self._fenced:
            yield from self._reader.accept("```")
            yield from self._reader.space()
        yield from self._reader.accept(CALL_END)
