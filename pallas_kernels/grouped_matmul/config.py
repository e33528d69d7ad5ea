"""Tile sizes of the GPU kernel: by the shapes alone."""

import dataclasses
import math

import jax
import jax.numpy as jnp

WANTED_PROGRAMS = 132  # of an H200's multiprocessors, each has one
LEAST_STEPS = 4  # of a program's loop over D, else its beginning and end are most of it


@dataclasses.dataclass(frozen=True, slots=True)
class MatmulTiles:
    """How a product is cut up; all sizes are powers of two.

    Attributes:
        rows: of a tile. columns: of a tile. inner: of D at a time.
        num_warps: of a program. num_stages: of its pipeline of loads.
        parts: into which D is cut, each a program of its own, whose sums are added up afterwards.
    """

    rows: int
    columns: int
    inner: int
    num_warps: int
    num_stages: int
    parts: int = 1

    def in_parts(self, M: int, D: int, F: int) -> "MatmulTiles":
        """Of one matrix [D, F] and M rows: in parts, where the tiles of its columns alone would leave multiprocessors
        idle. What is added up is far less than the matrix, and stays in the device's cache."""
        programs = math.ceil(M / self.rows) * math.ceil(F / self.columns)
        steps = math.ceil(D / self.inner)
        parts = min(math.ceil(WANTED_PROGRAMS / programs), max(1, steps // LEAST_STEPS))
        return dataclasses.replace(self, parts=parts)

    @classmethod
    def of(cls, rows: jax.Array, matrices: jax.Array) -> "MatmulTiles":
        """A group of the usual size fills a tile: with few rows, time goes into reading the matrices once."""
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
    """How a product is cut up for Hopper GPUs.

    Attributes:
        columns: of a tile. inner: of D at a time.
        warpgroups: that multiply, each 64 rows. stages: buffers for what comes next.
    """

    columns: int
    stages: int
    inner: int = 64
    warpgroups: int = 2

    @classmethod
    def of(cls, columns: int) -> "MosaicTiles":
        """columns: of the matrices (F), a multiple of 64."""
        if columns % 256 == 0:
            return cls(columns=256, stages=3)
        return cls(columns=128 if columns % 128 == 0 else 64, stages=4)

    @property
    def rows(self) -> int:
        """Of a tile."""
        return self.warpgroups * 64
