"""Tally: what all front processes of a server have counted, those that have ended among them. The parent has it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from palladio.front_child import Asked, ask_each


class Counting(Asked, Protocol):
    """A front that counts: see FrontChild."""

    is_serving: bool

    def keep(self, kind: str, answer: bytes) -> None: ...

    def kept(self, kind: str) -> bytes | None: ...


class Tally:
    """
    Args:
        kind: of the question.
        fronts: those that run, by number; it changes.
        merge: one answer for those of fronts that have ended.
    """

    def __init__(self, kind: str, fronts: Mapping[int, Counting], merge: Callable[[Sequence[bytes]], bytes]) -> None:
        self.kind = kind
        self._fronts = fronts
        self._merge = merge
        self._ended: bytes | None = None

    def end(self, front: Counting) -> None:
        """It has ended, and is none of the fronts any more."""
        answer = front.kept(self.kind)
        if answer is not None:
            self._ended = self._merge([answer] if self._ended is None else [self._ended, answer])

    async def others(self, asker: Counting, own: bytes) -> list[bytes]:
        """The answers of all but one. Each front is in them once: one that ends meanwhile, or is too busy to answer,
        with its last answer. So a sum never falls."""
        asker.keep(self.kind, own)
        fronts = list(self._fronts.values())
        await ask_each([front for front in fronts if front is not asker and front.is_serving], self.kind)
        live = [front.kept(self.kind) for front in self._fronts.values() if front is not asker]
        return [answer for answer in (*live, self._ended) if answer is not None]
