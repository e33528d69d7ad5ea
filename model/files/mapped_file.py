"""MappedFile: a file of tensors, read through a memory map."""

import mmap
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from palladio.model.base.errors import CheckpointError


class Span(Protocol):
    """The position of a tensor: its bytes in the file."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


class MappedFile:
    """One open file. Arrays of its bytes are views of the map: use them before `close`.

    Attributes:
        path: path of the file.
        data: its bytes.
    """

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            CheckpointError: the file is missing, empty or unreadable.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error
        except ValueError as error:  # it is empty
            raise CheckpointError(f"cannot read {path}: {error}. Download it again") from error

    def bytes_of(self, tensor: Span) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return a read-only view, u8[bytes]. The disk is read on first use."""
        return np.frombuffer(self.data, np.uint8, tensor.stop - tensor.start, tensor.start)

    def release(self, tensor: Span) -> None:
        """Return the tensor's pages to the system. Views stay valid; using them reads the file again."""
        first = tensor.start - tensor.start % mmap.PAGESIZE
        if tensor.stop > first:
            self.data.madvise(mmap.MADV_DONTNEED, first, tensor.stop - first)

    def close(self) -> None:
        """Close the map. No view of it may be left."""
        self.data.close()
