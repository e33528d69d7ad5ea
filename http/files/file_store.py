"""FileStore: uploaded files and files of results. Contents lie in a folder under their ids, the rest in the database.

A file is in the database only when its contents are on the disk for good, and its contents go only after it is out of
the database. What a crash leaves between the two is in the folder alone, and is removed at the next start.
"""

import asyncio
import contextlib
import dataclasses
import math
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from palladio.http.security.callers import Caller
from palladio.http.storage.database import Database
from palladio.http.storage.object_lists import new_id, position_of
from palladio.http.storage.store import Store, find_row, insert_row, transaction
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.runtime.folders.private_folder import FILE_MODE, make_folder_within, sync_folder

INPUT_PREFIX, RESULT_PREFIX = "backend_input_file-", "backend_result_file-"
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")  # of uploads
RESULT_PURPOSE = "batch_output"
_OURS = re.compile(rf"(?:{INPUT_PREFIX}|{RESULT_PREFIX})[0-9a-f-]{{36}}(?:\.part)?")
_BUFFER = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class StoredFile:
    """Attributes:
    filename: as the client named it; nothing on the disk is called so.
    created_at, expires_at: seconds since the epoch; None: it stays until it is deleted.
    owner: of the API key that it came with; empty: of none.
    """

    id: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    expires_at: int | None
    owner: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


class NewFile:
    """Contents on their way to the disk, under a temporary name. Every method may wait for the disk.

    Attributes:
        size: bytes so far.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self.id = new_id(prefix)
        self.size = 0
        self._path = folder / self.id
        self._temporary = folder / f"{self.id}.part"
        try:
            self._file = _open_new(self._temporary)
        except FileNotFoundError:  # somebody has deleted the folder
            make_folder_within(folder)
            sync_folder(folder.parent)
            self._file = _open_new(self._temporary)

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def seal(self) -> None:
        """Gives it its name; from here on the contents outlive a crash of the machine.

        Raises:
            OSError: such as a full disk, or the file was deleted while it was written.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.rename(self._path)
        sync_folder(self._path.parent)

    def discard(self) -> None:
        """Nothing is left of it."""
        for path in (self._temporary, self._path):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the rest of its buffer may have no room on the disk
            self._file.close()


def _open_new(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    return open(descriptor, "wb", buffering=_BUFFER)


@contextlib.contextmanager
def discarded_on_failure(files: Sequence[NewFile], *, but_not_on_cancel: bool = False) -> Iterator[None]:
    """Discards them if what is done within fails.

    Args:
        files: those that are there when it fails.
        but_not_on_cancel: for the transaction that makes them known. It goes on without its caller, and would name
            files that are gone; if it fails in the end, they are leftovers, which the next start removes.
    """
    try:
        yield
    except BaseException as error:
        if not (but_not_on_cancel and isinstance(error, asyncio.CancelledError)):
            for new in files:
                new.discard()
        raise


class FileStore(Store):
    """
    Args:
        folder: of the contents.
        now: seconds since the epoch.
        before: likewise; contents from later may be those of another process of this server.
    """

    def __init__(
        self, database: Database, folder: Path, now: Callable[[], float] = time.time, before: float = math.inf
    ) -> None:
        super().__init__(database)
        self._folder = folder
        self._now = now
        found = (path for path in self._folder.iterdir() if _OURS.fullmatch(path.name))
        self._leftovers = tuple(path.name for path in found if before == math.inf or _changed(path) < before)

    def new(self, prefix: str) -> NewFile:
        """Waits for the disk, as all that is done with it."""
        return NewFile(self._folder, prefix)

    def path(self, file_id: str) -> Path:
        """Of the contents. Args: file_id: out of the database."""
        return self._folder / file_id

    def describe(
        self, new: NewFile, *, purpose: str, filename: str, expires_after: int | None, owner: str
    ) -> StoredFile:
        """Args: expires_after: seconds from now."""
        now = int(self._now())
        expires_at = None if expires_after is None else now + expires_after
        return StoredFile(new.id, purpose, filename, new.size, now, expires_at, owner)

    @transaction
    def add(self, connection: sqlite3.Connection, file: StoredFile) -> None:
        """Its contents are on the disk."""
        insert_file(connection, file)

    @transaction
    def get(self, connection: sqlite3.Connection, file_id: str, caller: Caller) -> StoredFile:
        """
        Raises:
            HttpError: there is none that the caller may see, or it has expired.
        """
        return find_file(connection, file_id, caller, self._now())

    @transaction
    def page(
        self,
        connection: sqlite3.Connection,
        caller: Caller,
        *,
        purpose: str | None,
        after: str | None,
        limit: int,
        order: Literal["asc", "desc"],
    ) -> list[StoredFile]:
        """Args: after: the position that the list goes on from."""
        condition, owners = caller.condition()
        beyond = "> coalesce(?, '')" if order == "asc" else "< coalesce(?, '~')"  # an index finds where that begins
        query = (
            f"SELECT * FROM files WHERE {condition} AND (expires_at IS NULL OR expires_at > ?) "
            f"AND (? IS NULL OR purpose = ?) AND position {beyond} ORDER BY position {order} LIMIT ?"
        )
        values = (*owners, self._now(), purpose, purpose, after, limit)
        return [_file(row) for row in connection.execute(query, values)]

    async def delete(self, file_id: str, caller: Caller) -> None:
        """
        Raises:
            HttpError: there is none that the caller may see.
        """
        await self.drop(await self._forget(file_id, caller))

    async def expire(self) -> None:
        """Removes the files whose time has passed."""
        await self.drop(await self._forget_expired())

    async def remove_leftovers(self) -> None:
        """Of the contents that were there when this began: those that belong to no file any more, or never did."""
        await self.drop(await self._unknown(self._leftovers))
        self._leftovers = ()

    async def drop(self, file_ids: Iterable[str]) -> None:
        """Removes contents."""
        paths = [self._folder / file_id for file_id in file_ids]
        if paths:
            await asyncio.to_thread(_unlink, paths)

    @transaction
    def _forget(self, connection: sqlite3.Connection, file_id: str, caller: Caller) -> list[str]:
        find_file(connection, file_id, caller, self._now())
        connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
        return _unheld(connection, [file_id])

    @transaction
    def _forget_expired(self, connection: sqlite3.Connection) -> list[str]:
        rows = connection.execute("DELETE FROM files WHERE expires_at <= ? RETURNING id", (self._now(),)).fetchall()
        return _unheld(connection, [row["id"] for row in rows])

    @transaction
    def _unknown(self, connection: sqlite3.Connection, file_ids: Iterable[str]) -> list[str]:
        known = {row["id"] for row in connection.execute("SELECT id FROM files")}
        return _unheld(connection, [file_id for file_id in file_ids if file_id not in known])


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def find_file(connection: sqlite3.Connection, file_id: str, caller: Caller, now: float) -> StoredFile:
    """
    Raises:
        HttpError: there is none that the caller may see, or it has expired.
    """
    row = find_row(connection, "files", file_id, caller.condition())
    if row is None or (row["expires_at"] is not None and row["expires_at"] <= now):
        raise HttpError(file_not_found(file_id))
    return _file(row)


def file_not_found(file_id: str) -> ErrorBody:
    return ErrorBody(404, f"no such file: {file_id[:256]!r}", "file_id", code="file_not_found")


def contents_gone(file_id: str) -> ErrorBody:
    message = f"the contents of file {file_id[:256]!r} are gone from --file-storage-path: upload it again"
    return ErrorBody(404, message, "file_id", code="file_contents_gone")


def insert_file(connection: sqlite3.Connection, file: StoredFile) -> None:
    insert_row(connection, "files", dataclasses.asdict(file) | {"position": position_of(file.id)})


def hold_file(connection: sqlite3.Connection, file_id: str, holder: str) -> None:
    """Keeps the contents until `release_file`, even if the file is deleted."""
    connection.execute("INSERT INTO file_holds VALUES (?, ?)", (file_id, holder))


def release_file(connection: sqlite3.Connection, file_id: str, holder: str) -> list[str]:
    """Returns the ids whose contents are to be dropped after the transaction."""
    connection.execute("DELETE FROM file_holds WHERE file_id = ? AND holder = ?", (file_id, holder))
    is_known = connection.execute("SELECT 1 FROM files WHERE id = ?", (file_id,)).fetchone() is not None
    return [] if is_known else _unheld(connection, [file_id])


def _unheld(connection: sqlite3.Connection, file_ids: Iterable[str]) -> list[str]:
    held = {row["file_id"] for row in connection.execute("SELECT file_id FROM file_holds")}
    return [file_id for file_id in file_ids if file_id not in held]


def _file(row: sqlite3.Row) -> StoredFile:
    return StoredFile(*(row[field.name] for field in dataclasses.fields(StoredFile)))


def _changed(path: Path) -> float:
    """When, in seconds since the epoch; of a file that has just gone: now."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
