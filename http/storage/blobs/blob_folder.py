"""FolderBlobs: contents as files of a folder on this host, which survive a crash of the machine."""

import asyncio
import contextlib
import os
import stat
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from pathlib import Path
from typing import BinaryIO

from palladio.http.storage.blobs.blob_store import NAME, UNFINISHED, Blob
from palladio.runtime.folders.private_folder import FILE_MODE, make_folder_within, sync_folder

_BUFFER = 1 << 20
_PIECE = 256 * 1024  # bytes that are read at a time


class FolderBlobs:
    """A BlobStore of one server. Threads make every disk access.

    Args:
        begun: when this server took the folder, by the clock of its disk, in seconds since the epoch: what was
            written before is of no upload under way.
    """

    sweep_interval = None

    def __init__(self, folder: Path, begun: float) -> None:
        self._folder = folder
        self._begun = begun

    async def settled_before(self) -> float:
        return self._begun

    async def check(self, identity: str) -> None:
        """Its Storage has looked."""

    async def put(self, name: str, pieces: AsyncIterable[bytes]) -> int:
        """
        Raises:
            OSError: such as a full disk, or the file was deleted while it was written.
        """
        new, size = _NewFile(self._folder, name), 0
        try:
            async for piece in pieces:
                await asyncio.to_thread(new.write, piece)
                size += len(piece)
            await asyncio.to_thread(new.seal)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(new.discard))
            raise
        return size

    async def read(self, name: str) -> AsyncGenerator[bytes, None]:
        with contextlib.closing(await asyncio.to_thread((self._folder / name).open, "rb")) as file:
            while piece := await asyncio.to_thread(file.read, _PIECE):
                yield piece

    async def delete(self, names: Iterable[str]) -> None:
        await asyncio.to_thread(_unlink, [self._folder / name for name in names])

    async def scan(self) -> AsyncGenerator[Blob, None]:
        for blob in await asyncio.to_thread(self._look):
            yield blob

    def _look(self) -> list[Blob]:
        found = list[Blob]()
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if NAME.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found.append(Blob(entry.name, status.st_size, status.st_mtime))
        return found


class _NewFile:
    """Contents on their way to the disk, under a temporary name. Every method may wait for the disk, and for the one
    before: a caller that is cancelled leaves it behind in its thread."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._path = folder / name
        self._temporary = folder / f"{name}{UNFINISHED}"
        self._file: BinaryIO | None = None
        self._is_discarded = False
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self._lock:
            if not self._is_discarded:
                self._open().write(data)

    def seal(self) -> None:
        """Gives it its name; from here on the contents outlive a crash of the machine.

        Raises:
            OSError: such as a full disk, or the file was deleted while it was written.
        """
        with self._lock:
            if self._is_discarded:
                return
            file = self._open()
            file.flush()
            os.fsync(file.fileno())
            file.close()
            self._temporary.rename(self._path)
            sync_folder(self._folder)

    def discard(self) -> None:
        """Nothing is left of it."""
        with self._lock:
            self._is_discarded = True
            for path in (self._temporary, self._path):
                path.unlink(missing_ok=True)
            if self._file is not None:
                with contextlib.suppress(OSError):  # the rest of its buffer may have no room on the disk
                    self._file.close()

    def _open(self) -> BinaryIO:
        if self._file is None:
            try:
                self._file = _open_new(self._temporary)
            except FileNotFoundError:  # somebody has deleted the folder
                make_folder_within(self._folder)
                sync_folder(self._folder.parent)
                self._file = _open_new(self._temporary)
        return self._file


def _open_new(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    return open(descriptor, "wb", buffering=_BUFFER)


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
