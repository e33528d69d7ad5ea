"""GGUF tensors: one tensor is one matrix, with its numbers and scales in blocks along the rows."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from palladio.model.base.config_keys import Keys, shown
from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.formats.gguf_blocks import BLOCK_TYPES
from palladio.model.formats.stored_format import StoredFormat, StoredMatrix, Tensor, Tensors
from palladio.model.gguf.gguf_file import BLOCKS, PLAIN
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.kinds import WeightKind


@dataclasses.dataclass(frozen=True)
class Gguf(StoredFormat):
    """One tensor is one matrix, numbers and scales in one.

    Attributes:
        interleaved_heads: numbers of query and key heads whose rows are stored as pairs (i, i + H/2), as llama.cpp
            rotates them; None: rows are stored in the usual order.
        norms_plus_one: the scales of norms are stored with 1 added.
    """

    interleaved_heads: tuple[int, int] | None
    norms_plus_one: bool

    title: ClassVar[str] = "GGUF"
    flags: ClassVar[tuple[str, ...]] = ("gguf",)

    @classmethod
    def of(cls, keys: Keys) -> Self:
        """Read quantization_config, which config_of_gguf makes of the file's metadata."""
        heads = keys.values.get("interleaved_heads")
        is_pair = isinstance(heads, list) and len(heads) == 2 and all(type(n) is int and n > 0 for n in heads)
        if heads is not None and not is_pair:
            raise ConfigError(f"quantization_config.interleaved_heads must be two numbers, found {shown(heads)}")
        return cls(heads and (heads[0], heads[1]), keys.flag("norms_plus_one", default=False))

    def kind(self, module: str) -> WeightKind | None:
        """Return None: the kind follows from the tensors alone."""
        del module
        return None

    def find(self, name: str, tensors: Tensors, parts: Sequence[int] = ()) -> StoredMatrix | None:
        tensor = tensors.get(name)
        if tensor is None:
            return None
        if tensor.dtype not in (*PLAIN, *BLOCKS):
            raise CheckpointError(
                f"{tensor} has the GGUF type {tensor.dtype}, which is not supported; supported: "
                f"{', '.join((*BLOCKS, *PLAIN))}. Give a file in one of these (such as Q4_K_M or Q8_0), or the "
                "model in Hugging Face's form"
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
        block_type = BLOCK_TYPES.get(tensor.dtype)
        kind = None if block_type is None else block_type.kind
        return StoredMatrix((name,), (tensor,), tensor.shape, kind, unpack)


def _unpack(tensor: Tensor, heads: int | None, arrays: Sequence[HostArray], *, less_one: bool) -> FileMatrix:
    (stored,) = arrays
    if tensor.dtype in BLOCK_TYPES:
        blocks = stored.reshape(*stored.shape[:-1], -1, BLOCKS[tensor.dtype][1])
        matrix = BLOCK_TYPES[tensor.dtype].unpack(tensor, blocks)
    else:
        matrix = FileMatrix(stored.astype(np.float32) - np.float32(1) if less_one else stored)
    if heads is None:
        return matrix

    def in_halves(array: HostArray | None) -> HostArray | None:
        """Reorder the rows (0, H/2, 1, H/2 + 1, …) of each head into (0, 1, 2, …)."""
        if array is None:
            return None
        return array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)

    values = in_halves(matrix.values)
    assert values is not None
    scales, zeros, minima = in_halves(matrix.scales), in_halves(matrix.zeros), in_halves(matrix.minima)
    return dataclasses.replace(matrix, values=values, scales=scales, zeros=zeros, minima=minima)
