"""Regular expressions that end an output: followed character by character, in time that no pattern makes grow.

A pattern is read by Python's own parser, and followed as a set of positions in it (Thompson's construction): one step
takes the same time however long the text is, and nothing is looked at twice. Sets that were met before, and what a
character makes of them, are remembered. What such a machine cannot follow is refused: references to groups, looking
ahead or behind, anchors, and atomic or possessive parts.
"""

import functools
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.sampling_params import STOP_REGEX

MAX_POSITIONS = 256  # in a pattern with its repetitions written out
_MAX_REMEMBERED = 4096  # steps of a pattern
_KEPT_PATTERNS = 256

States = frozenset[int]
_Leaf = Callable[[str], bool]
_TEXT_FLAGS = re.IGNORECASE | re.DOTALL | re.ASCII | re.UNICODE | re.VERBOSE


class StopPattern:
    """One pattern. Of all requests that have it; safe to use from several threads.

    Attributes:
        text: as the request has it.

    Raises:
        InvalidRequestError: it is malformed, too large, or holds what cannot be followed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._leaves: list[_Leaf] = []
        self._classes: dict[tuple[str, int], _Leaf] = {}  # a repetition has its own many times
        self._next: list[int] = []  # position → where it leads when its character has come
        self._free: dict[int, list[int]] = {}  # position → where it leads without any
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of syntax that will mean something else one day
                tree = parser.parse(text)
        except (re.error, OverflowError) as error:
            raise _wrong(text, f"is malformed: {error}") from None
        except RecursionError:
            raise _wrong(text, "is nested too deeply") from None
        self._end = self._new_position()
        first = self._sequence(tree, self._end, tree.state.flags)
        self.start = self._closure([first])
        if self._end in self.start:
            raise _wrong(text, "matches no text at all, so that every output would end at once")
        self._steps: dict[tuple[States, str], States] = {}

    def step(self, states: States, character: str) -> States:
        """Where the pattern may stand after one more character; it may begin anew with each."""
        key = states, character
        found = self._steps.get(key)
        if found is None:
            reached = [self._next[state] for state in states if state != self._end and self._leaves[state](character)]
            found = self._closure([*reached]) | self.start
            if len(self._steps) >= _MAX_REMEMBERED:
                self._steps.clear()
            self._steps[key] = found
        return found

    def matches(self, states: States) -> bool:
        """Whether a match ends here."""
        return self._end in states

    def _new_position(self, leaf: _Leaf = lambda _: False, leads_to: int = -1) -> int:
        if len(self._leaves) >= MAX_POSITIONS:
            raise _wrong(self.text, f"has more than {MAX_POSITIONS} positions, its repetitions written out")
        self._leaves.append(leaf)
        self._next.append(leads_to)
        return len(self._leaves) - 1

    def _fork(self, targets: Iterable[int]) -> int:
        state = self._new_position()
        self._free[state] = list(targets)
        return state

    def _closure(self, states: list[int]) -> States:
        seen: set[int] = set()
        while states:
            state = states.pop()
            if state not in seen:
                seen.add(state)
                states += self._free.get(state, ())
        return frozenset(state for state in seen if state not in self._free)

    def _sequence(self, items: Sequence[tuple[Any, Any]], end: int, flags: int) -> int:
        """The position where the items begin, which lead to `end`."""
        for code, value in reversed(items):
            end = self._item(code, value, end, flags)
        return end

    def _item(self, code: Any, value: Any, end: int, flags: int) -> int:
        if code is codes.BRANCH:
            return self._fork([self._sequence(branch, end, flags) for branch in value[1]])
        if code is codes.SUBPATTERN:
            _, added, removed, inner = value
            return self._sequence(inner, end, (flags | added) & ~removed)
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, inner = value
            return self._repeat(least, most, inner, end, flags)
        if code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
            return self._new_position(self._leaf(code, value, flags), end)
        raise _wrong(self.text, f"holds what cannot be followed in a stream ({str(code).lower()})")

    def _leaf(self, code: Any, value: Any, flags: int) -> _Leaf:
        """Return a function that says whether a character matches an item."""
        if code is codes.ANY:
            return (lambda _: True) if flags & re.DOTALL else (lambda character: character != "\n")
        key = _class_of(value if code is codes.IN else [(code, value)]), flags & _TEXT_FLAGS & ~re.VERBOSE
        if key not in self._classes:
            self._classes[key] = re.compile(*key).match  # type: ignore[assignment]
        return self._classes[key]

    def _repeat(self, least: int, most: Any, inner: Any, end: int, flags: int) -> int:
        if most is codes.MAXREPEAT:
            loop = self._fork([end])
            self._free[loop].append(self._sequence(inner, loop, flags))
            end = loop
        else:
            if most > MAX_POSITIONS:
                raise _wrong(self.text, f"has more than {MAX_POSITIONS} positions, its repetitions written out")
            behind = end
            for _ in range(most - least):
                end = self._fork([behind, self._sequence(inner, end, flags)])
        if least > MAX_POSITIONS:
            raise _wrong(self.text, f"has more than {MAX_POSITIONS} positions, its repetitions written out")
        for _ in range(least):
            end = self._sequence(inner, end, flags)
        return end


def _class_of(items: Iterable[tuple[Any, Any]]) -> str:
    """The same as a class of characters, for re: one character is all that it will look at."""
    parts, sign = [], ""
    for code, value in items:
        if code is codes.NEGATE:
            sign = "^"
        elif code is codes.NOT_LITERAL:
            sign = "^"
            parts.append(_escape(value))
        elif code is codes.LITERAL:
            parts.append(_escape(value))
        elif code is codes.RANGE:
            parts.append(f"{_escape(value[0])}-{_escape(value[1])}")
        else:
            parts.append(_CATEGORIES[value])
    return f"[{sign}{''.join(parts)}]"


def _escape(character: int) -> str:
    return f"\\U{character:08x}"


_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}


def _wrong(text: str, why: str) -> InvalidRequestError:
    return InvalidRequestError.of("{param} {text!r} {why}", param=STOP_REGEX, text=text[:100], why=why)


@functools.lru_cache(maxsize=_KEPT_PATTERNS)
def read_pattern(text: str) -> StopPattern:
    """
    Raises:
        InvalidRequestError: it is malformed, too large, or holds what cannot be followed.
    """
    return StopPattern(text)


class StopRegexMatcher:
    """Finds the first match of one of several patterns in a stream of text: the one that is complete first.

    Attributes:
        matched: the pattern that has matched; nothing may be fed after that.

    Args:
        patterns: as the request has them.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.matched: str | None = None
        self._patterns = [read_pattern(text) for text in patterns]
        self._states = [pattern.start for pattern in self._patterns]

    def feed(self, text: str, *, armed: bool = True) -> str:
        """Takes new text; returns it up to the end of the match, if there is one.

        Args:
            armed: False: a match that ends in this piece does not count.
        """
        states = self._states
        for position, character in enumerate(text, start=1):
            for number, pattern in enumerate(self._patterns):
                states[number] = reached = pattern.step(states[number], character)
                if armed and self.matched is None and pattern.matches(reached):
                    self.matched = pattern.text
            if self.matched is not None:
                return text[:position]
        return text
