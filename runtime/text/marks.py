"""Finding the first of several fixed strings in text that comes in pieces."""

import re
from collections.abc import Sequence


class Marks:
    """A set of strings to look for; where two begin at the same place, the longer one is found.

    Attributes:
        longest: characters of the longest one.
    """

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = tuple(sorted(set(marks), key=len, reverse=True))
        self._search = re.compile("|".join(map(re.escape, self._marks))).search
        self._first = frozenset(mark[0] for mark in self._marks)
        self.longest = max(map(len, self._marks), default=1)

    def find(self, text: str, begin: int, end: int | None = None) -> tuple[int, str] | None:
        """Position and string of the first one between `begin` and `end`."""
        found = self._search(text, begin, len(text) if end is None else end)
        return None if found is None else (found.start(), found.group())

    def hold_from(self, text: str, begin: int) -> int:
        """Where, from `begin` on, the end of the text may still become one of them; else the text's length."""
        for start in range(max(begin, len(text) - self.longest + 1), len(text)):
            if text[start] in self._first:
                tail = text[start:]
                if any(len(mark) > len(tail) and mark.startswith(tail) for mark in self._marks):
                    return start
        return len(text)
