"""GLM 4.5 … 5: `<tool_call>NAME` with an `<arg_key>` and an `<arg_value>` for each argument."""

from palladio.http.tool_calls.named_values import NamedValues
from palladio.http.tool_calls.reader import MalformedCallError, Step
from palladio.http.tool_calls.scripted import ScriptedParser

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"

_MAX_NAME = 256


class Glm45Parser(ScriptedParser):
    """GLM 4.5 and 4.6 write a line break after each part, GLM 4.7 none."""

    def _read(self) -> Step[None]:
        while (yield from self._find((OPEN,))):
            yield from self._attempt(self._call())

    def _call(self) -> Step[None]:
        name, mark = yield from self._reader.text_until((KEY, CLOSE), limit=_MAX_NAME)
        name = name.strip()
        self._begin(name)
        values = NamedValues(self._output, name)
        try:
            while mark == KEY:
                key, _ = yield from self._reader.text_until((KEY_END,), limit=_MAX_NAME)
                yield from self._reader.space()
                yield from self._reader.expect(VALUE)
                yield from values.read(self._reader, key.strip(), VALUE_END)
                yield from self._reader.space()
                mark = KEY if (yield from self._reader.accept(KEY)) else ""
            yield from self._reader.accept(CLOSE)
        except MalformedCallError:
            pass  # the call has begun: it keeps the arguments that it has
        values.end()
