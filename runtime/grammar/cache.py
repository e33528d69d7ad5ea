"""GrammarCache: compiled grammars that are kept, by the bytes that they hold."""

import collections
import concurrent.futures
import weakref

from palladio.runtime.grammar.backend import CompiledGrammar
from palladio.runtime.interface.request.grammar_spec import Grammar

MAX_KEPT = 512  # grammars
MAX_KEPT_TEXT = 1 << 22  # characters of theirs


class Compilation:
    """A grammar that is compiled, or will be.

    Attributes:
        result: its exception is an InvalidRequestError if the grammar is to blame.
        started: when a thread took it up, by time.monotonic; None: it waits for one.
        num_waiting: requests that wait for it.
        num_bytes: bytes that it holds when it is compiled; 0: it is not yet.
        is_small: surely, so that there is always room for it.
        is_given_up: no request waits for it any more, so the rest of the work is left out.
    """

    def __init__(self) -> None:
        self.result: concurrent.futures.Future[CompiledGrammar] = concurrent.futures.Future()
        self.started: float | None = None
        self.num_waiting = 0
        self.num_bytes = 0
        self.is_small = True
        self.is_given_up = False

    def join(self) -> None:
        """A request waits for it."""
        self.num_waiting += 1

    def leave(self) -> None:
        """A request waits for it no longer."""
        self.num_waiting -= 1


class GrammarCache:
    """Not thread-safe, but for `note`: the engine's thread calls it.

    A grammar that no longer fits is dropped, those used longest ago first. One that outputs still follow lives on until
    they end; its bytes count as long.

    Args:
        max_bytes: of compiled grammars.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: collections.OrderedDict[Grammar, Compilation] = collections.OrderedDict()
        self._text_size = 0
        self._changes: collections.deque[int] = collections.deque()  # of num_bytes, from any thread
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all compiled grammars that are kept or that outputs still follow."""
        while self._changes:
            self._num_bytes += self._changes.popleft()
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, grammar: Grammar) -> Compilation | None:
        """Return the kept compilation, and mark it as the one used last."""
        known = self._kept.get(grammar)
        if known is not None:
            self._kept.move_to_end(grammar)
        return known

    def add(self, grammar: Grammar, compilation: Compilation) -> None:
        self._kept[grammar] = compilation
        self._text_size += len(grammar.text)
        self.trim()

    def note(self, compiled: CompiledGrammar, num_bytes: int) -> None:
        """A grammar has been compiled: its bytes count until it is gone."""
        self._changes.append(num_bytes)
        finalizer = weakref.finalize(compiled, self._changes.append, -num_bytes)
        finalizer.atexit = False

    def trim(self) -> None:
        """Drops what does not fit; the one that was used last stays."""
        while len(self._kept) > 1 and (
            len(self._kept) > MAX_KEPT or self._text_size > MAX_KEPT_TEXT or self.num_bytes > self._max_bytes
        ):
            self._drop(next(iter(self._kept)))

    def has_room(self, compilation: Compilation) -> bool:
        """Whether an output may begin to follow this grammar: not if those in use are over the bound with it."""
        self.trim()
        return compilation.is_small or self.num_bytes <= self._max_bytes

    def forget(self, grammar: Grammar, compilation: Compilation) -> None:
        """Drops it, if it is kept."""
        if self._kept.get(grammar) is compilation:
            self._drop(grammar)

    def clear(self) -> None:
        self._kept.clear()
        self._text_size = 0

    def _drop(self, grammar: Grammar) -> None:
        del self._kept[grammar]
        self._text_size -= len(grammar.text)
