"""Blocks of latents as the Triton kernels read them, and the sizes of those blocks.

A row's two parts are separate tiles, because Triton takes powers of two: 512 and 64 lanes are, 576 are not. The
latent's tile is read once, and is a factor of both products.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.ragged_paged_attention.gpu.triton_tile import LOG2E, MIN_ROWS, tile_lanes
from palladio.pallas_kernels.triton import Precision, load, matmul


class Tile(NamedTuple):
    """Rows of queries, or of the cache: latent [M, L'] and rotated [M, R']."""

    latent: jax.Array
    rotated: jax.Array


@dataclasses.dataclass(frozen=True, slots=True)
class TritonBlocks:
    """Block sizes of the kernels, which follow from the shapes alone.

    Attributes:
        heads: heads of a program. A program with all heads reads each row once; registers limit their number.
        queries: tokens of a program of a chunk.
        keys: rows at a time; a power of two.
        num_warps: warps of a program.
        num_stages: stages of its pipeline of loads.
    """

    heads: int
    queries: int
    keys: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, num_heads: int, in_float32: bool, single: bool) -> "TritonBlocks":
        """Choose sizes without spills of registers (ptxas 13.5, latents of 512 in 16 bits, of 128 in float32).

        Args:
            single: for requests of one token each.
        """
        rows = 16 if in_float32 else 64
        heads = min(num_heads, rows)
        queries = 1 if single else rows // heads
        if in_float32:
            return cls(heads, queries, keys=16, num_warps=8, num_stages=1)
        if heads * queries > 16:
            return cls(heads, queries, keys=16, num_warps=8, num_stages=2)
        return cls(heads, queries, keys=32, num_warps=4, num_stages=2)

    @property
    def rows(self) -> int:
        """Rows of a program's tile."""
        return max(MIN_ROWS, 1 << (self.heads * self.queries - 1).bit_length())


@dataclasses.dataclass(frozen=True, slots=True)
class LatentReader:
    """Reads queries and blocks of rows, and scores queries with rows.

    Attributes:
        rows_ref: [P·S, W] the cache.
        table_ref: i32[B·Pmax] the block table.
        page_size: S.
        table_width: Pmax.
        size: L.
        rotated: R.
        dtype: dtype of the factors of products.
        precision: precision of products.
        block: rows at a time (C).
        scale: factor on q·row.
    """

    rows_ref: jax.Array
    table_ref: jax.Array
    page_size: int
    table_width: int
    size: int
    rotated: int
    dtype: jnp.dtype
    precision: Precision
    block: int
    scale: float

    def read(self, request: jax.Array, first: jax.Array, end: jax.Array | None) -> Tile:
        """Read the rows of tokens first … first + C - 1 of a request.

        Args:
            end: tokens from here on are not read, and become zeros; None: all of them exist.
        """
        tokens = self.tokens(first)
        valid = None if end is None else tokens < end
        pages = load(self.table_ref, (request * self.table_width + lax.div(tokens, self.page_size),), valid)
        return self.tile(self.rows_ref, (pages * self.page_size + lax.rem(tokens, self.page_size),), valid)

    def tile(self, ref: jax.Array, index: tuple[jax.Array, ...], valid: jax.Array | None) -> Tile:
        """Read rows of an array [..., W] at M indices; zeros where they are not valid."""
        parts = ((0, self.size), (self.size, self.rotated))
        return Tile(*(self._load(ref, index, valid, *part) for part in parts))

    def tokens(self, first: jax.Array) -> jax.Array:
        """Return the positions i32[C] of the block that begins there."""
        return first + lax.iota(jnp.int32, self.block)

    def scores(self, q: Tile, rows: Tile) -> jax.Array:
        """Return the scores f32[M, C], in units of log2."""
        of_latent, of_rotated = (matmul(a, b, self.precision, transpose=True) for a, b in zip(q, rows, strict=True))
        return (of_latent + of_rotated) * (self.scale * LOG2E)

    def _load(
        self, ref: jax.Array, index: tuple[jax.Array, ...], valid: jax.Array | None, first_lane: int, num_lanes: int
    ) -> jax.Array:
        shape = (index[0].shape[0], tile_lanes(num_lanes))
        lanes = lax.broadcasted_iota(jnp.int32, shape, 1)
        mask = None if valid is None else lax.broadcast_in_dim(valid, shape, (0,))
        if shape[1] != num_lanes:
            inside = lanes < num_lanes
            mask = inside if mask is None else mask & inside
        cells = (*(lax.broadcast_in_dim(one, shape, (0,)) for one in index), first_lane + lanes)
        return load(ref, cells, mask).astype(self.dtype)
