"""What a parser has found out: content and pieces of calls, in the order of the text."""

import secrets
import string
from collections.abc import Callable

from palladio.http.tool_calls.reading.base import Functions, ToolDelta, ToolPiece
from palladio.http.tool_calls.reading.reader import SPACE

NewId = Callable[[], str]


def openai_id() -> str:
    """`call_` and 24 hexadecimal digits."""
    return f"call_{secrets.token_hex(12)}"


def mistral_id() -> str:
    """Mistral's templates refuse ids that are not nine letters and digits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


class CallOutput:
    """Text and calls of one sample. White space around a call belongs to the call, and is dropped.

    Args:
        functions: functions that may be called.
        parallel: false: calls after the first are dropped.
        new_id: makes the id of a call that brings none.
    """

    def __init__(self, functions: Functions, *, parallel: bool, new_id: NewId) -> None:
        self.functions = functions
        self._parallel = parallel
        self._new_id = new_id
        self._content: list[str] = []
        self._space: list[str] = []  # white space at the end of the content so far
        self._calls: list[tuple[ToolDelta, list[str]]] = []  # each with its arguments' pieces
        self._num_calls = 0
        self.after_call = False  # nothing but white space has come since the last call

    def content(self, text: str) -> None:
        """Text that is no call."""
        if self.after_call:
            text = text.lstrip(SPACE)
            if not text:
                return
            self.after_call = False
        body = text.rstrip(SPACE)
        if body:
            self._content += [*self._space, body]
            self._space.clear()
        self._space.append(text[len(body) :])

    def begin(self, name: str, call_id: str | None = None) -> None:
        """A call of a function that is known begins."""
        self._space.clear()
        self.after_call = True
        self._num_calls += 1
        if self._is_wanted():
            self._calls.append((ToolDelta(self._num_calls - 1, name, call_id or self._new_id()), []))

    def arguments(self, text: str) -> None:
        """More of the arguments' JSON text, of the call that has begun."""
        if not text or not self._is_wanted():
            return
        if not self._calls or self._calls[-1][0].name is not None:
            self._calls.append((ToolDelta(self._num_calls - 1), []))
        self._calls[-1][1].append(text)

    def flush(self) -> None:
        """The text has ended."""
        if not self.after_call:
            self._content += self._space
        self._space.clear()

    def piece(self) -> ToolPiece:
        """What is new since the last time."""
        calls = (ToolDelta(call.index, call.name, call.id, "".join(pieces)) for call, pieces in self._calls)
        piece = ToolPiece("".join(self._content), tuple(calls))
        self._content, self._calls = [], []
        return piece

    def _is_wanted(self) -> bool:
        return self._parallel or self._num_calls == 1
