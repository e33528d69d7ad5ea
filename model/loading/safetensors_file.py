"""Reading safetensors files through a memory map: one tensor at a time, any dtype, no copy, no torch.

Our own reader because safetensors' numpy one refuses float8, and because mapped pages must be given back as we go:
they count as this process's memory otherwise, and a load would peak at twice the checkpoint.
"""

import dataclasses
import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np

from palladio.model.errors import CheckpointError

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {
        "F64": np.dtype(np.float64),
        "F32": np.dtype(np.float32),
        "F16": np.dtype(np.float16),
        "BF16": np.dtype(ml_dtypes.bfloat16),
        "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
        "I64": np.dtype(np.int64),
        "I32": np.dtype(np.int32),
        "I8": np.dtype(np.int8),
        "U8": np.dtype(np.uint8),
    }
)
FLOATS: Final = ("F64", "F32", "F16", "BF16", "F8_E4M3")
"""Of parameters that are stored plainly; the others are of quantized ones."""
MAX_HEADER_BYTES: Final = 100_000_000  # the format's own limit
_AGAIN: Final = "Download it again"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is.

    Attributes:
        name: in the checkpoint.
        file: that holds it.
        dtype: as the file names it ("BF16").
        shape: as stored.
        start, stop: its bytes in the file.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def __str__(self) -> str:
        return f"tensor {self.name} in {self.file.name}"


class SafetensorsFile:
    """One open file. Arrays read from it are views of the map: use them before `close`."""

    def __init__(self, path: Path) -> None:
        """Opens the file and checks its header.

        Raises:
            CheckpointError: the file is missing, truncated or corrupt.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error
        self.tensors = self._read_header()

    def read(self, tensor: StoredTensor) -> Array:
        """A read-only view of the tensor; nothing is read from disk before it is touched."""
        if tensor.dtype not in DTYPES:
            raise CheckpointError(f"{tensor} has dtype {tensor.dtype}; supported: {', '.join(DTYPES)}")
        raw = np.frombuffer(self._map, np.uint8, tensor.stop - tensor.start, tensor.start)
        return raw.view(DTYPES[tensor.dtype]).reshape(tensor.shape)

    def release(self, tensor: StoredTensor) -> None:
        """Gives the tensor's pages back to the system. Views stay valid: they would be read again."""
        first = tensor.start - tensor.start % mmap.PAGESIZE
        if tensor.stop > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, tensor.stop - first)

    def close(self) -> None:
        """Views must be gone."""
        self._map.close()

    def _read_header(self) -> dict[str, StoredTensor]:
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little") if size >= 8 else MAX_HEADER_BYTES
        if length > min(size - 8, MAX_HEADER_BYTES):
            raise CheckpointError(
                f"{self.path} is truncated or not a safetensors file: its header is longer than the file. {_AGAIN}"
            )
        try:
            header = json.loads(self._map[8 : 8 + length])
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            return {name: self._entry(name, entry, 8 + length) for name, entry in entries.items()}
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{self.path} has a corrupt header: {error!r}. {_AGAIN}") from error

    def _entry(self, name: str, entry: Mapping[str, Any], data: int) -> StoredTensor:
        start, stop = (data + int(offset) for offset in entry["data_offsets"])
        shape = tuple(int(size) for size in entry["shape"])
        tensor = StoredTensor(name, self.path, str(entry["dtype"]), shape, start, stop)
        if not data <= start <= stop <= len(self._map):
            raise CheckpointError(
                f"{self.path} is truncated: {tensor} ends at byte {stop}, but the file has {len(self._map)} bytes. "
                f"{_AGAIN}"
            )
        if tensor.dtype in DTYPES and math.prod(shape) * DTYPES[tensor.dtype].itemsize != stop - start:
            raise CheckpointError(
                f"{self.path} is corrupt: {tensor} of shape {shape} and dtype {tensor.dtype}"
                f" cannot have {stop - start} bytes. {_AGAIN}"
            )
        return tensor
