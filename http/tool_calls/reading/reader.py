"""Text that arrives in pieces, read as if it were whole: what parsers written as generators are made of.

A primitive yields while it needs more text, so a parser decides nothing before it could decide it on the whole text:
how the text was cut makes no difference.
"""

import re
from collections.abc import Callable, Generator
from typing import TypeVar

from palladio.runtime.text.tokenizers.stop_strings import Marks

T = TypeVar("T")
Step = Generator[None, None, T]

SPACE = " \t\r\n"


class MalformedCallError(Exception):
    """The text is not a call after all."""


class CutOffError(MalformedCallError):
    """The text has ended within a call."""


class Reader:
    """The text of one sample."""

    def __init__(self) -> None:
        self._ended = False
        self._text = ""
        self._at = 0
        self._mark: int | None = None

    def push(self, text: str) -> None:
        kept = self._at if self._mark is None else self._mark
        self._text = self._text[kept:] + text
        self._at -= kept
        if self._mark is not None:
            self._mark = 0

    def end(self) -> None:
        """No more text will come."""
        self._ended = True

    def mark(self, back: int = 0) -> None:
        """Keeps the text from here on (or from `back` characters ago) for `since_mark`."""
        self._mark = self._at - back

    def since_mark(self) -> str:
        """The text since the mark, which is taken away."""
        assert self._mark is not None
        text, self._mark = self._text[self._mark : self._at], None
        return text

    def release(self) -> None:
        """Takes the mark away."""
        self._mark = None

    def back(self, count: int) -> None:
        """Takes back the last characters of what was just read."""
        self._at -= count

    def peek(self) -> Step[str]:
        """The next character, "" at the end."""
        while self._at == len(self._text) and not self._ended:
            yield
        return self._text[self._at : self._at + 1]

    def take(self) -> Step[str]:
        """Reads the next character.

        Raises:
            CutOffError: the text has ended.
        """
        character = yield from self.peek()
        if not character:
            raise CutOffError
        self._at += 1
        return character

    def run(self, pattern: re.Pattern[str]) -> str:
        """Reads what of the text that is here matches; more of it may come."""
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def word(self, pattern: re.Pattern[str]) -> Step[str]:
        """Reads all that matches a pattern of single characters, such as `[a-z]+`."""
        parts: list[str] = []
        while True:
            parts.append(self.run(pattern))
            if self._at < len(self._text) or self._ended:
                return "".join(parts)
            yield

    def space(self) -> Step[str]:
        """Reads white space."""
        return (yield from self.word(_SPACES))

    def accept(self, mark: str) -> Step[bool]:
        """Reads `mark` if it comes next."""
        while True:
            here = self._text[self._at : self._at + len(mark)]
            if here == mark:
                self._at += len(mark)
                return True
            if self._ended or not mark.startswith(here):
                return False
            yield

    def expect(self, mark: str) -> Step[None]:
        """
        Raises:
            MalformedCallError: something else comes next.
        """
        if not (yield from self.accept(mark)):
            raise CutOffError if self._ended and not (yield from self.peek()) else MalformedCallError

    def ends_or_has(self, marks: tuple[str, ...]) -> Step[bool]:
        """Whether the text ends here, or one of the marks comes next; nothing is read."""
        if not (yield from self.peek()):
            return True
        for mark in marks:
            if (yield from self.accept(mark)):
                self.back(len(mark))
                return True
        return False

    def peek_after_space(self) -> Step[str]:
        """Reads white space; gives the next character, "" at the end."""
        yield from self.space()
        return (yield from self.peek())

    def accept_after_space(self, mark: str) -> Step[bool]:
        """Reads white space, and `mark` if it comes next."""
        yield from self.space()
        return (yield from self.accept(mark))

    def expect_after_space(self, mark: str) -> Step[None]:
        """Read white space and `mark`; raise as `expect` if `mark` does not come next."""
        yield from self.space()
        yield from self.expect(mark)

    def until(
        self,
        marks: tuple[str, ...],
        sink: Callable[[str], None],
        *,
        window: int | None = None,
        drops_begun: bool = False,
    ) -> Step[str]:
        """Reads up to the first of the marks and past it: the text before goes to `sink` as it comes.

        Args:
            marks: none of them begins with another.
            window: how far to look before `sink` gets what there is, for one that may raise an error: a text of many
                beginnings is not searched to its end for each.
            drops_begun: the beginning of a mark that the text breaks off in is read, but does not go to `sink`.

        Returns:
            The mark; "" if the text ended without one.
        """
        found_in = Marks.of(*marks)
        while True:
            end = len(self._text) if window is None else min(len(self._text), self._at + window + found_in.longest)
            found = found_in.find(self._text, self._at, end)
            if found is None and end < len(self._text):
                self._pass_on(end - found_in.longest + 1, sink)
                continue
            held = found_in.hold_from(self._text, self._at)  # where a mark may begin that the text breaks off in
            if found is not None and (held >= found[0] or self._ended):
                position, mark = found
                self._pass_on(position, sink)
                self._at = position + len(mark)
                return mark
            self._pass_on(len(self._text) if self._ended and not drops_begun else held, sink)
            if self._ended:
                self._at = len(self._text)
                return ""
            yield

    def text_until(self, marks: tuple[str, ...], *, limit: int | None = None) -> Step[tuple[str, str]]:
        """The text up to the first of the marks, and the mark, which is read too.

        Raises:
            CutOffError: the text ended without one.
            MalformedCallError: there is none within `limit` characters.
        """
        parts: list[str] = []

        def collect(text: str) -> None:
            parts.append(text)
            if limit is not None and (excess := sum(map(len, parts)) - limit) > 0:
                self.back(excess)  # stops at the same place however the text was cut
                raise MalformedCallError

        found = yield from self.until(marks, collect, window=limit)
        if not found:
            raise CutOffError
        return "".join(parts), found

    def _pass_on(self, end: int, sink: Callable[[str], None]) -> None:
        if end > self._at:
            text, self._at = self._text[self._at : end], end
            sink(text)


_SPACES = re.compile(f"[{SPACE}]+")
