"""Block sizes of the GPU kernels: by the shapes alone, so that the same program comes of the same model anywhere."""

import dataclasses

import jax.numpy as jnp

from palladio.pallas_kernels.ragged_paged_attention.config import AttentionShape

WANTED_PROGRAMS = 528  # four for each of an H200's 132 multiprocessors: what runs at once with these registers


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeBlocks:
    """How the decode kernel is cut up.

    Attributes:
        keys: at a time; a power of two.
        spare_parts: parts beyond one a request, into which long requests are cut.
        min_part: keys below which a request is not cut.
        num_warps: of a program. num_stages: of its pipeline of loads.
    """

    keys: int
    spare_parts: int
    min_part: int = 256
    num_warps: int = 4
    num_stages: int = 3

    @classmethod
    def of(cls, shape: AttentionShape) -> "DecodeBlocks":
        return cls(keys=32 if _is_wide(shape) else 64, spare_parts=-(-WANTED_PROGRAMS // shape.num_kv_heads))


@dataclasses.dataclass(frozen=True, slots=True)
class PrefillBlocks:
    """How the prefill kernel is cut up.

    Attributes:
        rows: of a tile at most, which are queries times query heads a kv head; a power of two.
        keys: at a time; a power of two.
        num_warps: of a program. num_stages: of its pipeline of loads.
    """

    rows: int
    keys: int
    num_warps: int = 8
    num_stages: int = 3

    @classmethod
    def of(cls, shape: AttentionShape) -> "PrefillBlocks":
        if _is_wide(shape):
            return cls(rows=128, keys=32, num_stages=2)
        return cls(rows=128, keys=64)

    def queries(self, group: int) -> int:
        """Tokens of a block, with so many query heads a kv head."""
        return max(1, self.rows // group)


def _is_wide(shape: AttentionShape) -> bool:
    """Whether a row of the cache takes more than 256 bytes as keys and as values, each."""
    return shape.head_size * jnp.dtype(shape.dtype).itemsize > 256
