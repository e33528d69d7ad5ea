"""BlobStore: where the contents of files are kept, each under its file's id and never changed."""

import dataclasses
import re
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Protocol

UNFINISHED = ".part"  # ends the name of contents that are being written
NAME = re.compile(rf"[a-z_]+-[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}(?:{re.escape(UNFINISHED)})?")


@dataclasses.dataclass(frozen=True, slots=True)
class Blob:
    """Contents, as a list of the store has them.

    Attributes:
        size: in bytes.
        modified: when they were last written, in seconds since the epoch, by the store's clock.
    """

    name: str
    size: int
    modified: float

    @property
    def is_whole(self) -> bool:
        return not self.name.endswith(UNFINISHED)


class BlobStore(Protocol):
    """Names are ids of files, as `new_id` makes them; whatever else lies there is neither listed nor touched.

    Attributes:
        sweep_interval: seconds between looks for contents that belong to no file; None: one look, at start.

    Every method raises OSError or HttpError while the store cannot be used; it may be called again later.
    """

    @property
    def sweep_interval(self) -> float | None: ...

    async def settled_before(self) -> float:
        """Contents that were written before this time and belong to no file will never get one. Seconds since the
        epoch, by the store's clock."""

    async def check(self, identity: str) -> None:
        """Looks whether it can be used, and by this database.

        Args:
            identity: of the database: contents that it knows nothing of are removed some day.

        Raises:
            ConfigError: it cannot; the message names the flag and the fix.
        """

    async def put(self, name: str, pieces: AsyncIterable[bytes]) -> int:
        """Writes contents as they come, and returns their size. From then on they outlive a crash; of contents that
        break off, as by an error of `pieces` or because the caller is cancelled, nothing is left."""

    def read(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the contents in pieces of a few MiB at most; the caller closes the generator.

        Raises:
            FileNotFoundError: there are none. When the first piece is asked for, or later if they are deleted.
        """

    async def delete(self, names: Iterable[str]) -> None:
        """Delete contents; ignore names that do not exist."""

    def scan(self) -> AsyncGenerator[Blob, None]:
        """All there are, unfinished ones too, in any order."""
