"""How a model family reasons: what turns it on and off, where a prompt leaves it, and which parser reads it."""

import abc
import dataclasses
from typing import Literal

from palladio.http.reasoning.reasoning_parser import ReasoningParser, TagParser, Tags
from palladio.runtime.interface.request.grammar_spec import Thinking, ThoughtClosing
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer

Position = Literal["inside", "outside", "open"]


@dataclasses.dataclass(frozen=True, slots=True)
class PromptEnd:
    """Where the output goes on.

    Attributes:
        text: the prompt.
        continued: the message that is continued; None: a new one begins.
    """

    text: str
    continued: str | None = None

    def tail(self) -> tuple[str, str]:
        """What is before the continued message, and that message as the prompt has it."""
        begin = len(self.text) if self.continued is None else max(0, self.text.rfind(self.continued.strip()))
        return self.text[:begin].rstrip(), self.text[begin:]


@dataclasses.dataclass(frozen=True, slots=True)
class ReasoningFamily(abc.ABC):
    """What is known of models that reason in the same way.

    Attributes:
        name: for --reasoning-parser.
        toggle: the variable of the chat template that turns reasoning on (true) or off (false); None: there is none.
        efforts: the values of `reasoning_effort` that the model knows, in order; (): whatever its template takes.
        answers: an output does not end inside its reasoning, see `closing` (--empty-answer).
    """

    name: str
    toggle: str | None = dataclasses.field(default=None, kw_only=True)
    efforts: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
    answers: bool = dataclasses.field(default=True, kw_only=True)

    @property
    @abc.abstractmethod
    def specials(self) -> tuple[str, ...]:
        """Special tokens that its parser looks for."""

    @property
    def borders(self) -> tuple[str, ...]:
        """Special tokens that open, divide and close a thought."""
        return self.specials

    @abc.abstractmethod
    def new_parser(self, end: PromptEnd, *, has_tools: bool = False, keep_tags: bool = False) -> ReasoningParser:
        """
        Args:
            end: what the text goes on from.
            has_tools: a tool-call parser takes what is not reasoning.
            keep_tags: leave tags in the pieces.
        """

    @abc.abstractmethod
    def thinking(
        self, tokenizer: Tokenizer, end: PromptEnd, budget: int | None, *, has_grammar: bool, has_tools: bool
    ) -> Thinking | None:
        """What the engine must know of it; None: the output does not reason."""

    def closing(self, tokenizer: Tokenizer, end: PromptEnd, *, has_tools: bool) -> ThoughtClosing | None:
        """Return how the engine keeps an output from ending inside its reasoning; None: it may end there, because the
        output does not reason, or because single tokens do not show where its reasoning ends.

        Args:
            end: what the output goes on from.
            has_tools: a tool-call parser takes what is not reasoning.
        """
        return None

    @abc.abstractmethod
    def guess_end(self, answer: str) -> PromptEnd:
        """The end of a prompt that fits a whole answer, for an answer whose prompt is not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class TagFamily(ReasoningFamily):
    """Reasoning between two tags.

    Attributes:
        begins: the output begins inside where the prompt's end shows neither tag.
        closers: openings of tool calls, which close it as well.
        answer, anywhere: see Tags.
        pieces: special tokens that tags are made of, of a tokenizer that has no token for a whole tag.
    """

    start: str = "<think>"
    end: str = "</think>"
    begins: bool = False
    closers: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()
    anywhere: bool = False
    pieces: tuple[str, ...] = ()

    @property
    def specials(self) -> tuple[str, ...]:
        return (*self.borders, *self.closers, *self.pieces)

    @property
    def borders(self) -> tuple[str, ...]:
        return (self.start.strip(), self.end.strip())

    def new_parser(self, end: PromptEnd, *, has_tools: bool = False, keep_tags: bool = False) -> ReasoningParser:
        position = self._position(end)
        return TagParser(
            self._tags(has_tools=has_tools),
            begun=position == "inside" or (position == "open" and self.begins),
            continues=end.continued is not None and not end.text.endswith("\n"),
            keep_tags=keep_tags,
        )

    def thinking(
        self, tokenizer: Tokenizer, end: PromptEnd, budget: int | None, *, has_grammar: bool, has_tools: bool
    ) -> Thinking | None:
        position = self._position(end)
        if position == "outside":
            return None
        return Thinking(
            start_ids=tuple(tokenizer.encode(self.start, add_special_tokens=False)),
            end_ids=tuple(tokenizer.encode(self.end, add_special_tokens=False)),
            begun=position == "inside" or self.begins,
            budget=budget,
        )

    def closing(self, tokenizer: Tokenizer, end: PromptEnd, *, has_tools: bool) -> ThoughtClosing | None:
        position = self._position(end)
        marks = [tokenizer.added_id(mark) for mark in (self.end.strip(), *(self.closers if has_tools else ()))]
        known = [(mark,) for mark in marks if mark is not None]
        start = tokenizer.added_id(self.start.strip())
        if position == "outside" or len(known) < len(marks):
            return None
        return ThoughtClosing(
            end_ids=known[0],
            begun=position == "inside" or self.begins,
            start_ids=(start,) if start is not None else tuple(tokenizer.encode(self.start.strip(), False)),
            marks=tuple((mark, False) for mark in known),
        )

    def guess_end(self, answer: str) -> PromptEnd:
        close = answer.find(self.end)
        is_open = close >= 0 and self.start not in answer[:close]
        return PromptEnd(self.start if is_open else "")

    def _tags(self, *, has_tools: bool) -> Tags:
        """What its parser looks for."""
        return Tags(self.start, self.end, self.closers if has_tools else (), self.answer, self.anywhere)

    def _position(self, end: PromptEnd) -> Position:
        """Where the prompt leaves the output; open: the output says itself."""
        before, message = end.tail()
        start, close = message.rfind(self.start), message.rfind(self.end)
        if start >= 0 or close >= 0:
            return "inside" if start > close else "outside"
        if before.endswith(self.start.strip()):
            return "inside"
        return "outside" if before.endswith(self.end.strip()) or end.continued is not None else "open"


@dataclasses.dataclass(frozen=True, slots=True)
class MessageFamily(TagFamily):
    """A family that marks each message's kind: without tools, the marks of all messages are dropped; with tools, they
    are left to the tool-call parser."""

    def _tags(self, *, has_tools: bool) -> Tags:
        answer = () if has_tools else self.answer
        return Tags(self.start, self.end, (), answer, anywhere=True, drops_end=not has_tools)


@dataclasses.dataclass(frozen=True, slots=True)
class EffortFamily(TagFamily):
    """A family whose prompt opens the reasoning with one of several tags.

    Attributes:
        others: pairs of tags beside start and end.
    """

    others: tuple[tuple[str, str], ...] = ()

    @property
    def specials(self) -> tuple[str, ...]:
        return (self.start, self.end, *self.closers, *(tag for pair in self.others for tag in pair))

    def new_parser(self, end: PromptEnd, *, has_tools: bool = False, keep_tags: bool = False) -> ReasoningParser:
        return TagFamily.new_parser(self._opened(end), end, has_tools=has_tools, keep_tags=keep_tags)

    def thinking(
        self, tokenizer: Tokenizer, end: PromptEnd, budget: int | None, *, has_grammar: bool, has_tools: bool
    ) -> Thinking | None:
        chosen = self._opened(end)
        return TagFamily.thinking(chosen, tokenizer, end, budget, has_grammar=has_grammar, has_tools=has_tools)

    def closing(self, tokenizer: Tokenizer, end: PromptEnd, *, has_tools: bool) -> ThoughtClosing | None:
        return TagFamily.closing(self._opened(end), tokenizer, end, has_tools=has_tools)

    def guess_end(self, answer: str) -> PromptEnd:
        found = next(((start, end) for start, end in self.others if end in answer), (self.start, self.end))
        return TagFamily.guess_end(dataclasses.replace(self, start=found[0], end=found[1]), answer)

    def _opened(self, end: PromptEnd) -> TagFamily:
        """The family with the tags that the prompt ends with, or that the continued message has."""
        before, message = end.tail()
        for start, close in self.others:
            if before.endswith((start, close)) or start in message:
                return dataclasses.replace(self, start=start, end=close)
        return self
