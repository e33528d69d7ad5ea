"""Block sizes of the TPU kernel of latent attention."""

import dataclasses
import math
from collections.abc import Mapping

import jax.numpy as jnp

from palladio.pallas_kernels.latent_attention.layout import LANES
from palladio.pallas_kernels.ragged_paged_attention.inputs.config import AttentionShape
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_config import NO_CHANGES, SPILLS, VMEM
from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_rows import ALIGNMENT
from palladio.pallas_kernels.target import Target

USUAL = {"decode": {"rows": 1, "keys": 1024, "row_chunk": 256, "key_chunk": 512}} | {
    "chunk": {"rows": 512, "keys": 512, "row_chunk": 256, "key_chunk": 512}
}
INTERPRETED = {
    "rows": 64,
    "keys": 2 * LANES,
    "row_chunk": 32,
    "key_chunk": LANES,
}  # small, so that small cases have several


@dataclasses.dataclass(frozen=True, slots=True)
class LatentBlocks:
    """Sizes of one kernel.

    Attributes:
        queries: tokens of a request at once.
        heads: rows of a token: all heads, padded to whole tiles.
        keys: rows of the cache at once: a multiple of the page size.
        row_chunk, key_chunk: rows and keys of one product.
        vmem: bytes of vector memory that the kernel may use.
    """

    queries: int
    heads: int
    keys: int
    row_chunk: int
    key_chunk: int
    vmem: int

    @property
    def rows(self) -> int:
        """Rows of a block of queries."""
        return self.queries * self.heads


def padded_heads(num_heads: int) -> int:
    """Return the rows of a token: whole tiles, so that copies of any number of tokens may begin at any of them."""
    return -(-num_heads // ALIGNMENT) * ALIGNMENT


def latent_blocks(
    kind: str, shape: AttentionShape, target: Target, changes: Mapping[str, int] = NO_CHANGES
) -> LatentBlocks:
    """Choose the largest blocks up to the desired sizes whose buffers fit.

    Args:
        kind: decode, for requests of one token, or chunk.
        shape: shape of one kv head, whose size is that of a row.
        changes: sizes that a sweep tries instead of the usual.

    Raises:
        NotImplementedError: the smallest block is too large.
    """
    sizes = (USUAL[kind] if target.interpret is None else INTERPRETED) | dict(changes)
    heads, unit = padded_heads(shape.num_heads), math.lcm(shape.page_size, LANES)
    queries = 1 if kind == "decode" else max(1, sizes["rows"] // heads)
    keys = max(sizes["keys"] // unit, 1) * unit
    limit = int(VMEM.get(target.kind, min(VMEM.values())) * 0.8)
    while True:
        rows = queries * heads
        row_chunk, key_chunk = _part(rows, sizes["row_chunk"], ALIGNMENT), _part(keys, sizes["key_chunk"], LANES)
        needed = _bytes(shape, rows, keys, row_chunk, key_chunk)
        if needed <= limit:
            return LatentBlocks(queries, heads, keys, row_chunk, key_chunk, min(limit, needed + needed // 4 + SPILLS))
        if keys > unit:
            keys = max(keys // 2 // unit, 1) * unit
        elif queries > 1:
            queries //= 2
        else:
            raise NotImplementedError(
                f"{shape.num_heads} heads over latents in pages of {shape.page_size}: one block is larger than the "
                f"vector memory of TPU {target.kind} (a smaller --page-size)"
            )


def _part(size: int, wanted: int, unit: int) -> int:
    """Return the largest part of `size` up to `wanted` that divides it and is a multiple of the unit."""
    return max(part for part in range(unit, max(min(size, wanted), unit) + 1, unit) if size % part == 0)


def _bytes(shape: AttentionShape, rows: int, keys: int, row_chunk: int, key_chunk: int) -> int:
    """Return the bytes of the buffers, with the same again for scores and weights in flight."""
    width, itemsize = shape.head_size, jnp.dtype(shape.dtype).itemsize
    cache = 2 * keys * width * jnp.dtype(shape.kv_dtype).itemsize
    moved = 3 * rows * width * itemsize
    state = rows * (3 * LANES + width) * 4
    return cache + moved + state + 4 * row_chunk * (key_chunk * (4 + itemsize) + LANES * 4)
