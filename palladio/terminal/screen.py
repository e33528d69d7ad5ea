"""How a chat looks: plain answers, dim thoughts, and no control sequences that a model may write."""

import re
import sys
from typing import Final, TextIO

_DIM, _PLAIN = "\033[2m", "\033[0m"
# What moves the cursor, changes titles or hides text, and the marks that turn the direction of writing.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """With a mark in place of what a terminal would obey."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


class Screen:
    """
    Args:
        out: for answers; notes: for everything else, so that answers can be piped.
        styled: whether `out` understands styles.
    """

    def __init__(self, out: TextIO, notes: TextIO, *, styled: bool) -> None:
        self._out, self._notes = out, notes
        self._styled = styled
        self._is_dim = False
        self._ends_line = True

    @classmethod
    def of_process(cls, no_color: bool) -> "Screen":
        return cls(sys.stdout, sys.stderr, styled=sys.stdout.isatty() and not no_color)

    def answer(self, text: str, *, dim: bool = False) -> None:
        """Print a piece of an answer; leave out dim pieces on a screen without styles."""
        if dim and not self._styled:
            return
        if dim != self._is_dim:
            self._out.write(f"{_DIM}" if dim else f"{_PLAIN}\n\n")
            self._is_dim = dim
        shown = printable(text)
        self._out.write(shown)
        self._out.flush()
        self._ends_line = shown.endswith("\n") if shown else self._ends_line

    def end_answer(self) -> None:
        """At the beginning of a line again."""
        if self._is_dim:
            self._out.write(_PLAIN)
            self._is_dim = False
            self._ends_line = False
        if not self._ends_line:
            self._out.write("\n")
        self._ends_line = True
        self._out.flush()

    def note(self, text: str) -> None:
        """Print a note of the program, not of the model."""
        self._notes.write(f"{text}\n")
        self._notes.flush()
