"""Block sizes of the GPU kernels, by the shapes alone: a model gives the same program everywhere."""

import dataclasses

import jax.numpy as jnp

from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape

WANTED_PROGRAMS = 528  # four for each of an H200's 132 multiprocessors: what runs at once with these registers


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeBlocks:
    """Block sizes of the decode kernel.

    Attributes:
        keys: keys at a time; a power of two.
        spare_parts: parts beyond one a request, into which long requests are cut.
        min_part: requests with fewer keys are not cut.
        num_warps: warps of a program.
        num_stages: stages of its pipeline of loads.
    """

    keys: int
    spare_parts: int
    min_part: int = 256
    num_warps: int = 4
    num_stages: int = 3

    @classmethod
    def of(cls, shape: AttentionShape) -> "DecodeBlocks":
        row_bytes = _row_bytes(shape)
        keys = 64 if row_bytes <= 256 else 32 if row_bytes <= 512 else 16
        spare_parts = -(-WANTED_PROGRAMS // shape.num_kv_heads)
        if shape.kv_dtype == jnp.int8 and row_bytes > 256:  # its scales need registers besides a wide head's sums
            keys = 16
        return cls(keys, spare_parts, num_warps=4 if row_bytes <= 512 else 8)


@dataclasses.dataclass(frozen=True, slots=True)
class PrefillBlocks:
    """Block sizes of the prefill kernel.

    Attributes:
        rows: rows of a tile at most: queries times query heads a kv head; a power of two.
        keys: keys at a time; a power of two.
        num_warps: warps of a program.
        num_stages: stages of its pipeline of loads.
    """

    rows: int
    keys: int
    num_warps: int = 8
    num_stages: int = 3

    @classmethod
    def of(cls, shape: AttentionShape) -> "PrefillBlocks":
        row_bytes, in_float32 = _row_bytes(shape), jnp.dtype(shape.dtype) == jnp.float32
        if row_bytes <= 256:
            return cls(rows=128, keys=64)
        if in_float32:  # whose factors are kept twice, each rounded to TensorFloat and the rest
            wide = row_bytes > 512
            return cls(rows=16 if wide else 32, keys=16 if wide else 32, num_stages=2)
        if shape.kv_dtype == jnp.int8 and row_bytes > 384:
            return cls(rows=64, keys=32, num_stages=2)
        return cls(rows=128, keys=32, num_stages=2)

    def queries(self, group: int) -> int:
        """Return the tokens of a block, for `group` query heads a kv head."""
        return max(1, self.rows // group)


@dataclasses.dataclass(frozen=True, slots=True)
class MosaicBlocks:
    """Block sizes of the prefill kernel for Hopper GPUs.

    Attributes:
        warpgroups: warpgroups that compute, each 64 queries.
        keys: keys at a time; a multiple of 64.
        stages: buffers of keys and values.
    """

    warpgroups: int
    keys: int
    stages: int

    @classmethod
    def of(cls, head_size: int) -> "MosaicBlocks":
        """Choose sizes for heads of 64 or 128. With 128 keys at a time, some features' registers spill (ptxas 13.5)."""
        return cls(warpgroups=2, keys=64, stages=8 if head_size <= 64 else 4)

    @property
    def queries(self) -> int:
        """Tokens of a block."""
        return self.warpgroups * 64


def _row_bytes(shape: AttentionShape) -> int:
    """Return the bytes of one key, or one value, as a factor of a product."""
    return shape.head_size * jnp.dtype(shape.dtype).itemsize
