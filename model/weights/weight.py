"""Weight: a matrix, or one for each expert, that multiplies; and Dense, the kind that keeps its numbers as they are."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.grouped_matmul import grouped_matmul


class Weight(Module):
    """The weight of a Linear, a token table, a head or experts.

    Its parameters are those that a checkpoint fills: each has its own shape, dtype and logical axes. Methods never look
    at values, so a model can be taken apart and rebuilt with anything in their place.

    Attributes:
        values: [in, out…] of a projection, [V, D] of a table, [E, in, out] of experts.
        inputs: the dimension of `values` that products sum over.
    """

    values: Any
    inputs: int

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of all parameters, `values` first."""
        return ("values",)

    @property
    def params(self) -> tuple[Any, ...]:
        """All parameters, `values` first."""
        return (self.values,)

    @property
    def kind_name(self) -> str:
        """Name in the log: the bits of the weight and of the activations."""
        return str(jnp.dtype(self.values.dtype).name)

    def arrays(self) -> tuple[jax.Array, ...]:
        """The values of all parameters."""
        return tuple(param[...] for param in self.params)

    def matmul(
        self, x: jax.Array, *, out_dtype: DTypeLike | None = None, arrays: tuple[jax.Array, ...] | None = None
    ) -> jax.Array:
        """Multiply: x [T, in] → [T, out…], sums in float32.

        Args:
            out_dtype: dtype of the result; None: that of x.
            arrays: one device's part of the parameters; None: all.
        """
        raise NotImplementedError

    def take(self, ids: jax.Array, dtype: DTypeLike) -> jax.Array:
        """Take rows of a table: i32[T] → [T, D].

        Args:
            dtype: dtype of the result.
        """
        raise NotImplementedError

    def grouped_matmul(
        self, rows: jax.Array, sizes: jax.Array, kernels: Kernels, arrays: tuple[jax.Array, ...]
    ) -> jax.Array:
        """Multiply groups of rows: rows [M, in] → [M, out], the first sizes[0] rows with the first expert's matrix, and
        so on.

        Args:
            arrays: as in `matmul`.
        """
        raise NotImplementedError

    def read(self, matrix: FileMatrix) -> tuple[HostArray, ...]:
        """Make the values of each parameter from a checkpoint's matrix, laid out as in the file: inputs last, if there
        are any; the loader puts each in its place."""
        raise NotImplementedError

    def made_of(self, numbers: jax.Array) -> tuple[jax.Array, ...]:
        """Return the parameters of a weight with these numbers, laid out as `values`."""
        raise NotImplementedError


class Dense(Weight):
    """The numbers themselves."""

    def __init__(self, context: Context, shape: tuple[int, ...], axes: tuple[str | None, ...], inputs: int) -> None:
        """Make the parameter.

        Args:
            shape, axes: those of `values`.
        """
        init = Initializer("uniform", fan_in=inputs)
        self.values = context.param(shape, axes, init)
        self.inputs = inputs

    def matmul(
        self, x: jax.Array, *, out_dtype: DTypeLike | None = None, arrays: tuple[jax.Array, ...] | None = None
    ) -> jax.Array:
        (values,) = self.arrays() if arrays is None else arrays
        dimensions = (((1,), (self.inputs,)), ((), ()))
        out: jax.Array = lax.dot_general(x, _as(values, x.dtype), dimensions, preferred_element_type=out_dtype)
        return out

    def take(self, ids: jax.Array, dtype: DTypeLike) -> jax.Array:
        return _as(jnp.take(self.values[...], ids, axis=0, mode="clip"), dtype)

    def grouped_matmul(
        self, rows: jax.Array, sizes: jax.Array, kernels: Kernels, arrays: tuple[jax.Array, ...]
    ) -> jax.Array:
        (values,) = arrays
        return grouped_matmul(
            rows, _as(values, rows.dtype), sizes, backend=kernels.grouped_matmul, target=kernels.target
        )

    def read(self, matrix: FileMatrix) -> tuple[HostArray, ...]:
        return (matrix.dense(self.values.dtype),)

    def made_of(self, numbers: jax.Array) -> tuple[jax.Array, ...]:
        return (numbers.astype(self.values.dtype),)


def _as(values: jax.Array, dtype: DTypeLike) -> jax.Array:
    return values if values.dtype == dtype else values.astype(dtype)
