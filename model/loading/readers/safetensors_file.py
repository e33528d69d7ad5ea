"""Reading safetensors files through a memory map: one tensor at a time, any dtype, no copy, no torch.

Our own reader because safetensors' numpy one refuses float8, and because mapped pages must be given back as we go:
they count as this process's memory otherwise, and a load would peak at twice the checkpoint.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeGuard

import ml_dtypes
import numpy as np

from palladio.model.base.config_keys import shown
from palladio.model.base.errors import CheckpointError
from palladio.model.files.mapped_file import MappedFile
from palladio.model.files.small_files import parse_json

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
"""Types of parameters that are stored plainly; the other types belong to quantized ones."""
MAX_HEADER_BYTES: Final = 32 << 20
"""Less than the format allows: published files have up to 2 MB, and Python takes thirty times as much for JSON."""
_MOST_DIMENSIONS: Final = 8
_SHOWN: Final = 200  # characters of a name
_AGAIN: Final = "Download it again"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """The position of a tensor.

    Attributes:
        name: its name in the checkpoint.
        file: the file that holds it.
        dtype: the file's name of its type ("BF16").
        shape: shape as stored.
        start, stop: its bytes in the file.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def __str__(self) -> str:
        return f"tensor {self.name[:_SHOWN]} in {self.file.name}"


class SafetensorsFile(MappedFile):
    """One open safetensors file."""

    def __init__(self, path: Path) -> None:
        """Open the file and check its header.

        Raises:
            CheckpointError: the file is missing, truncated or corrupt.
        """
        super().__init__(path)
        self.tensors = self._read_header()

    def read(self, tensor: StoredTensor) -> Array:
        """Return a read-only view of the tensor. The disk is read on first use."""
        if tensor.dtype not in DTYPES:
            raise CheckpointError(f"{tensor} has dtype {tensor.dtype}; supported: {', '.join(DTYPES)}")
        return self.bytes_of(tensor).view(DTYPES[tensor.dtype]).reshape(tensor.shape)

    def _read_header(self) -> dict[str, StoredTensor]:
        size = len(self.data)
        length = int.from_bytes(self.data[:8], "little") if size >= 8 else MAX_HEADER_BYTES
        if length > size - 8:
            raise CheckpointError(
                f"{self.path} is truncated or not a safetensors file: its header is longer than the file. {_AGAIN}"
            )
        if length > MAX_HEADER_BYTES:
            raise CheckpointError(
                f"{self.path} has a header of {length:,} bytes, over the limit of {MAX_HEADER_BYTES:,}: divide the "
                "checkpoint into several files"
            )
        try:
            header = parse_json(self.data[8 : 8 + length], "it", repeats=False)
        except CheckpointError as error:
            raise self._corrupt(str(error)) from error
        if not isinstance(header, dict):
            raise self._corrupt(f"it is no object but {type(header).__name__}")
        return {name: self._entry(name, entry, 8 + length) for name, entry in header.items() if name != "__metadata__"}

    def _corrupt(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path} has a corrupt header: {why}. {_AGAIN}")

    def _entry(self, name: str, entry: object, data: int) -> StoredTensor:
        found = entry if isinstance(entry, dict) else {}
        dtype, sizes, offsets = (found.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or not _are_counts(sizes) or not _are_counts(offsets) or len(offsets) != 2:
            raise self._corrupt(f"tensor {name[:_SHOWN]} is {shown(entry)}")
        start, stop = (data + offset for offset in offsets)
        shape = tuple(sizes)
        tensor = StoredTensor(name, self.path, dtype, shape, start, stop)
        if not data <= start <= stop <= len(self.data):
            raise CheckpointError(
                f"{self.path} is truncated: {tensor} ends at byte {stop}, but the file has {len(self.data)} bytes. "
                f"{_AGAIN}"
            )
        if tensor.dtype in DTYPES and math.prod(shape) * DTYPES[tensor.dtype].itemsize != stop - start:
            raise CheckpointError(
                f"{self.path} is corrupt: {tensor} of shape {shape} and dtype {tensor.dtype}"
                f" cannot have {stop - start} bytes. {_AGAIN}"
            )
        return tensor


def _are_counts(value: object) -> TypeGuard[list[int]]:
    """Return whether a value is a short list of whole numbers of at least 0."""
    return (
        isinstance(value, list)
        and len(value) <= _MOST_DIMENSIONS
        and all(type(each) is int and each >= 0 for each in value)
    )
