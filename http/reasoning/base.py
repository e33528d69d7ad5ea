"""What a reasoning parser is: it splits a sample's text into reasoning and the rest, however the text is cut."""

import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """What became certain with a piece of text.

    Attributes:
        reasoning: for `reasoning_content`, without tags.
        content: what is not reasoning.
    """

    reasoning: str = ""
    content: str = ""


class ReasoningParser(Protocol):
    """State of one sample. The concatenated pieces do not depend on how the text was cut."""

    def feed(self, text: str) -> ReasoningPiece:
        """Takes new text; what may still become a tag is held back."""
        ...

    def finish(self) -> ReasoningPiece:
        """What was held back, at the end of the text."""
        ...
