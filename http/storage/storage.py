"""Storage: what this server keeps on disk (--file-storage-path): one database, and files beside it."""

import contextlib
import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self

from palladio.http.storage.database import Database
from palladio.http.storage.schema import CHANGES, SCHEMA
from palladio.runtime.folders.private_folder import (
    check_file_within,
    make_folder,
    make_folder_within,
    open_file_within,
    sync_folder,
    warn_of_others,
)
from palladio.runtime.interface.errors import ConfigError


class Storage:
    """A folder that belongs to one server at a time.

    It holds what people ask and are answered, so other users of the host are kept out: of a folder that is made here,
    and else of all that is made in it. A folder that is there may hold more than this, and keeps its mode. The folder
    may be a link; what is in it may not.

    Args:
        remove: called at the end, once nothing writes to the folder any more.
        is_held: another process of this server holds the folder, and others of them may use it, too.

    Attributes:
        folder: where it is.
        files: its part for the contents of files.
        database: for everything else; every store keeps its own tables in it.

    Raises:
        ConfigError: the folder cannot be written, another server uses it, or what is in it is a link.
    """

    def __init__(self, folder: Path, remove: Callable[[], None] | None = None, *, is_held: bool = False) -> None:
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
                if not is_held:
                    stack.callback(os.close, _lock(folder))
                path = folder / "palladio.db"
                os.close(open_file_within(path, os.O_RDWR))  # SQLite gives its other files the mode of this one
                for suffix in DATABASE_SUFFIXES:
                    beside = folder / f"{path.name}{suffix}"
                    check_file_within(beside)
                    with contextlib.suppress(FileNotFoundError, PermissionError):
                        beside.chmod(0o600)
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
        return cls(Path(folder.name), folder.cleanup)

    def close(self) -> None:
        self._stack.close()


def _lock(folder: Path) -> int:
    """Holds the folder until the descriptor is closed, or the process ends in whatever way."""
    descriptor = open_file_within(folder / "lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"--file-storage-path {folder} is in use by another server; give each server a folder of its own"
        ) from None
    return descriptor


DATABASE_SUFFIXES = ("-wal", "-shm", "-journal")  # of the files that SQLite keeps beside the database's
