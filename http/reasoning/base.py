"""The base of reasoning parsers: each splits a sample's text into reasoning and the rest, however the text is cut."""

import abc
import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """What became certain with a piece of text: one of the two.

    Attributes:
        reasoning: for `reasoning_content`, without tags.
        content: what is not reasoning.
    """

    reasoning: str = ""
    content: str = ""


class ReasoningParser(abc.ABC):
    """State of one sample. The concatenated pieces do not depend on how the text was cut.

    Text is held back until it is certain what it is; subclasses say how the text that is held is read.
    """

    def __init__(self) -> None:
        self._held = ""
        self._at = 0  # what is before it has been taken
        self._pieces: list[ReasoningPiece] = []

    @property
    @abc.abstractmethod
    def is_reasoning(self) -> bool:
        """Whether the text so far ends inside reasoning."""

    @property
    @abc.abstractmethod
    def is_undecided(self) -> bool:
        """Whether text outside of reasoning is held back that may turn out to open it."""

    def feed(self, text: str) -> tuple[ReasoningPiece, ...]:
        """Takes new text, returns what became certain, in order; what may still become a tag is held back."""
        self._held += text
        while self._at < len(self._held) and self._read():
            pass
        self._held, self._at = self._held[self._at :], 0
        return self._take()

    def finish(self) -> tuple[ReasoningPiece, ...]:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        self._read_rest(held)
        return self._take()

    @abc.abstractmethod
    def _read(self) -> bool:
        """Takes what is certain from the held text. Returns whether to go on."""

    @abc.abstractmethod
    def _read_rest(self, held: str) -> None:
        """Takes all of it: the text has ended."""

    def _append(self, text: str, *, is_reasoning: bool) -> None:
        self._pieces.append(ReasoningPiece(reasoning=text) if is_reasoning else ReasoningPiece(content=text))

    def _take(self) -> tuple[ReasoningPiece, ...]:
        pieces = tuple(self._pieces)
        self._pieces.clear()
        return pieces
