"""What a reasoning parser is: it splits a sample's text into reasoning and the rest, however the text is cut."""

import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """What became certain with a piece of text: one of the two.

    Attributes:
        reasoning: for `reasoning_content`, without tags.
        content: what is not reasoning.
    """

    reasoning: str = ""
    content: str = ""


class ReasoningParser(Protocol):
    """State of one sample. The concatenated pieces do not depend on how the text was cut."""

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far ends inside reasoning."""

    @property
    def is_undecided(self) -> bool:
        """Whether text outside of reasoning is held back that may turn out to open it."""

    def feed(self, text: str) -> tuple[ReasoningPiece, ...]:
        """Takes new text, returns what became certain, in order; what may still become a tag is held back."""

    def finish(self) -> tuple[ReasoningPiece, ...]:
        """What was held back, at the end of the text."""
