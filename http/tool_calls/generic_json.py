"""Calls of a model whose chat template knows no tools: a list in JSON, as the generic prompt asks for it."""

from palladio.http.tool_calls.json_families import TaggedJsonParser, Tags
from palladio.http.tool_calls.reading.output import CallOutput
from palladio.http.tool_calls.reading.reader import MalformedCallError, Step

_FENCE = "```"


class GenericJsonParser(TaggedJsonParser):
    """Calls may stand anywhere in the text, in a list or alone, with or without a fence. JSON that does not begin as a
    call does, or names no known function, is content."""

    def __init__(self, output: CallOutput) -> None:
        super().__init__(output, Tags("", ""))

    def _read(self) -> Step[None]:
        while found := (yield from self._find((_FENCE, "[", "{"))):
            yield from self._attempt(self._fenced() if found == _FENCE else self._found(found))

    def _fenced(self) -> Step[None]:
        yield from self._reader.accept("json")
        character = yield from self._reader.peek_after_space()
        if character not in ("[", "{"):
            raise MalformedCallError
        yield from self._reader.take()
        yield from self._found(character)
        yield from self._reader.accept_after_space(_FENCE)

    def _found(self, character: str) -> Step[None]:
        """Read a list of calls, or one call.

        Args:
            character: the first one of the list or call.
        """
        if character == "{":
            self._reader.back(1)
        yield from self._reader.space()
        yield from self._json_call(bare=True)
        if character == "[":
            yield from self._more_calls()
