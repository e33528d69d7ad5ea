"""Peers: the other front processes of a server, as one of them sees them."""

from collections.abc import AsyncIterator, Callable
from typing import Final, Literal, Protocol

METRICS: Final = "metrics"  # kind of the question what a front has counted
Answerer = Callable[[bytes], AsyncIterator[bytes]]
"""Answers a question of another front, in parts."""


class Peers(Protocol):
    """One front process serves alone, or several that share an engine.

    Attributes:
        number: of this front.
        is_alone: there are no others, and never will be.
        member: what a shared database knows this front as; empty: it has no name yet.
    """

    number: int
    is_alone: bool

    @property
    def member(self) -> str: ...

    async def lead(self) -> list[str]:
        """Returns when this front is the one that does what only one may do: batches, responses in the background,
        what expires. It stays that one. The answer: `member` of each that led before it, all of which have ended."""
        ...

    async def leader(self) -> int:
        """The number of that front; waits while there is none.

        Raises:
            OverloadedError: there is none for some time.
        """
        ...

    def ask(self, front: int, kind: str, body: bytes = b"") -> AsyncIterator[bytes]:
        """The parts of a front's answer.

        Raises:
            OverloadedError: it has ended.
        """
        ...

    async def ask_others(self, kind: str, body: bytes = b"") -> list[bytes]:
        """The answers of all others; one that ends meanwhile has none."""
        ...

    async def tally(self, own: bytes) -> list[bytes]:
        """What all others have counted (their answers to METRICS), those that have ended among them: each once, and one
        that does not answer with its last answer. Args: own: this front's."""
        ...

    def note(self, event: Literal["serving", "ready"]) -> None:
        """This front answers HTTP; or it takes requests for the engine."""
        ...

    def answer(self, kind: str, answerer: Answerer) -> None:
        """From now on this front answers questions of a kind so."""
        ...


class Alone:
    """The only front process."""

    number = 0
    is_alone = True
    member = ""

    async def lead(self) -> list[str]:
        """See Peers.lead."""
        return []

    async def leader(self) -> int:
        """See Peers.leader."""
        return self.number

    async def ask(self, front: int, kind: str, body: bytes = b"") -> AsyncIterator[bytes]:
        """See Peers.ask."""
        nobody: tuple[bytes, ...] = ()
        for part in nobody:
            yield part

    async def ask_others(self, kind: str, body: bytes = b"") -> list[bytes]:
        """See Peers.ask_others."""
        return []

    async def tally(self, own: bytes) -> list[bytes]:
        """See Peers.tally."""
        return []

    def note(self, event: Literal["serving", "ready"]) -> None:
        """See Peers.note: nobody waits for it."""

    def answer(self, kind: str, answerer: Answerer) -> None:
        """See Peers.answer: nobody asks."""
