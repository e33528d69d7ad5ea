"""BatchLimits: what the batches of a server share, and which batches have lines in the engine."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Generator, Set

from palladio.http.batches.line_runner import LineSlots
from palladio.http.storage.records.news import News


@dataclasses.dataclass(frozen=True, slots=True)
class BatchLimits:
    """What the batches of a server share.

    Attributes:
        gate: limits the lines that run at the same time.
        validating: limits the batches whose files are validated at the same time.
        answering: limits the batches whose lines run at the same time; lines of these alternate.
        news: wakes up after changes of other servers.
    """

    gate: LineSlots
    validating: asyncio.Semaphore
    answering: asyncio.Semaphore
    news: News
    _at_lines: set[str] = dataclasses.field(default_factory=set)

    @property
    def at_lines(self) -> Set[str]:
        """Ids of the batches that this server runs lines of."""
        return self._at_lines

    @contextlib.contextmanager
    def running_lines(self, batch_id: str) -> Generator[None, None, None]:
        self._at_lines.add(batch_id)
        try:
            yield
        finally:
            self._at_lines.discard(batch_id)
