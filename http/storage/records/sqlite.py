"""SqliteDatabase: a file, in a thread of its own, so that the event loop never waits for a disk."""

import collections
import concurrent.futures
import contextlib
import logging
import os
import sqlite3
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from palladio.http.storage.records.database import Connection, outlasting
from palladio.http.storage.records.disk_errors import code_of
from palladio.http.wire.errors import ErrorBody, HttpError

T = TypeVar("T")

STORAGE_GONE = ErrorBody(
    503,
    "the files of --file-storage-path were deleted or replaced while the server ran: see the server's log",
    code="storage_gone",
)

_BUSY_TIMEOUT = 30.0  # seconds that a transaction waits for another program, such as a backup

logger = logging.getLogger(__name__)


class SqliteConnection(sqlite3.Connection):
    """A transaction holds the whole database: there are no rows to lock."""

    for_update: ClassVar[str] = ""
    skip_locked: ClassVar[str] = ""
    clock: ClassVar[str] = "((julianday('now') - 2440587.5) * 86400.0)"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.row_factory = sqlite3.Row
        self._has_news = False

    def notify(self) -> None:
        self._has_news = True

    def take_news(self) -> bool:
        """Whether the last transaction has notified."""
        has_news, self._has_news = self._has_news, False
        return has_news


class SqliteDatabase:
    """What has been committed survives a crash of the machine: write-ahead log, fsync at every commit.

    Before each transaction it looks whether its files are where it made them: what is written to files that somebody
    has deleted, or put others in the place of, would be gone with this process.

    Raises:
        sqlite3.Error: the file cannot be opened, is no database, or one of a later version.
    """

    is_shared = False
    is_away = False

    def __init__(self, path: Path, schema: str, changes: Sequence[str] = ()) -> None:
        """
        Args:
            schema: statements that make what is missing, as the first version had it.
            changes: statements of each version after that, in their order. What a database has of them is counted in
                its user_version; the others are made.
        """
        self.server = uuid.uuid4().hex
        self.failures: collections.Counter[str] = collections.Counter()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="database")
        self._connection: SqliteConnection = self._thread.submit(_connect, path, schema, changes).result()
        self._path = path
        self._files = {file: _identity(file) for file in (path, path.with_name(f"{path.name}-wal"))}
        self._gone: str | None = None  # the error, once the files are gone
        self._subscribers: list[Callable[[], None]] = []
        self._held: set[str] = set()

    async def run(self, work: Callable[[Connection], T]) -> T:
        """In the order of the calls.

        Raises:
            sqlite3.Error: such as a full disk.
            HttpError: the database's files were deleted or replaced. The server has to be started again.
        """
        return await outlasting(self._thread.submit(self._transact, work))

    def check(self) -> None:
        if self._gone is not None:
            error = HttpError(STORAGE_GONE)
            self.note_failure(code_of(error))
            raise error

    def note_failure(self, code: str) -> None:
        self.failures[code] += 1

    def now(self) -> float:
        return time.time()

    @contextlib.asynccontextmanager
    async def exclusive(self, name: str) -> AsyncGenerator[bool, None]:
        if name in self._held:
            yield False
            return
        self._held.add(name)
        try:
            yield True
        finally:
            self._held.remove(name)

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._subscribers.append(wake)

    def close(self) -> None:
        """Waits for what is under way."""
        self._subscribers.clear()
        self._thread.submit(self._connection.close).result()
        self._thread.shutdown()

    def _transact(self, work: Callable[[Connection], T]) -> T:
        self._check()
        connection = self._connection
        connection.take_news()  # of one that was rolled back
        with connection:  # commits, or rolls back
            connection.execute("BEGIN IMMEDIATE")
            result = work(connection)
        if connection.take_news():
            for wake in self._subscribers:
                wake()
        return result

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
    """Return device and inode of the file that has this name now; None: there is none."""
    try:
        found = file.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _connect(path: Path, schema: str, changes: Sequence[str]) -> SqliteConnection:
    connection = sqlite3.connect(path, _BUSY_TIMEOUT, isolation_level=None, factory=SqliteConnection)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > len(changes):
                raise sqlite3.DatabaseError(f"{path.name} was made by a later version of this server")
            for script in (schema, *changes[version:]):
                for statement in script.split(";"):  # executescript would end the transaction
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(changes)}")
        # From here on the write-ahead log is there.
    except BaseException:
        connection.close()
        raise
    return connection
