"""FileStore: uploaded files and files of results. Contents lie in a BlobStore under their ids, the rest in a
database.

A file is in the database only when its contents are stored for good, and its contents go only after it is out of the
database. What a crash leaves between the two is in the BlobStore alone, and is removed by `remove_leftovers`.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from typing import Any, Literal

from palladio.http.security.callers import Caller
from palladio.http.storage.blobs.blob_store import BlobStore
from palladio.http.storage.records.database import Connection, Database, Row
from palladio.http.storage.records.object_lists import new_id, position_of
from palladio.http.storage.records.store import Store, find_row, identity_of, insert_row, transaction
from palladio.http.wire.errors import ErrorBody, HttpError

INPUT_PREFIX, RESULT_PREFIX = "backend_input_file-", "backend_result_file-"
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")  # of uploads
RESULT_PURPOSE = "batch_output"
_LOOKED_UP = 1000  # names of contents, in a transaction


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


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """Stored contents of a file that the database does not know yet.

    Attributes:
        id: the file's id.
        size: in bytes.
    """

    id: str
    size: int


class FileStore(Store):
    """
    Args:
        blobs: for the contents.
        now: seconds since the epoch; default: the database's.
    """

    def __init__(self, database: Database, blobs: BlobStore, now: Callable[[], float] | None = None) -> None:
        super().__init__(database)
        self._blobs = blobs
        self._is_checked = False
        self._now = now or database.now

    @property
    def sweep_interval(self) -> float | None:
        """Seconds between calls of `remove_leftovers`; None: one at start."""
        return self._blobs.sweep_interval

    async def check(self) -> None:
        """
        Raises:
            ConfigError: contents cannot be stored, or are of another database; the message names the flag and the fix.
        """
        await self._blobs.check(await self._identity())
        self._is_checked = True

    async def put(self, prefix: str, pieces: AsyncIterable[bytes]) -> Contents:
        """Stores contents as they come, all of them or nothing.

        Args:
            prefix: of the new file's id.

        Raises:
            OSError: such as a full disk. HttpError: --blob-store cannot be used. What `pieces` raises.
        """
        file_id = new_id(prefix)
        return Contents(file_id, await self._blobs.put(file_id, pieces))

    def read(self, file_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the contents in pieces; the caller closes the generator.

        Args:
            file_id: out of the database.

        Raises:
            FileNotFoundError: they are gone, when the first piece is asked for.
            OSError, HttpError: as `put`.
        """
        return self._blobs.read(file_id)

    @contextlib.asynccontextmanager
    async def dropped_on_failure(
        self, made: Sequence[Contents], *, but_not_on_cancel: bool = False
    ) -> AsyncGenerator[None, None]:
        """Drops contents if what is done within fails.

        Args:
            made: contents that exist when it fails.
            but_not_on_cancel: for the transaction that makes them known. It goes on without its caller, and would
                name files that are gone; if it fails in the end, they are leftovers.
        """
        try:
            yield
        except BaseException as error:
            if made and not (but_not_on_cancel and isinstance(error, asyncio.CancelledError)):
                await asyncio.shield(self.drop([one.id for one in made]))
            raise

    def describe(
        self, new: Contents, *, purpose: str, filename: str, expires_after: int | None, owner: str
    ) -> StoredFile:
        """Make the database's entry of new contents.

        Args:
            expires_after: seconds from now; None: the file stays.
        """
        now = int(self._now())
        expires_at = None if expires_after is None else now + expires_after
        return StoredFile(new.id, purpose, filename, new.size, now, expires_at, owner)

    @transaction
    def add(self, connection: Connection, file: StoredFile) -> None:
        """Its contents are stored."""
        insert_file(connection, file)

    @transaction
    def get(self, connection: Connection, file_id: str, caller: Caller) -> StoredFile:
        """
        Raises:
            HttpError: there is none that the caller may see, or it has expired.
        """
        return find_file(connection, file_id, caller, self._now())

    @transaction
    def page(
        self,
        connection: Connection,
        caller: Caller,
        *,
        purpose: str | None,
        after: str | None,
        limit: int,
        order: Literal["asc", "desc"],
    ) -> list[StoredFile]:
        """Return a page of the caller's files.

        Args:
            after: the position after which the page begins.
        """
        condition, owners = caller.condition()
        beyond = "> coalesce(?, '')" if order == "asc" else "< coalesce(?, '~')"  # an index finds where that begins
        query = (
            f"SELECT * FROM files WHERE {condition} AND (expires_at IS NULL OR expires_at > ?) "
            f"AND purpose = coalesce(?, purpose) AND position {beyond} ORDER BY position {order} LIMIT ?"
        )
        values = (*owners, self._now(), purpose, after, limit)
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
        """Delete contents that belong to no file any more, or never did, and are old enough for that to stay so.

        Raises:
            ConfigError: as `check`, which runs first if it has not run: the contents may be another database's.
            sqlite3.Error, OSError, HttpError: such as a full disk.
        """
        if not self._is_checked:
            await self.check()
        before, found = await self._blobs.settled_before(), list[str]()
        async with contextlib.aclosing(self._blobs.scan()) as blobs:
            async for blob in blobs:
                if blob.modified <= before:
                    found.append(blob.name)
                if len(found) == _LOOKED_UP:
                    await self.drop(await self._unknown(found))
                    found = []
        await self.drop(await self._unknown(found))

    async def drop(self, file_ids: Sequence[str]) -> None:
        """Removes contents."""
        if file_ids:
            await self._blobs.delete(file_ids)

    @transaction
    def _identity(self, connection: Connection) -> str:
        return identity_of(connection)

    @transaction
    def _forget(self, connection: Connection, file_id: str, caller: Caller) -> list[str]:
        find_file(connection, file_id, caller, self._now(), for_update=True)
        connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
        return _unheld(connection, [file_id])

    @transaction
    def _forget_expired(self, connection: Connection) -> list[str]:
        rows = connection.execute("DELETE FROM files WHERE expires_at <= ? RETURNING id", (self._now(),)).fetchall()
        return _unheld(connection, [row["id"] for row in rows])

    @transaction
    def _unknown(self, connection: Connection, file_ids: Sequence[str]) -> list[str]:
        """Return the names of contents that belong to no file and that nothing holds."""
        if not file_ids:
            return []
        marks = ", ".join("?" * len(file_ids))
        rows = connection.execute(f"SELECT id FROM files WHERE id IN ({marks})", tuple(file_ids)).fetchall()
        known = {row["id"] for row in rows}
        return _unheld(connection, [file_id for file_id in file_ids if file_id not in known])


def find_file(
    connection: Connection, file_id: str, caller: Caller, now: float, *, for_update: bool = False
) -> StoredFile:
    """Return a file by its id.

    Args:
        for_update: no other transaction deletes it before this one ends.

    Raises:
        HttpError: there is none that the caller may see, or it has expired.
    """
    row = find_row(connection, "files", file_id, caller.condition(), for_update=for_update)
    if row is None or (row["expires_at"] is not None and row["expires_at"] <= now):
        raise HttpError(file_not_found(file_id))
    return _file(row)


def file_not_found(file_id: str) -> ErrorBody:
    return ErrorBody(404, f"no such file: {file_id[:256]!r}", "file_id", code="file_not_found")


def contents_gone(file_id: str) -> ErrorBody:
    message = f"the contents of file {file_id[:256]!r} are gone from the server's storage: upload it again"
    return ErrorBody(404, message, "file_id", code="file_contents_gone")


def insert_file(connection: Connection, file: StoredFile) -> None:
    insert_row(connection, "files", dataclasses.asdict(file) | {"position": position_of(file.id)})


def hold_file(connection: Connection, file_id: str, holder: str) -> None:
    """Keeps the contents until `release_file`, even if the file is deleted."""
    connection.execute("INSERT INTO file_holds VALUES (?, ?)", (file_id, holder))


def release_file(connection: Connection, file_id: str, holder: str) -> list[str]:
    """Returns the ids whose contents are to be dropped after the transaction."""
    # All of its holders wait for each other here, so that the last one sees that it is.
    connection.execute(f"SELECT 1 FROM file_holds WHERE file_id = ? {connection.for_update}", (file_id,)).fetchall()
    connection.execute("DELETE FROM file_holds WHERE file_id = ? AND holder = ?", (file_id, holder))
    is_known = connection.execute("SELECT 1 FROM files WHERE id = ?", (file_id,)).fetchone() is not None
    return [] if is_known else _unheld(connection, [file_id])


def _unheld(connection: Connection, file_ids: Iterable[str]) -> list[str]:
    held = {row["file_id"] for row in connection.execute("SELECT file_id FROM file_holds")}
    return [file_id for file_id in file_ids if file_id not in held]


def _file(row: Row) -> StoredFile:
    return StoredFile(*(row[field.name] for field in dataclasses.fields(StoredFile)))
