"""PieceParser: what parsers of reasoning have in common: text that is held back until it is certain what it is."""

import abc

from palladio.http.reasoning.base import ReasoningPiece


class PieceParser(abc.ABC):
    """Implements ReasoningParser. Subclasses say how to read the text that is held."""

    def __init__(self) -> None:
        self._held = ""
        self._at = 0  # what is before it has been taken
        self._pieces: list[ReasoningPiece] = []

    def feed(self, text: str) -> tuple[ReasoningPiece, ...]:
        self._held += text
        while self._at < len(self._held) and self._read():
            pass
        self._held, self._at = self._held[self._at :], 0
        return self._take()

    def finish(self) -> tuple[ReasoningPiece, ...]:
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
