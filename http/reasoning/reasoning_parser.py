"""Parsers that split a sample's text into reasoning and content."""

import abc
import dataclasses
import re

from palladio.runtime.text.tokenizers.stop_strings import Marks


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

    def take_plain(self, text: str) -> bool:
        """Takes new text if it is certain at a glance that `feed` would give all of it in one piece of the kind that
        the text ends in; returns whether it has. For the many pieces in which there is nothing to find.

        Args:
            text: not empty.
        """
        return False

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


_MAX_BLANKS = 256  # more of them are text
_match_blanks = re.compile(r"\s+").match


@dataclasses.dataclass(frozen=True, slots=True)
class Tags:
    """How reasoning is written.

    Attributes:
        start: opens it.
        end: closes it.
        closers: close it as well, and are part of what follows: the openings of tool calls.
        answer: surround what is not reasoning, and are dropped there.
        anywhere: they count in the middle of a line, too: no text has them by chance.
        drops_end: a closing tag without an opening one is dropped; else it is text.
    """

    start: str
    end: str
    closers: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()
    anywhere: bool = False
    drops_end: bool = True

    def count_anywhere(self, tag: str) -> bool:
        """Whether the tag counts in the middle of a line outside of reasoning."""
        return self.anywhere or tag in self.answer


class TagParser(ReasoningParser):
    """Splits text at tags.

    - A tag opens reasoning at the beginning of a line only, so that an answer may speak of the tag. There may be
      several blocks. A closing tag without an opening one is dropped there, and is text anywhere else.
    - Inside, the first closing tag counts wherever it stands. An opening tag at the very beginning is dropped: the
      prompt has opened the block already.
    - One newline after each tag, and one before the closing tag, belong to the tags; so do all after a closing tag that
      no content is before. A block of blanks is none, and blanks before the first tag of a text are dropped.

    Args:
        tags: what to look for.
        begun: the text begins inside.
        continues: the text goes on with one that is there already, in the middle of a line.
        keep_tags: drop nothing: tags and blanks are part of the pieces that they belong to.
    """

    def __init__(self, tags: Tags, *, begun: bool = False, continues: bool = False, keep_tags: bool = False) -> None:
        super().__init__()
        self._tags = tags
        self._inside_marks = Marks.of(tags.start, tags.end, *tags.closers)
        self._outside_marks = Marks.of(tags.start, *((tags.end,) if tags.drops_end else ()), *tags.answer)
        self._keep = keep_tags
        self._inside = begun
        self._fresh = not continues  # of the whole text, or of the block inside: nothing but blanks so far
        self._line_is_blank = not continues  # outside: all since the last newline
        self._after_tag = begun and not continues  # a newline here belongs to the tag
        self._has_content = continues

    @property
    def is_reasoning(self) -> bool:
        return self._inside

    @property
    def is_undecided(self) -> bool:
        return not self._inside and bool(self._held) and not self._held.isspace()

    def take_plain(self, text: str) -> bool:
        marks = self._inside_marks if self._inside else self._outside_marks
        if self._held or self._fresh or self._after_tag or "\n" in text or marks.may_begin_in(text):
            return False
        if not self._inside:
            self._has_content = True
            self._line_is_blank = self._line_is_blank and text.isspace()
        return True

    def _read_rest(self, held: str) -> None:
        if self._inside and self._fresh and held.isspace():
            self._drop(held)
        else:
            self._emit(held)

    def _read(self) -> bool:
        """Takes from the held text up to the next tag, or what is certain. Returns whether to go on."""
        if self._after_tag:
            self._after_tag = self._held[self._at] == "\n" and not self._inside and not self._has_content
            if self._held[self._at] == "\n":
                self._drop("\n")
                self._at += 1
                return True
        return self._read_inside() if self._inside else self._read_outside()

    def _read_outside(self) -> bool:
        held, marks = self._held, self._outside_marks
        found = marks.find(held, self._at)
        while found is not None and not self._tags.count_anywhere(found[1]) and not self._begins_line(found[0]):
            found = marks.find(held, found[0] + 1)
        if found is None:
            cut = marks.hold_from(held, self._at)
            if cut > self._opening_end():
                self._emit_to(cut)
            return False
        position, tag = found
        if position <= self._opening_end():
            self._drop(held[self._at : position])
        else:
            self._emit_to(position)
        self._pass(position, tag, inside=tag == self._tags.start)
        return True

    def _read_inside(self) -> bool:
        held, marks = self._held, self._inside_marks
        opening = self._opening_end()
        found = marks.find(held, self._at)
        while found is not None and found[1] == self._tags.start and found[0] > opening:
            found = marks.find(held, found[0] + 1)
        if found is None:
            cut = marks.hold_from(held, self._at)
            if cut > opening:
                is_newline = cut > self._at and held[cut - 1] == "\n"  # it may stand before the closing tag
                self._emit_to(cut - 1 if is_newline else cut)
            return False
        position, tag = found
        before = held[self._at : position]
        if position <= opening:
            self._drop(before)
        else:
            self._emit(before.removesuffix("\n"))
            self._drop("\n" if before.endswith("\n") else "")
        if tag in (self._tags.start, self._tags.end):
            self._pass(position, tag, inside=tag == self._tags.start)
            return True
        self._inside = self._line_is_blank = self._fresh = False
        self._at = position
        self._emit_to(position + len(tag))
        return True

    def _pass(self, position: int, tag: str, *, inside: bool) -> None:
        """Leaves a tag behind, which is part of the block that it opens or closes."""
        self._inside = self._inside or inside
        self._drop(tag)
        self._at = position + len(tag)
        self._fresh = self._inside = inside
        self._line_is_blank = self._after_tag = True

    def _opening_end(self) -> int:
        """How far the text, or the block inside, is blank from its beginning; -1 if that is behind."""
        if not self._fresh:
            return -1
        blanks = _match_blanks(self._held, self._at)
        length = 0 if blanks is None else blanks.end() - self._at
        return self._at + length if length <= _MAX_BLANKS else -1

    def _begins_line(self, position: int) -> bool:
        """Whether there are only blanks before it in its line."""
        while position > self._at and self._held[position - 1].isspace():
            if self._held[position - 1] == "\n":
                return True
            position -= 1
        return position == self._at and self._line_is_blank

    def _emit_to(self, end: int) -> None:
        self._emit(self._held[self._at : end])
        self._at = end

    def _emit(self, text: str) -> None:
        if not text:
            return
        self._fresh = False
        self._append(text, is_reasoning=self._inside)
        if not self._inside:
            self._has_content = True
            _, newline, line = text.rpartition("\n")
            self._line_is_blank = (not line or line.isspace()) and (bool(newline) or self._line_is_blank)

    def _drop(self, text: str) -> None:
        if self._keep and text:
            self._append(text, is_reasoning=self._inside)
