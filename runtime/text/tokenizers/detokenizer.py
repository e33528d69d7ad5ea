"""Token ids to text, one token at a time, never half a code point; and the marks that readers of such text look for."""

import codecs
import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol


class Marks:
    """A set of strings to look for; where two begin at the same place, the longer one is found. It never changes.

    Attributes:
        longest: characters of the longest one.
    """

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, *marks: str) -> "Marks":
        """Of strings that most requests look for."""
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


REPLACEMENT = "\ufffd"
_MAX_PENDING_TOKENS = 12  # a code point is at most 4 bytes: a longer run of undecodable tokens is garbage, so show it


class IncrementalDetokenizer(Protocol):
    """Turns one sample's tokens into text."""

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; "" while a code point is unfinished."""

    def flush(self) -> str:
        """What is still held back: an unfinished code point comes out as U+FFFD."""


class ByteDetokenizer:
    """For tokenizers whose tokens are byte strings (byte-level BPE, sentencepiece with byte fallback): exact and O(1).

    Args:
        token_bytes: the bytes of a token.
        known: of those that were asked for before; the call costs more than looking there.
        hidden: tokens that are not shown.
        strip_leading_space: the tokenizer's decoder drops one space at the start of a text, and this is the start.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        known: Mapping[int, bytes] = MappingProxyType({}),
        hidden: Collection[int] = (),
        *,
        strip_leading_space: bool = False,
    ) -> None:
        self._token_bytes = token_bytes
        self._known = known
        self._hidden = hidden
        self._strip = strip_leading_space
        self._pending = b""

    def push(self, token_id: int) -> str:
        data = b"" if token_id in self._hidden else (self._known.get(token_id) or self._token_bytes(token_id))
        if self._strip and data:
            data = data.removeprefix(b" ")
            self._strip = False
        if self._pending:
            data = self._pending + data
        text, consumed = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[consumed:]
        return text

    def flush(self) -> str:
        pending, self._pending = self._pending, b""
        return pending.decode("utf-8", "replace")


class WindowDetokenizer:
    """For any other tokenizer: decodes a short window of tokens twice and takes the difference.

    Args:
        decode: token ids → text.
        context_ids: the prompt's last tokens, so that the first token gets the space that belongs before it.
    """

    def __init__(self, decode: Callable[[list[int]], str], context_ids: Sequence[int]) -> None:
        self._decode = decode
        self._window = list(context_ids)
        self._read = len(self._window)  # window[:read] has been shown
        self._shown = decode(self._window)

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        unfinished = text.endswith(REPLACEMENT) or len(text) <= len(self._shown)
        if unfinished and len(self._window) - self._read < _MAX_PENDING_TOKENS:
            return ""
        return self._take(text)

    def flush(self) -> str:
        return self._take(self._decode(self._window)) if len(self._window) > self._read else ""

    def _take(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._window = self._window[self._read :]
        self._read = len(self._window)
        self._shown = self._decode(self._window)
        return new
