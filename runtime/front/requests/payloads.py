"""PayloadStore: the files in which a front keeps the rows of media while requests have them."""

import asyncio
import contextlib
import dataclasses
import fcntl
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from palladio.runtime.interface.errors import OverloadedError
from palladio.runtime.interface.request.prompt_parts import Media

_PREFIX: Final = "palladio-media-"
_LOCK: Final = "lock"


@dataclasses.dataclass(slots=True, eq=False)
class _File:
    """Attributes:
    num_users: requests that have this content, some of them still being written for.
    """

    path: Path
    written: "asyncio.Task[None]"
    num_users: int = 0

    def join(self) -> None:
        """One more request has it."""
        self.num_users += 1

    def leave(self) -> int:
        """One request less; returns how many have it still. With the last one it is removed."""
        self.num_users -= 1
        if not self.num_users and self.written.done():
            self._remove()
        elif not self.num_users:
            self.written.add_done_callback(self._remove)
        return self.num_users

    def _remove(self, _: "asyncio.Task[None] | None" = None) -> None:
        self.path.unlink(missing_ok=True)


class _LockedFolder:
    """A new folder for its owner alone. Folders whose lock is free were left by killed servers, and are removed.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = (self.path / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for lock in self.path.parent.glob(f"{_PREFIX}*/{_LOCK}"):
            with contextlib.suppress(OSError), lock.open("r+") as file:  # another user's, or in use
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)

    def close(self) -> None:
        """Removes it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


class PayloadStore:
    """One file a content, in a folder for the server's user alone. An engine that is started again reads them again.

    Used from one event loop.
    """

    def __init__(self) -> None:
        self._folder: _LockedFolder | None = None
        self._files: dict[str, _File] = {}

    async def keep(self, media: Iterable[Media]) -> tuple[Media, ...]:
        """Writes what is not there yet; returns the media as the engine gets them. `drop` them, whatever comes.

        Raises:
            OverloadedError: it cannot be written; nothing is kept.
        """
        kept: list[Media] = []
        try:
            for part in media:
                file = self._files.get(part.digest) or self._begin(part)
                file.join()
                kept.append(dataclasses.replace(part, content=b"", path=str(file.path)))
                await asyncio.shield(file.written)
        except BaseException as error:
            self.drop(kept)
            if isinstance(error, OSError):
                raise OverloadedError(
                    f"the prompt's rows cannot be written to the temporary directory ({error.strerror}): set TMPDIR"
                ) from error
            raise
        return tuple(kept)

    def drop(self, media: Iterable[Media]) -> None:
        """A request has ended that had these."""
        for part in media:
            file = self._files[part.digest]
            if not file.leave():
                del self._files[part.digest]

    def close(self) -> None:
        """Removes the folder."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close()

    def _begin(self, part: Media) -> _File:
        if self._folder is None:
            self._folder = _LockedFolder()
        handle, name = tempfile.mkstemp(dir=self._folder.path)  # another one than of the same content before it
        file = self._files[part.digest] = _File(Path(name), asyncio.create_task(_write(handle, part.content)))
        file.written.add_done_callback(_note)
        return file


async def _write(handle: int, content: bytes) -> None:
    """
    Raises:
        OSError: the disk does not take it.
    """

    def write() -> None:
        with open(handle, "wb") as file:
            file.write(content)

    await asyncio.to_thread(write)


def _note(written: "asyncio.Task[None]") -> None:
    """Looks at its error: who waits for it may have gone."""
    with contextlib.suppress(asyncio.CancelledError):
        written.exception()
