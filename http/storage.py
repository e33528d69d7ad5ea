"""Storage: what this server keeps on disk (--file-storage-path): one database, and files beside it."""

import contextlib
import fcntl
import sqlite3
import tempfile
from pathlib import Path
from typing import IO, Self

from palladio.http.batches.batch_store import SCHEMA as BATCHES
from palladio.http.database import Database
from palladio.http.files.file_store import SCHEMA as FILES
from palladio.http.files.file_store import sync_folder
from palladio.http.responses.response_store import SCHEMA as RESPONSES
from palladio.runtime.errors import ConfigError


class Storage:
    """A folder that belongs to one server at a time.

    It holds what people ask and are answered, so other users of the host are kept out: of a folder that is made here,
    and else of all that is made in it. A folder that is there may hold more than this, and keeps its mode.

    Attributes:
        folder: where it is.
        files: its part for the contents of files.
        database: for everything else; every store keeps its own tables in it.

    Raises:
        ConfigError: the folder cannot be written, or another server uses it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / "files"
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.files.mkdir(mode=0o700, exist_ok=True)
                _keep_private(self.files, 0o700)
                stack.callback(_lock(folder).close)
                path = folder / "palladio.db"
                path.touch(mode=0o600)  # SQLite gives its other files the mode of this one
                for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
                    _keep_private(folder / name, 0o600)
                self.database = Database(path, SCHEMA, CHANGES)
                sync_folder(folder)
                with contextlib.suppress(PermissionError):  # the parent may be somebody else's
                    sync_folder(folder.parent)
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(
                    f"--file-storage-path {folder}: {error}; give a folder that this server can write to"
                ) from error
            stack.callback(self.database.close)
            self._stack = stack.pop_all()

    @classmethod
    def temporary(cls) -> Self:
        """One that is gone when it is closed."""
        folder = tempfile.TemporaryDirectory(prefix="palladio-")
        storage = cls(Path(folder.name))
        storage._stack.callback(folder.cleanup)
        return storage

    def close(self) -> None:
        self._stack.close()


def _keep_private(path: Path, mode: int) -> None:
    """What an earlier version made with a wider mode; what is not there, or somebody else's, is left alone."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        path.chmod(mode)


def _lock(folder: Path) -> IO[str]:
    """Holds the folder until the file is closed, or the process ends in whatever way."""
    file = (folder / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError(
            f"--file-storage-path {folder} is in use by another server; give each server a folder of its own"
        ) from None
    return file


# What the stores' tables have since they know owners; what was there before is nobody's.
_OWNERS = """
ALTER TABLE files ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE batches ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT '';
CREATE INDEX files_by_owner ON files (owner, position);
CREATE INDEX batches_by_owner ON batches (owner, id);
CREATE INDEX responses_by_owner ON responses (owner, number);
"""

# Made if they are missing, and then changed: what a later version needs is a script more at the end of CHANGES.
SCHEMA = FILES + BATCHES + RESPONSES
CHANGES = (_OWNERS,)
