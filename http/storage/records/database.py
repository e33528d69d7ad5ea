"""Database: what stores need of one. Both kinds, SQLite and PostgreSQL, take the same statements."""

import asyncio
import collections
import concurrent.futures
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol, TypeVar

from palladio.http.wire.errors import HttpError

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Row(Protocol):
    """A row of a result, by column."""

    def __getitem__(self, name: str, /) -> Any: ...

    def keys(self) -> Iterable[str]: ...


class Cursor(Protocol):
    """What a statement has found or changed."""

    @property
    def rowcount(self) -> int:
        """Rows that were changed."""
        ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A transaction. Statements have `?` for values.

    Attributes:
        for_update: ends a SELECT and locks its rows: no other transaction changes them before this one ends.
        skip_locked: the same, but leaves out rows that others have locked.
        clock: an SQL expression, seconds since the epoch by the clock that all servers share.
    """

    for_update: ClassVar[str]
    skip_locked: ClassVar[str]
    clock: ClassVar[str]

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor: ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object: ...

    def notify(self) -> None:
        """Notify all subscribers once this transaction is committed."""
        ...


class Database(Protocol):
    """
    Attributes:
        server: the id of this server in the database.
        is_shared: other servers may use it at the same time.
        is_away: it cannot be used now, as far as is known. Subscribers are notified when it can be used again.
        failures: how often it could not be used, by the code of the error.
    """

    server: str
    is_shared: bool
    failures: collections.Counter[str]

    @property
    def is_away(self) -> bool: ...

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Does `work` in a thread, in one transaction; what it raises rolls back.

        A caller that is cancelled meanwhile does not undo it. Where the database asks for that, `work` is done again
        from its beginning: it changes nothing but the database.

        Raises:
            sqlite3.Error: such as a full disk.
            HttpError: the database's files were deleted or replaced, or its server cannot be reached.
        """
        ...

    def check(self) -> None:
        """For work that is of no use without it, before it begins: could it be used a moment ago? Costs nothing.

        Raises:
            HttpError: it could not; that is counted.
        """
        ...

    def note_failure(self, code: str) -> None:
        """Count a failure of the database.

        Args:
            code: the error's.
        """
        ...

    def now(self) -> float:
        """Seconds since the epoch, on the clock that all servers of this database share."""
        ...

    def exclusive(self, name: str) -> AbstractAsyncContextManager[bool]:
        """Hold a name; False: another holder has it. The name is free as soon as its holder's process ends.

        It saves work that would be done twice. What must not be done twice is for transactions to refuse.
        """
        ...

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Subscribe to notifications.

        Args:
            wake: called in any thread after a `notify`, perhaps once for several; some may be missed.
        """
        ...

    def close(self) -> None:
        """Waits for what is under way. What this server has claimed is free then."""
        ...


async def outlasting(work: "concurrent.futures.Future[T]") -> T:
    """Return the result of work, which goes on if the caller is cancelled; its error is then only logged."""
    result = asyncio.wrap_future(work)
    try:
        return await asyncio.shield(result)
    except asyncio.CancelledError:
        result.add_done_callback(_end_quietly)
        raise


def _end_quietly(result: "asyncio.Future[T]") -> None:
    """Log the error of work whose caller has gone, before asyncio does. The error of an unavailable database is logged
    already."""
    error = None if result.cancelled() else result.exception()
    if error is not None and not isinstance(error, HttpError):
        logger.error("A transaction failed whose caller had gone", exc_info=error)
