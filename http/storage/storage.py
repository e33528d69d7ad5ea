"""Storage: what this server keeps: one database, in a folder (--file-storage-path) or shared by many servers
(--database-url), and files in the folder, or in a bucket (--blob-store)."""

import contextlib
import dataclasses
import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from palladio.http.storage.blobs.blob_folder import FolderBlobs
from palladio.http.storage.blobs.blob_store import BlobStore
from palladio.http.storage.records.database import Database
from palladio.http.storage.records.schema import CHANGES, SCHEMA
from palladio.http.storage.records.sqlite import SqliteDatabase
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.folders.private_folder import (
    check_file_within,
    make_folder,
    make_folder_within,
    open_file_within,
    sync_folder,
    warn_of_others,
)
from palladio.runtime.interface.errors import ConfigError

if TYPE_CHECKING:
    from palladio.http.storage.postgresql.postgresql import PostgresqlDatabase


_LONGEST_UPLOAD = 24 * 3600.0  # seconds: with other servers in the folder, younger contents may be of one under way


@dataclasses.dataclass(frozen=True, slots=True)
class SharedDatabase:
    """A PostgreSQL that many servers have (--database-url).

    Attributes:
        num_connections: of this server, for transactions.
        lease: seconds for which a server counts as alive after a sign of life.
    """

    url: SecretUrl
    num_connections: int = 4
    lease: float = 60.0


class Storage:
    """A folder that belongs to one server at a time; or, with a shared database, to the servers of that.

    It holds what people ask and are answered, so other users of the host are kept out: of a folder that is made here,
    and else of all that is made in it. A folder that is there may hold more than this, and keeps its mode. The folder
    may be a link; what is in it may not.

    Args:
        remove: called at the end, once nothing writes to the folder any more.
        bucket: makes the BlobStore of contents; None: they are in the folder.
        shared: the database, instead of one in the folder.

    Attributes:
        folder: where it is.
        files: its part for the contents of files.
        blobs: the contents of files.
        database: for everything else; every store keeps its own tables in it.

    Raises:
        ConfigError: the folder cannot be written, another server uses it, or what is in it is a link; or the shared
            database cannot be used.
    """

    database: Database

    def __init__(
        self,
        folder: Path,
        remove: Callable[[], None] | None = None,
        bucket: Callable[[], BlobStore] | None = None,
        shared: SharedDatabase | None = None,
    ) -> None:
        self.folder = folder
        self.files = folder / "files"
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            if remove is not None:
                stack.callback(remove)
            try:
                make_folder(folder)
                warn_of_others(folder, "--file-storage-path")
                make_folder_within(self.files)
                lock = _lock(folder, is_shared=shared is not None)
                stack.callback(os.close, lock)
                if shared is None:
                    _check_own(lock, folder)
                begun = os.fstat(lock).st_mtime - (0.0 if shared is None else _LONGEST_UPLOAD)
                self.blobs: BlobStore = FolderBlobs(self.files, begun) if bucket is None else bucket()
                if shared is None:
                    self.database = _open_sqlite(folder / "palladio.db")
                    stack.callback(self.database.close)
                else:
                    database = _open_postgresql(shared)
                    self.database = database
                    stack.callback(database.close)
                    _claim(lock, folder, database.identity)
                sync_folder(folder)
                with contextlib.suppress(PermissionError):  # the parent may be somebody else's
                    sync_folder(folder.parent)
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(
                    f"--file-storage-path {folder}: {error}; give a folder that this server can write to"
                ) from error
            self._stack = stack.pop_all()

    @classmethod
    def temporary(cls) -> Self:
        """One that is gone when it is closed."""
        folder = tempfile.TemporaryDirectory(prefix="palladio-")
        return cls(Path(folder.name), folder.cleanup)

    def close(self) -> None:
        self._stack.close()


def _open_sqlite(path: Path) -> SqliteDatabase:
    os.close(open_file_within(path, os.O_RDWR))  # SQLite gives its other files the mode of this one
    for suffix in DATABASE_SUFFIXES:
        companion = path.with_name(f"{path.name}{suffix}")
        check_file_within(companion)
        with contextlib.suppress(FileNotFoundError, PermissionError):
            companion.chmod(0o600)
    return SqliteDatabase(path, SCHEMA, CHANGES)


def _open_postgresql(shared: SharedDatabase) -> "PostgresqlDatabase":
    try:
        from palladio.http.storage.postgresql.postgresql import PostgresqlDatabase
    except ImportError as error:
        raise ConfigError(
            f"--database-url needs psycopg: run `pip install '.[postgres]'` in Palladio's repository ({error})"
        ) from error
    return PostgresqlDatabase(shared.url, SCHEMA, CHANGES, shared.num_connections, shared.lease)


def _lock(folder: Path, *, is_shared: bool) -> int:
    """Holds the folder until the descriptor is closed, or the process ends in whatever way."""
    descriptor = open_file_within(folder / "lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"--file-storage-path {folder} is in use by another server; give each server a folder of its own, or all "
            "of them the same --database-url"
        ) from None
    os.utime(descriptor)  # when this began, by the clock of this disk
    return descriptor


@dataclasses.dataclass(frozen=True, slots=True)
class Migration:
    """From the database in a folder to a shared one. While it is open, no server uses the folder."""

    source: SqliteDatabase
    target: "PostgresqlDatabase"
    _lock: int
    _folder: Path

    def claim(self, identity: str) -> None:
        """From now on, the folder is one of servers that have the shared database, which has this identity."""
        _claim(self._lock, self._folder, identity)


@contextlib.contextmanager
def migrating(folder: Path, shared: SharedDatabase) -> Iterator[Migration]:
    """
    Raises:
        ConfigError: a server uses the folder; or one of the databases cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        lock = _lock(folder, is_shared=False)
        stack.callback(os.close, lock)
        try:
            source = _open_sqlite(folder / "palladio.db")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"--file-storage-path {folder}: {error}") from error
        stack.callback(source.close)
        target = _open_postgresql(shared)
        stack.callback(target.close)
        if _owner(lock):
            _claim(lock, folder, target.identity)
        yield Migration(source, target, lock, folder)


def _owner(lock: int) -> str:
    """The identity of the shared database that the folder belongs to; empty: it has one of its own."""
    return os.pread(lock, 64, 0).decode("ascii", "replace")


def _check_own(lock: int, folder: Path) -> None:
    """
    Raises:
        ConfigError: the folder is a shared database's: what this one does not know would be removed from it.
    """
    if _owner(lock):
        raise ConfigError(
            f"--file-storage-path {folder} belongs to the database of a --database-url: give that flag, or another "
            "folder"
        )


def _claim(lock: int, folder: Path, identity: str) -> None:
    """Claim a shared folder for one database: each server removes files that its database does not know.

    Raises:
        ConfigError: the folder is another database's.
    """
    if _owner(lock) not in ("", identity):
        raise ConfigError(
            f"--file-storage-path {folder} belongs to another database than that of --database-url; give the folder "
            "that this database has been used with, or an empty one"
        )
    os.pwrite(lock, identity.encode(), 0)
    os.fsync(lock)


DATABASE_SUFFIXES = ("-wal", "-shm", "-journal")  # of the files that SQLite keeps with the database
