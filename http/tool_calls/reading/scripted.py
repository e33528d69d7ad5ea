"""ScriptedParser: a parser written as one generator that reads the text from its beginning to its end."""

from palladio.http.tool_calls.reading.base import ToolPiece
from palladio.http.tool_calls.reading.output import CallOutput
from palladio.http.tool_calls.reading.reader import MalformedCallError, Reader, Step


class ScriptedParser:
    """Implements ToolCallParser. Subclasses say how to read the whole text, and how to read a call.

    Args:
        output: where what is found goes.
    """

    def __init__(self, output: CallOutput) -> None:
        self._reader = Reader()
        self._output = output
        self._steps = self._read()

    def feed(self, text: str) -> ToolPiece:
        self._reader.push(text)
        next(self._steps, None)
        return self._output.piece()

    def finish(self) -> ToolPiece:
        self._reader.end()
        next(self._steps, None)
        self._output.flush()
        return self._output.piece()

    def _read(self) -> Step[None]:
        """Reads the whole text; white space alone is passed on like any other text."""
        raise NotImplementedError

    def _find(self, marks: tuple[str, ...]) -> Step[str]:
        """Reads content up to the first of the marks, which is marked: `_attempt` gives it back. "" at the end."""
        found = yield from self._reader.until(marks, self._output.content)
        if found:
            self._reader.mark(back=len(found))
        return found

    def _attempt(self, call: Step[None]) -> Step[bool]:
        """Reads a call. If it is none, what was read since the mark becomes content, and false is returned.

        A call that has begun (its name is out) cannot be taken back: whatever reads it ends it without an error.
        """
        try:
            yield from call
        except MalformedCallError:
            self._output.content(self._reader.since_mark())
            return False
        self._reader.release()
        return True

    def _ends_list(self, closing: str) -> Step[bool]:
        """After an element of a list of calls: whether it was the last one, which a comma may follow all the same. If
        not, the next one is marked.

        Args:
            closing: the mark after the list, for one whose bracket is missing; "" for none.
        """
        if (yield from self._reader.accept_after_space("]")) or (yield from self._reader.peek()) != ",":
            return True
        self._reader.mark()
        yield from self._reader.take()
        if (yield from self._reader.accept_after_space("]")):
            return True
        return (yield from self._reader.ends_or_has((closing,) if closing else ()))

    def _begin(self, name: str, call_id: str | None = None) -> None:
        """
        Raises:
            MalformedCallError: there is no such function.
        """
        if name not in self._output.functions:
            raise MalformedCallError
        self._reader.release()
        self._output.begin(name, call_id)
