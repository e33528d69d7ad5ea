"""Tile sizes of the GPU kernels, by the shapes alone."""

import dataclasses
import math

import jax
import jax.numpy as jnp

WANTED_PROGRAMS = 132  # of an H200's multiprocessors, each has one
LEAST_STEPS = 4  # of a program's loop over D, else its beginning and end are most of it


@dataclasses.dataclass(frozen=True, slots=True)
class MatmulTiles:
    """Tile sizes of a product; all are powers of two.

    Attributes:
        rows: rows of a tile.
        columns: columns of a tile.
        inner: size of D at a time.
        num_warps: warps of a program.
        num_stages: stages of its pipeline of loads.
        parts: parts of D, each a program of its own, whose sums are added up afterwards.
    """

    rows: int
    columns: int
    inner: int
    num_warps: int
    num_stages: int
    parts: int = 1

    def in_parts(self, M: int, D: int, F: int) -> "MatmulTiles":
        """Cut D of one matrix [D, F] and M rows into parts, where the tiles of its columns alone would leave
        multiprocessors idle. The partial sums are far smaller than the matrix, and stay in the device's cache."""
        programs = math.ceil(M / self.rows) * math.ceil(F / self.columns)
        steps = math.ceil(D / self.inner)
        parts = min(math.ceil(WANTED_PROGRAMS / programs), max(1, steps // LEAST_STEPS))
        return dataclasses.replace(self, parts=parts)

    @classmethod
    def of(cls, rows: jax.Array, matrices: jax.Array) -> "MatmulTiles":
        """Choose tiles that a group of the usual size fills: with few rows, most time goes into reading each matrix
        once."""
        usual = -(-rows.shape[0] // matrices.shape[0])
        if rows.dtype == jnp.float32:
            return cls(rows=32, columns=64, inner=32, num_warps=4, num_stages=2)
        if usual <= 16:
            return cls(rows=16, columns=128, inner=128, num_warps=4, num_stages=3)
        if usual <= 64:
            return cls(rows=64, columns=128, inner=64, num_warps=4, num_stages=4)
        return cls(rows=128, columns=128, inner=64, num_warps=8, num_stages=4)


@dataclasses.dataclass(frozen=True, slots=True)
class MosaicTiles:
    """Tile sizes of a product for Hopper GPUs.

    Attributes:
        columns: columns of a tile.
        inner: size of D at a time.
        warpgroups: warpgroups that multiply, each 64 rows.
        stages: buffers for the next inputs.
    """

    columns: int
    stages: int
    inner: int = 64
    warpgroups: int = 2

    @classmethod
    def of(cls, columns: int) -> "MosaicTiles":
        """Choose tiles for matrices of this number of columns (F), a multiple of 64."""
        if columns % 256 == 0:
            return cls(columns=256, stages=3)
        return cls(columns=128 if columns % 128 == 0 else 64, stages=4)

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.warpgroups * 64
