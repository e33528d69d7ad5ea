"""Database: SQLite in a thread of its own, so that the event loop never waits for a disk."""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from palladio.http.wire.errors import ErrorBody, HttpError

T = TypeVar("T")

STORAGE_GONE = ErrorBody(
    503,
    "the files of --file-storage-path were deleted or replaced while the server ran: see the server's log",
    code="storage_gone",
)

logger = logging.getLogger(__name__)


class Database:
    """What has been committed survives a crash of the machine: write-ahead log, fsync at every commit.

    Before each transaction it looks whether its files are where it made them: what is written to files that somebody
    has deleted, or put others in the place of, would be gone with this process.

    Raises:
        sqlite3.Error: the file cannot be opened, is no database, or one of a later version.
    """

    def __init__(self, path: Path, schema: str, changes: Sequence[str] = ()) -> None:
        """
        Args:
            schema: statements that make what is missing, as the first version had it.
            changes: statements of each version after that, in their order. What a database has of them is counted in
                its user_version; the others are made.
        """
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="database")
        self._connection: sqlite3.Connection = self._thread.submit(_connect, path, schema, changes).result()
        self._path = path
        self._files = {file: _identity(file) for file in (path, path.with_name(f"{path.name}-wal"))}
        self._gone: str | None = None  # what is told, once the files are

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Does `work` in the thread, in one transaction; what it raises rolls back. In the order of the calls.

        A caller that is cancelled meanwhile does not undo it.

        Raises:
            sqlite3.Error: such as a full disk.
            HttpError: the database's files were deleted or replaced. The server has to be started again.
        """
        return await asyncio.shield(asyncio.wrap_future(self._thread.submit(self._transact, work)))

    def close(self) -> None:
        """Waits for what is under way."""
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._check()
        with self._connection:  # commits, or rolls back
            self._connection.execute("BEGIN IMMEDIATE")
            return work(self._connection)

    def _check(self) -> None:
        if self._gone is None and any(_identity(file) != known for file, known in self._files.items()):
            self._gone = f"{self._path} was deleted or replaced while the server ran; {self._save()}"
            logger.error("%s", self._gone)
        if self._gone is not None:
            raise HttpError(STORAGE_GONE)

    def _save(self) -> str:
        """Writes what the database held to a new file: the open one is still whole. Returns what to do with it."""
        copy = self._path.with_name(f"{self._path.name}.saved-{os.getpid()}")
        try:
            os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            self._connection.execute("VACUUM INTO ?", (str(copy),))
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(OSError):
                copy.unlink()
            return f"what it held could not be saved ({error}): start the server again, and it begins anew"
        return f"what it held is in {copy}: stop the server, give that file the name {self._path.name}, and start again"


def _identity(file: Path) -> tuple[int, int] | None:
    """Of the file that has this name now; None: there is none."""
    try:
        found = file.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _connect(path: Path, schema: str, changes: Sequence[str]) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.executescript(schema)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(changes):
            raise sqlite3.DatabaseError(f"{path.name} was made by a later version of this server")
        for number in range(version, len(changes)):
            connection.executescript(f"BEGIN IMMEDIATE; {changes[number]} PRAGMA user_version = {number + 1}; COMMIT;")
        connection.execute("BEGIN IMMEDIATE")  # from here on the write-ahead log is there
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection
