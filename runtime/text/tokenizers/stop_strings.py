"""Strings in a stream of text, however it is cut into pieces: stop strings, and the marks that readers look for."""

import functools
import re
from collections.abc import Sequence

_ROOT = 0


class StopStrings:
    """An automaton of strings (Aho and Corasick's). It is never changed, so samples share it.

    A node stands for a beginning of a string; the node where a text has led to is the longest one that the text ends
    with. Making it takes one step for each character of the strings; following a text, two at most for each of its own.

    Attributes:
        first: the characters that a string begins with.
    """

    @classmethod
    @functools.lru_cache(maxsize=16)
    def of(cls, strings: tuple[str, ...]) -> "StopStrings":
        """The automaton of a request's stop strings, shared by its samples."""
        return cls(strings)

    def __init__(self, strings: Sequence[str]) -> None:
        self.first = frozenset(string[0] for string in strings)
        self._next: dict[tuple[int, str], int] = {}
        self._depth = [0]  # of each node: characters that it stands for
        self._fallback = [_ROOT]  # the longest other beginning that it ends with
        self._match = [0]  # characters of the longest string that it ends with; 0: it ends with none
        self._goes_on = [True]  # whether a string is longer
        for string in strings:
            self._add(string)
        self._link()

    def follow(self, node: int, character: str) -> int:
        """The node behind one more character."""
        step = self._next.get
        while (found := step((node, character))) is None:
            if node == _ROOT:
                return _ROOT
            node = self._fallback[node]
        return found

    def search(self, node: int, text: str) -> tuple[int, int, int]:
        """Follows a text up to the first end of a string.

        Returns:
            The node; how many characters of the text were followed; and those of the longest string that ends there (0:
            none did).
        """
        step, fallback, match = self._next.get, self._fallback, self._match
        for position, character in enumerate(text, start=1):
            while (found := step((node, character))) is None and node != _ROOT:
                node = fallback[node]
            node = found or _ROOT
            if match[node]:
                return node, position, match[node]
        return node, len(text), 0

    def held(self, node: int) -> int:
        """How many of the last characters may still become a string with those that come."""
        while not self._goes_on[node]:
            node = self._fallback[node]
        return self._depth[node]

    def _add(self, string: str) -> None:
        node = _ROOT
        for character in string:
            child = self._next.get((node, character))
            if child is None:
                child = self._next[node, character] = len(self._depth)
                self._depth.append(self._depth[node] + 1)
                self._fallback.append(_ROOT)
                self._match.append(0)
                self._goes_on.append(False)
                self._goes_on[node] = True
            node = child
        self._match[node] = len(string)

    def _link(self) -> None:
        """Shorter beginnings first: what a node falls back to is known then."""
        for (parent, character), node in sorted(self._next.items(), key=lambda edge: self._depth[edge[1]]):
            if parent != _ROOT:
                self._fallback[node] = self.follow(self._fallback[parent], character)
            self._match[node] = self._match[node] or self._match[self._fallback[node]]


class StopStringMatcher:
    """Finds the first stop string in a stream of text and holds back what may become part of one.

    The match that is complete first wins; of several complete at the same character, the longest. That is
    independent of how the text is cut into pieces.

    Attributes:
        matched: the stop string that was found; nothing may be fed after that.

    Args:
        stop: the stop strings.
        keep_match: show the matched string too (`no_stop_trim`).
    """

    def __init__(self, stop: Sequence[str], *, keep_match: bool = False) -> None:
        self.matched: str | None = None
        self._keep_match = keep_match
        self._strings = StopStrings.of(tuple(stop)) if stop else None
        self._node = _ROOT
        self._held = ""

    def feed(self, text: str, *, armed: bool = True) -> str:
        """Takes new text, returns the text that is safe to show.

        Args:
            text: what follows the text fed so far.
            armed: False: a match that ends in this piece does not count (`min_tokens` is not reached).
        """
        strings = self._strings
        if strings is None or (self._node == _ROOT and strings.first.isdisjoint(text)):
            return text
        buffer = self._held + text
        node, num_read, length = strings.search(self._node, text)
        if length and armed:
            end = len(self._held) + num_read
            self.matched = buffer[end - length : end]
            self._held = ""
            return buffer[:end] if self._keep_match else buffer[: end - length]
        for character in text[num_read:]:
            node = strings.follow(node, character)
        self._node = node
        cut = len(buffer) - strings.held(node)
        self._held = buffer[cut:]
        return buffer[:cut]

    def flush(self) -> str:
        """What is held back, at the end of the stream."""
        held, self._held, self._node = self._held, "", _ROOT
        return held


class Marks:
    """A set of strings to look for; where two begin at the same place, the longer one is found. It never changes.

    Attributes:
        longest: characters of the longest one.
    """

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, *marks: str) -> "Marks":
        """The marks for strings that most requests look for."""
        return cls(marks)

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = tuple(sorted(set(marks), key=len, reverse=True))
        self._search = re.compile("|".join(map(re.escape, self._marks))).search
        self._first = frozenset(mark[0] for mark in self._marks)
        self.longest = max(map(len, self._marks), default=1)

    def may_begin_in(self, text: str) -> bool:
        """Whether the text has a character with which one of them begins."""
        return not self._first.isdisjoint(text)

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
