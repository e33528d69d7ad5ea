"""Llama 3: `{"name": …, "parameters": {…}}`, bare or after `<|python_tag|>`; several are separated by `;`."""

from palladio.http.tool_calls.json_call import JsonCallParser
from palladio.http.tool_calls.reader import Step

_TAG = "<|python_tag|>"


class Llama3Parser(JsonCallParser):
    """Any `{` may begin a call: it is one if the object's first key fits and the name is of a known function."""

    def _read(self) -> Step[None]:
        while found := (yield from self._find((_TAG, "{"))):
            if found == "{":
                self._reader.back(1)
            read = yield from self._attempt(self._call())
            while read:
                yield from self._reader.space()
                if (yield from self._reader.peek()) != ";":
                    break
                self._reader.mark()
                yield from self._reader.take()
                read = yield from self._attempt(self._call())

    def _call(self) -> Step[None]:
        yield from self._reader.space()
        yield from self._json_call(bare=True)
