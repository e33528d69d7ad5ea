"""Reasoning that stays in the answer with its tags, for clients that take it apart themselves."""

import dataclasses

from palladio.http.reasoning.family import PromptEnd, TagFamily
from palladio.http.reasoning.reasoning_parser import ReasoningParser, TagParser, Tags


class AppendedParser(ReasoningParser):
    """All is content. An opening tag that the prompt ends with is written first.

    Args:
        tags: what is counted as reasoning between.
        begun: the text begins inside.
        first: comes before the text.
    """

    def __init__(self, tags: Tags, *, begun: bool, first: str) -> None:
        super().__init__()
        self._within = TagParser(tags, begun=begun, keep_tags=True)
        self._first = first

    @property
    def is_reasoning(self) -> bool:
        return self._within.is_reasoning

    @property
    def is_undecided(self) -> bool:
        return self._within.is_undecided

    def _read(self) -> bool:
        text = self._held[self._at :]
        self._within.feed(text)
        self._append(self._first + text, is_reasoning=False)
        self._first = ""
        self._at = len(self._held)
        return False

    def _read_rest(self, held: str) -> None:
        """Nothing is held."""


@dataclasses.dataclass(frozen=True, slots=True)
class AppendingFamily(TagFamily):
    """A family whose reasoning is not separated."""

    def new_parser(self, end: PromptEnd, *, has_tools: bool = False, keep_tags: bool = False) -> ReasoningParser:
        before, _ = end.tail()
        is_open = end.continued is None and before.endswith(self.start)
        tags = Tags(self.start, self.end, self.closers if has_tools else ())
        is_new = end.continued is None and self.begins and not before.endswith(self.end)
        return AppendedParser(tags, begun=is_open or is_new, first=self.start if is_open and not keep_tags else "")
