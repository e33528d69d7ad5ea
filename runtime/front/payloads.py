"""PayloadStore: the files in which a front keeps the rows of media while requests have them."""

import asyncio
import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from palladio.runtime.interface.errors import OverloadedError
from palladio.runtime.interface.prompt_parts import Media


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


class PayloadStore:
    """One file a content, in a folder for the server's user alone. An engine that is started again reads them again.

    Used from one event loop.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
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
            shutil.rmtree(folder, ignore_errors=True)

    def _begin(self, part: Media) -> _File:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="palladio-media-"))  # for its owner alone
        handle, name = tempfile.mkstemp(dir=self._folder)  # another one than of the same content before it
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
