"""The trials of grouped products and of products of blocks of float8."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from palladio.pallas_kernels.block_matmul.api import block_matmul
from palladio.pallas_kernels.grouped_matmul import Scales, grouped_matmul
from palladio.pallas_kernels.target import Target
from palladio.runtime.core.trials.case import Case, HostArray, Inputs, Work, flat, random

MOST_GROUPS = 4  # matrices of a trial: others are read the same way
FEW_ROWS, MANY_ROWS = 32, 640  # rows of all groups
FEW_OF_ONE, MANY_OF_ONE = 16, 256  # rows of a projection


@dataclasses.dataclass(frozen=True, slots=True)
class GroupedProduct:
    """A stack of matrices on one device: experts of a layer, or a projection with scales of groups.

    Attributes:
        num_groups: E; 1: a projection.
        num_inputs, num_outputs: D and F.
        dtype: dtype of rows.
        stored: dtype of the matrices.
        group: inputs that share a scale; None: there are no scales.
        has_zeros: scales have zeros.
        is_float4: see Scales.
    """

    num_groups: int
    num_inputs: int
    num_outputs: int
    dtype: DTypeLike
    stored: DTypeLike
    group: int | None = None
    has_zeros: bool = False
    is_float4: bool = False

    def cases(self) -> list[Case]:
        """Return the programs of a trial: few rows, as in a decode step, and many."""
        if self.num_groups == 1:
            return [self._case([("all rows", (size,))], size) for size in (FEW_OF_ONE, MANY_OF_ONE)]
        few = [("a group of none", self._sizes((9, 0, 17, 1))), ("no rows", self._sizes((0,)))]
        many = [("several tiles", self._sizes((257, 0, 129, 128))), ("one group", self._sizes((0, 600)))]
        return [self._case(few, FEW_ROWS), self._case(many, MANY_ROWS)]

    def _sizes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the rows of each group; those of the last group are the rest's."""
        E = min(self.num_groups, MOST_GROUPS)
        return (*sizes[:E], *(0,) * (E - len(sizes)))

    def _case(self, steps: Sequence[tuple[str, tuple[int, ...]]], num_rows: int) -> Case:
        inputs = tuple(
            Inputs(name, functools.partial(self._make, sizes, num_rows), functools.partial(_kept, sum(sizes)), work)
            for name, sizes in steps
            for work in [self._work(sizes)]
        )
        scales = "" if self.group is None else f", a scale per {self.group} inputs"
        zeros = ", zeros" if self.has_zeros else ""
        numbers = ", 4-bit floats" if self.is_float4 else ""
        return Case(
            name=f"{num_rows} rows",
            call=self._call,
            expected=functools.partial(self._call, "reference", Target()),
            inputs=inputs,
            dtype=self.dtype,
            layer=str(self),
            options=f"{jnp.dtype(self.stored).name}{numbers}{scales}{zeros}",
            shapes=self._shapes(len(steps[0][1]), num_rows),
        )

    def _work(self, sizes: Sequence[int]) -> Work:
        D, F, rows = self.num_inputs, self.num_outputs, sum(sizes)
        used = sum(size > 0 for size in sizes)
        stored = used * D * F * jax.dtypes.itemsize_bits(jnp.dtype(self.stored)) // 8
        factors = 0 if self.group is None else used * -(-D // self.group) * F * 4 * (1 + self.has_zeros)
        return Work(stored + factors + rows * (D + F) * jnp.dtype(self.dtype).itemsize, 2 * rows * D * F)

    def _shapes(self, num_groups: int, num_rows: int) -> tuple[Any, ...]:
        """Return the shapes of what `_make` makes."""
        E, D, F = num_groups, self.num_inputs, self.num_outputs
        struct: Any = jax.ShapeDtypeStruct
        whole = struct((num_rows, D), self.dtype), struct((E, D, F), self.stored), struct((E,), jnp.int32)
        if self.group is None:
            return *whole, None, None
        factors = struct((E, -(-D // self.group), F), jnp.float32)
        return *whole, factors, factors if self.has_zeros else None

    def _make(self, sizes: tuple[int, ...], num_rows: int) -> tuple[Any, ...]:
        """Make rows, matrices, rows of each group, factors and zeros."""
        rng, E, D, F = np.random.default_rng(num_rows), len(sizes), self.num_inputs, self.num_outputs
        rows = random(rng, (num_rows, D), self.dtype)
        matrices = random(rng, (E, D, F), self.stored)
        counts = np.array(sizes, np.int32)
        if self.group is None:
            return rows, matrices, counts, None, None
        shape = (E, -(-D // self.group), F)
        factors = np.resize(2.0 ** rng.integers(-4, 0, 4093), shape).astype(np.float32)
        zeros = np.resize(rng.integers(-4, 5, 4093), shape).astype(np.float32) if self.has_zeros else None
        return rows, matrices, counts, factors, zeros

    def _call(
        self,
        backend: str,
        target: Target,
        rows: jax.Array,
        matrices: jax.Array,
        sizes: jax.Array,
        factors: jax.Array | None,
        zeros: jax.Array | None,
    ) -> jax.Array:
        scales = None
        if factors is not None:
            assert self.group is not None
            scales = Scales(factors, self.group, zeros, is_float4=self.is_float4)
        return grouped_matmul(rows, matrices, sizes, scales=scales, backend=backend, target=target)


@dataclasses.dataclass(frozen=True, slots=True)
class BlockProduct:
    """A matrix of float8 with a scale for each group of inputs, whose rows are rounded alike.

    Attributes:
        num_inputs, num_outputs: D and F.
        dtype: dtype of rows and results.
        group: inputs that share a scale.
    """

    num_inputs: int
    num_outputs: int
    dtype: DTypeLike
    group: int

    def cases(self) -> list[Case]:
        """Return the programs of a trial: few rows, as in a decode step, and many."""
        return [self._case(FEW_OF_ONE), self._case(MANY_OF_ONE)]

    def _case(self, num_rows: int) -> Case:
        D, F = self.num_inputs, self.num_outputs
        num_bytes = D * F + -(-D // self.group) * F * 4 + num_rows * (D + F) * jnp.dtype(self.dtype).itemsize
        inputs = Inputs(
            "all rows",
            functools.partial(self._make, num_rows),
            functools.partial(_kept, num_rows),
            Work(num_bytes, 2 * num_rows * D * F),
        )
        return Case(
            name=f"{num_rows} rows",
            call=self._call,
            expected=functools.partial(self._call, "reference", Target()),
            inputs=(inputs,),
            dtype=self.dtype,
            layer=str(self),
            options=f"groups of {self.group}",
            shapes=(
                jax.ShapeDtypeStruct((num_rows, D), self.dtype),
                jax.ShapeDtypeStruct((F, D), jnp.float8_e4m3fn),
                jax.ShapeDtypeStruct((-(-D // self.group), F), jnp.float32),
            ),
        )

    def _make(self, num_rows: int) -> tuple[Any, ...]:
        """Make rows, a matrix, and its scales."""
        rng, D, F = np.random.default_rng(num_rows), self.num_inputs, self.num_outputs
        scales = rng.uniform(0.5, 1.5, (-(-D // self.group), F)).astype(np.float32)
        return random(rng, (num_rows, D), self.dtype), random(rng, (F, D), jnp.float8_e4m3fn), scales

    def _call(self, backend: str, target: Target, rows: jax.Array, matrix: jax.Array, scales: jax.Array) -> jax.Array:
        options = {"group": self.group, "out_dtype": self.dtype}
        return block_matmul(rows, matrix, scales, **options, backend=backend, target=target)  # type: ignore[arg-type]


def _kept(num_rows: int, out: HostArray) -> list[HostArray]:
    """Return the rows of groups; others may hold anything."""
    return [flat(out[:num_rows])]
