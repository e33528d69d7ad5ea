"""Database: SQLite in a thread of its own, so that the event loop never waits for a disk."""

import asyncio
import concurrent.futures
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class Database:
    """What has been committed survives a crash of the machine: write-ahead log, fsync at every commit.

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

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Does `work` in the thread, in one transaction; what it raises rolls back. In the order of the calls.

        A caller that is cancelled meanwhile does not undo it.

        Raises:
            sqlite3.Error: such as a full disk.
        """
        return await asyncio.shield(asyncio.wrap_future(self._thread.submit(self._transact, work)))

    def close(self) -> None:
        """Waits for what is under way."""
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._connection:  # commits, or rolls back
            self._connection.execute("BEGIN IMMEDIATE")
            return work(self._connection)


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
    except BaseException:
        connection.close()
        raise
    return connection
