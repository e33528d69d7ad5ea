"""Qwen3-Coder: `<function=NAME>` with a `<parameter=KEY>` for each argument, in `<tool_call>`."""

from palladio.http.tool_calls.named_values import NamedValues
from palladio.http.tool_calls.reader import MalformedCallError, Step
from palladio.http.tool_calls.scripted import ScriptedParser

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"

_MAX_NAME = 256


class Qwen3CoderParser(ScriptedParser):
    """The model often leaves out the first `<tool_call>`."""

    def _read(self) -> Step[None]:
        while found := (yield from self._find((OPEN, FUNCTION))):
            yield from self._attempt(self._call(found))

    def _call(self, found: str) -> Step[None]:
        if found == OPEN:
            yield from self._reader.space()
            yield from self._reader.expect(FUNCTION)
        name, _ = yield from self._reader.text_until((">",), limit=_MAX_NAME)
        name = name.strip()
        self._begin(name)
        values = NamedValues(self._output, name)
        try:
            while True:
                yield from self._reader.space()
                if not (yield from self._reader.accept(PARAMETER)):
                    break
                key, _ = yield from self._reader.text_until((">",), limit=_MAX_NAME)
                yield from values.read(self._reader, key.strip(), PARAMETER_END)
            yield from self._reader.expect(FUNCTION_END)
            yield from self._reader.space()
            yield from self._reader.accept(CLOSE)
        except MalformedCallError:
            pass  # the call has begun: it keeps the arguments that it has
        values.end()
