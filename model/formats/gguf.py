"""GGUF tensors: numbers in blocks along the rows, in Q8_0, Q4_K and Q6_K."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Self

import numpy as np

from palladio.model.config_keys import Keys, shown
from palladio.model.errors import CheckpointError, ConfigError
from palladio.model.formats.stored_format import StoredFormat, StoredMatrix, Tensor, Tensors, scales_of
from palladio.model.gguf.gguf_file import BLOCKS, PLAIN
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.kinds import WeightKind


@dataclasses.dataclass(frozen=True)
class Gguf(StoredFormat):
    """One tensor is one matrix, numbers and scales in one.

    Attributes:
        interleaved_heads: of queries and keys, whose rows lie in pairs (i, i + H/2), as llama.cpp rotates them; None:
            their rows are as everywhere else.
        norms_plus_one: norms' scales have 1 added to them.
    """

    interleaved_heads: tuple[int, int] | None
    norms_plus_one: bool

    title: ClassVar[str] = "GGUF"
    flags: ClassVar[tuple[str, ...]] = ("gguf",)

    @classmethod
    def of(cls, keys: Keys) -> Self:
        """As quantization_config says, which the file's metadata make."""
        heads = keys.values.get("interleaved_heads")
        is_pair = isinstance(heads, list) and len(heads) == 2 and all(type(n) is int and n > 0 for n in heads)
        if heads is not None and not is_pair:
            raise ConfigError(f"quantization_config.interleaved_heads must be two numbers, found {shown(heads)}")
        return cls(heads and (heads[0], heads[1]), keys.flag("norms_plus_one", default=False))

    def kind(self, module: str) -> WeightKind | None:
        """See StoredFormat. The tensors alone tell."""
        del module
        return None

    def find(self, name: str, tensors: Tensors, parts: Sequence[int] = ()) -> StoredMatrix | None:
        """See StoredFormat."""
        tensor = tensors.get(name)
        if tensor is None:
            return None
        if tensor.dtype not in (*PLAIN, *BLOCKS):
            raise CheckpointError(
                f"{tensor} has the GGUF type {tensor.dtype}, which is not supported; supported: "
                f"{', '.join((*BLOCKS, *PLAIN))}. Give a file in one of these (Q8_0, Q4_K_M, Q6_K, F16), or the model "
                "in Hugging Face's form"
            )
        heads = None
        if self.interleaved_heads is not None and ".self_attn.q_proj." in name:
            heads = self.interleaved_heads[0]
        elif self.interleaved_heads is not None and ".self_attn.k_proj." in name:
            heads = self.interleaved_heads[1]
        if heads is not None and tensor.shape[0] % (2 * heads):
            raise CheckpointError(f"{tensor} has {tensor.shape[0]} rows, which {heads} heads do not divide")
        less_one = self.norms_plus_one and name.endswith("norm.weight")
        unpack = functools.partial(_unpack, tensor, heads, less_one=less_one)
        return StoredMatrix((name,), (tensor,), tensor.shape, _KINDS.get(tensor.dtype), unpack)


def _unpack(tensor: Tensor, heads: int | None, arrays: Sequence[HostArray], *, less_one: bool) -> FileMatrix:
    (stored,) = arrays
    if tensor.dtype in _UNPACK:
        blocks = stored.reshape(*stored.shape[:-1], -1, BLOCKS[tensor.dtype][1])
        matrix = _UNPACK[tensor.dtype](tensor, blocks)
    else:
        matrix = FileMatrix(stored.astype(np.float32) - np.float32(1) if less_one else stored)
    if heads is None:
        return matrix

    def in_halves(array: HostArray | None) -> HostArray | None:
        """Rows (0, H/2, 1, H/2 + 1, …) of each head in their order."""
        if array is None:
            return None
        return array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)

    values = in_halves(matrix.values)
    assert values is not None
    scales, zeros, minima = in_halves(matrix.scales), in_halves(matrix.zeros), in_halves(matrix.minima)
    return dataclasses.replace(matrix, values=values, scales=scales, zeros=zeros, minima=minima)


def _half(tensor: Tensor, blocks: HostArray, start: int) -> HostArray:
    """f32[…, blocks, 1], of a float16 in each block."""
    return scales_of(tensor, np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16))


def _q8_0(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    values = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return FileMatrix(_rows(values), _half(tensor, blocks, 0)[..., 0], (1, 32))


def _q4_k(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    """Eight groups of 32 in a block: q · (d · scale) - dmin · minimum."""
    first, second, both = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate([first & 63, both & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, both >> 4 | second >> 6 << 4], axis=-1)
    pairs = blocks[..., 16:].reshape(*blocks.shape[:-1], 4, 1, 32) >> np.array([0, 4], np.uint8)[:, None]
    values = (pairs & 15).view(np.int8).reshape(*blocks.shape[:-1], 8, 32)
    values -= 8
    factors = _half(tensor, blocks, 0) * scales.astype(np.float32)
    minimum = _half(tensor, blocks, 2) * minima.astype(np.float32)
    is_constant = factors == 0  # kept as nothing times what is subtracted, so that a zero point can say it
    values[is_constant] = -8
    factors = np.where(is_constant, minimum, factors)
    zeros = np.full(factors.shape, -8, np.int8)
    return FileMatrix(_rows(values), _rows(factors), (1, 32), _rows(zeros), minima=_rows(minimum))


def _q6_k(tensor: Tensor, blocks: HostArray) -> FileMatrix:
    """Sixteen groups of 16 in a block; four bits of each number lie apart from the other two."""
    lead = blocks.shape[:-1]
    low = blocks[..., :128].reshape(*lead, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None]
    high = blocks[..., 128:192].reshape(*lead, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    values = ((low & 15).reshape(*lead, 256) | (high & 3).reshape(*lead, 256) << 4).view(np.int8)
    values -= 32
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    return FileMatrix(_rows(values), _rows(_half(tensor, blocks, 208) * scales), (1, 16))


def _rows(array: HostArray) -> HostArray:
    """Of an array with a matrix's rows first."""
    return array.reshape(array.shape[0], -1)


_KINDS: Mapping[str, WeightKind] = {
    "Q8_0": WeightKind("int8", 32),
    "Q4_K": WeightKind("int4", 32, has_zeros=True, has_real_zeros=True),
    "Q6_K": WeightKind("int8", 16),
}
_UNPACK: Mapping[str, Callable[[Tensor, HostArray], FileMatrix]] = {"Q8_0": _q8_0, "Q4_K": _q4_k, "Q6_K": _q6_k}
