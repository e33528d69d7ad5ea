"""Narrow: a weight of bfloat16 numbers, outputs first, on a CPU whose activations are float32."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.outputs_first import OutputsFirst
from palladio.model.weights.weight import Dense, Weight
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.narrow_matmul import NarrowProducts, narrow_grouped_matmul, narrow_matmul
from palladio.pallas_kernels.target import Target


class Narrow(Weight):
    """bfloat16 numbers; rows are rounded to bfloat16, sums are in float32.

    Attributes:
        products: settings of this kind of CPU: part of the model's structure, and so of every program's key.
    """

    def __init__(self, dense: Dense, products: NarrowProducts) -> None:
        """Make the parameter.

        Args:
            dense: a weight without values, of the same shape and axes.
        """
        metadata = dense.values.get_metadata()
        axes: tuple[str | None, ...] = metadata["logical_axes"]
        form = OutputsFirst(dense.values.shape, axes, dense.inputs, is_bits=axes[0] == "experts")
        shape = form.laid_shape
        value = jax.ShapeDtypeStruct(shape, jnp.uint16 if form.is_bits else jnp.bfloat16)
        self.values = nnx.Param(value, logical_axes=form.laid_axes(), rest=form, initializer=metadata["initializer"])
        self.inputs = len(shape) - 1
        self.products = products

    @property
    def kind_name(self) -> str:
        """Name of the kind, that of a dense weight: converted checkpoints do not record forms at rest."""
        return "bfloat16"

    def matmul(
        self, x: jax.Array, *, out_dtype: DTypeLike | None = None, arrays: tuple[jax.Array, ...] | None = None
    ) -> jax.Array:
        (values,) = self.arrays() if arrays is None else arrays
        out = narrow_matmul(x, values, self.products)
        return out.astype(x.dtype if out_dtype is None else out_dtype)

    def take(self, ids: jax.Array, dtype: DTypeLike) -> jax.Array:
        return jnp.take(self.values[...], ids, axis=0, mode="clip").astype(dtype)

    def grouped_matmul(
        self, rows: jax.Array, sizes: jax.Array, kernels: Kernels, arrays: tuple[jax.Array, ...]
    ) -> jax.Array:
        del kernels
        (bits,) = arrays
        return narrow_grouped_matmul(rows, bits, sizes, self.products).astype(rows.dtype)

    def read(self, matrix: FileMatrix) -> tuple[HostArray, ...]:
        return (matrix.dense(jnp.bfloat16),)

    def made_of(self, numbers: jax.Array) -> tuple[jax.Array, ...]:
        """Return the parameters of a weight with these numbers, laid out as those of a dense weight."""
        return (numbers.astype(jnp.bfloat16),)


def lies_narrow(activations: DTypeLike, weights: DTypeLike, target: Target, mesh: Mesh) -> bool:
    """Return whether dense weights become Narrow ones, by the platform and the two dtypes. Over several devices of a
    CPU, which serve only tests, they do not: flattened outputs could not be split."""
    is_narrow = jnp.dtype(weights) == jnp.bfloat16 and jnp.dtype(activations) == jnp.float32
    return is_narrow and target.platform == "cpu" and mesh.size == 1
