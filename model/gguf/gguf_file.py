"""GgufFile: the header of a GGUF file (metadata and positions of tensors), and views of its bytes."""

import dataclasses
import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np

from palladio.model.base.errors import CheckpointError
from palladio.model.files.mapped_file import MappedFile

PLAIN: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
)
BLOCKS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "Q4_0": (32, 18),
        "Q4_1": (32, 20),
        "Q5_0": (32, 22),
        "Q5_1": (32, 24),
        "Q8_0": (32, 34),
        "Q2_K": (256, 84),
        "Q3_K": (256, 110),
        "Q4_K": (256, 144),
        "Q5_K": (256, 176),
        "Q6_K": (256, 210),
        "IQ4_NL": (32, 18),
        "IQ4_XS": (256, 136),
        "MXFP4": (32, 17),
    }
)
"""Types with numbers in blocks along a row: numbers and bytes of a block."""

TYPE_NAMES: Final = {
    **dict(
        enumerate(
            [
                "F32",
                "F16",
                "Q4_0",
                "Q4_1",
                "Q4_2",
                "Q4_3",
                "Q5_0",
                "Q5_1",
                "Q8_0",
                "Q8_1",
                "Q2_K",
                "Q3_K",
                "Q4_K",
                "Q5_K",
                "Q6_K",
                "Q8_K",
            ]
        )
    ),
    **dict(enumerate(["IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"], 16)),
    **dict(enumerate(["I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8"], 24)),
    **dict(enumerate(["TQ1_0", "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4", "NVFP4", "Q1_0"], 34)),
}
_NUMBERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FLOAT32, _TEXT, _ARRAY = 6, 8, 9
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
_MAX_HEADER_BYTES: Final = 32 << 20  # published headers have up to 12 MB; as Python lists they take ten times as much
_MAX_KEYS, MAX_TENSORS = 1 << 12, 1 << 17  # of a file; tensors of all parts, too


@dataclasses.dataclass(frozen=True, slots=True)
class GgufTensor:
    """The position of a tensor.

    Attributes:
        name: its name in the file.
        dtype: name of its type in ggml.
        shape: shape of its numbers, the inputs last, as in safetensors.
        start, stop: its bytes in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class GgufFile(MappedFile):
    """One open GGUF file.

    Attributes:
        metadata: by key: numbers, texts, and lists of either.
        tensors: by name.
    """

    def __init__(self, path: Path) -> None:
        """Open a file and read its header.

        Raises:
            CheckpointError: the file is missing, truncated or corrupt, or of another version.
        """
        super().__init__(path)
        header = _Header(path, self.data)
        self.metadata, self.tensors = header.metadata, header.tensors

    def read(self, tensor: GgufTensor) -> np.ndarray[Any, np.dtype[Any]]:
        """Return a read-only view: numbers if the type is plain, else bytes, u8[…, bytes of a row]."""
        raw = self.bytes_of(tensor)
        if tensor.dtype in PLAIN:
            return raw.view(PLAIN[tensor.dtype]).reshape(tensor.shape)
        return raw.reshape(*tensor.shape[:-1], -1)


def is_gguf(path: Path) -> bool:
    """Return whether a path is a file with the suffix .gguf."""
    return path.suffix.lower() == ".gguf" and path.is_file()


class _Header:
    """Reader of the values before the tensors' numbers."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 4
        if data[:4] != b"GGUF":
            raise CheckpointError(f"{path} is not a GGUF file: it does not begin with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{path} has version {version} of GGUF, or was written by a big-endian machine; supported: "
                f"little-endian files of version {' and '.join(map(str, _VERSIONS))}. Download a newer file"
            )
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        if num_keys > _MAX_KEYS or num_tensors > MAX_TENSORS:
            raise CheckpointError(
                f"{path} is corrupt: it has {num_keys} keys and {num_tensors} tensors, over the limits of {_MAX_KEYS} "
                f"and {MAX_TENSORS}"
            )
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._text()
            self.metadata[key] = self._value(self._number("I"))
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise CheckpointError(f"{path} is corrupt: general.alignment is {alignment!r}")
        entries = [self._entry() for _ in range(num_tensors)]
        data_start = -(-self._at // alignment) * alignment
        self.tensors: dict[str, GgufTensor] = {}
        for name, kind, shape, offset in entries:
            if name in self.tensors:
                raise CheckpointError(f"{path} is corrupt: it has tensor {name} twice")
            self.tensors[name] = self._tensor(name, kind, shape, data_start + offset)

    def _entry(self) -> tuple[str, int, tuple[int, ...], int]:
        name, count = self._text(), self._number("I")
        if not 0 < count <= _MOST_DIMENSIONS:
            raise CheckpointError(f"{self._path} is corrupt: tensor {name} has {count} dimensions")
        sizes = tuple(self._number("Q") for _ in range(count))
        return name, self._number("I"), sizes[::-1], self._number("Q")

    def _tensor(self, name: str, kind: int, shape: tuple[int, ...], start: int) -> GgufTensor:
        dtype = TYPE_NAMES.get(kind, f"type {kind}")
        if 0 in shape:
            raise CheckpointError(
                f"{self._path} is corrupt: tensor {name} has shape {shape}, and so no numbers. Download it again"
            )
        if dtype in PLAIN:
            size = math.prod(shape) * PLAIN[dtype].itemsize
        elif dtype in BLOCKS:
            numbers, num_bytes = BLOCKS[dtype]
            if shape[-1] % numbers:
                raise CheckpointError(
                    f"{self._path} is corrupt: tensor {name} of type {dtype} has rows of {shape[-1]} numbers, no "
                    f"multiple of {numbers}"
                )
            size = math.prod(shape) // numbers * num_bytes
        else:
            size = 0  # its reader reports that the type is not supported
            if math.prod(shape) // 8 > len(self._data):  # no type has less than a bit for a number
                raise CheckpointError(f"{self._path} is truncated: tensor {name} has shape {shape}. Download it again")
        if start + size > len(self._data):
            raise CheckpointError(
                f"{self._path} is truncated: tensor {name} ends at byte {start + size}, but the file has "
                f"{len(self._data)} bytes. Download it again"
            )
        return GgufTensor(name, dtype, shape, start, start + size)

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            of, count = self._number("I"), self._number("Q")
            if of == _TEXT:
                return [self._text() for _ in range(count)]
            if of in _NUMBERS:
                size = struct.calcsize(f"<{_NUMBERS[of]}")
                return list(struct.unpack(f"<{count}{_NUMBERS[of]}", self._bytes(count * size)))
        if kind in _NUMBERS:
            value = self._number(_NUMBERS[kind])
            return float(str(np.float32(value))) if kind == _FLOAT32 else value  # 1e-6, not 9.999999974752427e-7
        raise CheckpointError(f"{self._path} is corrupt: metadata of type {kind}")

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._bytes(struct.calcsize(f"<{form}")))[0]

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if _MAX_HEADER_BYTES < end <= len(self._data):
            raise CheckpointError(
                f"{self._path} is corrupt: its header has more than {_MAX_HEADER_BYTES:,} bytes, as no tokenizer needs"
            )
        if end > len(self._data):
            raise CheckpointError(f"{self._path} is truncated: its header is longer than the file. Download it again")
        found, self._at = self._data[self._at : end], end
        return found
