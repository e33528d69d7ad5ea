"""The format for models whose own is not known: a JSON object, or a list of them, and nothing else."""

import re

from palladio.http.tool_calls.output import CallOutput
from palladio.http.tool_calls.reader import Step
from palladio.http.tool_calls.tagged_json import TaggedJsonParser, Tags

_ANYTHING = re.compile(r".+", re.DOTALL)


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
