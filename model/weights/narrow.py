"""Narrow: a weight of bfloat16 numbers on a CPU, whose activations are float32. It lies outputs first."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.weight import Dense, Weight
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.narrow_matmul import NarrowProducts, narrow_grouped_matmul, narrow_matmul
from palladio.pallas_kernels.target import Target

BFLOAT16: np.dtype[Any] = jnp.dtype(jnp.bfloat16)


@dataclasses.dataclass(frozen=True, slots=True)
class OutputsFirst:
    """A weight's inputs lie last, as in files. Those of experts lie as bits, see narrow_matmul.

    Attributes:
        shape, axes: as everybody else knows them.
        inputs: the dimension of `shape` that is the inputs'.
        is_bits: numbers lie as u16.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    inputs: int
    is_bits: bool

    @property
    def order(self) -> tuple[int, ...]:
        """See RestForm."""
        return (*(number for number in range(len(self.shape)) if number != self.inputs), self.inputs)

    def known_dtype(self, dtype: np.dtype) -> np.dtype:
        """See RestForm."""
        del dtype
        return BFLOAT16

    def laid_axes(self) -> tuple[str | None, ...]:
        """See RestForm."""
        return tuple(self.axes[number] for number in self.order)

    def laid(self, values: jax.Array) -> jax.Array:
        """See RestForm."""
        moved = values.transpose(self.order)
        return lax.bitcast_convert_type(moved, jnp.uint16) if self.is_bits else moved

    def laid_on_host(self, values: HostArray, own_shape: tuple[int, ...]) -> HostArray:
        """See RestForm."""
        moved = values.transpose(self.order)
        return moved.view(np.uint16) if self.is_bits else moved


class Narrow(Weight):
    """bfloat16 numbers; rows are rounded to bfloat16, sums are in float32.

    Attributes:
        products: how this kind of CPU multiplies: as part of the model's structure, part of every program's key.
    """

    def __init__(self, dense: Dense, products: NarrowProducts) -> None:
        """
        Args:
            dense: a weight without values, of the same shape and axes.
        """
        metadata = dense.values.get_metadata()
        axes: tuple[str | None, ...] = metadata["logical_axes"]
        form = OutputsFirst(dense.values.shape, axes, dense.inputs, is_bits=axes[0] == "experts")
        shape = tuple(form.shape[number] for number in form.order)
        value = jax.ShapeDtypeStruct(shape, jnp.uint16 if form.is_bits else jnp.bfloat16)
        self.values = nnx.Param(value, logical_axes=form.laid_axes(), rest=form, initializer=metadata["initializer"])
        self.inputs = len(shape) - 1
        self.products = products

    @property
    def kind_name(self) -> str:
        """See Weight. As of a dense one: converted checkpoints do not know how numbers lie."""
        return "bfloat16"

    def matmul(
        self, x: jax.Array, *, out_dtype: DTypeLike | None = None, arrays: tuple[jax.Array, ...] | None = None
    ) -> jax.Array:
        """See Weight."""
        (values,) = self.arrays() if arrays is None else arrays
        out = narrow_matmul(x, values, self.products)
        return out.astype(x.dtype if out_dtype is None else out_dtype)

    def take(self, ids: jax.Array, dtype: DTypeLike) -> jax.Array:
        """See Weight."""
        return jnp.take(self.values[...], ids, axis=0, mode="clip").astype(dtype)

    def grouped_matmul(
        self, rows: jax.Array, sizes: jax.Array, kernels: Kernels, arrays: tuple[jax.Array, ...]
    ) -> jax.Array:
        """See Weight."""
        del kernels
        (bits,) = arrays
        return narrow_grouped_matmul(rows, bits, sizes, self.products).astype(rows.dtype)

    def read(self, matrix: FileMatrix) -> tuple[HostArray, ...]:
        """See Weight."""
        return (matrix.dense(jnp.bfloat16),)

    def made_of(self, numbers: jax.Array) -> tuple[jax.Array, ...]:
        """See Weight. Laid out as a dense weight's."""
        return (numbers.astype(jnp.bfloat16),)


def lies_narrow(activations: DTypeLike, weights: DTypeLike, target: Target, mesh: Mesh) -> bool:
    """Whether dense weights are Narrow ones: their layout follows from the platform and the two dtypes. Over several
    devices of a CPU, which serve tests alone, they are not: outputs that lie as one could not be split."""
    is_narrow = jnp.dtype(weights) == jnp.bfloat16 and jnp.dtype(activations) == jnp.float32
    return is_narrow and target.platform == "cpu" and mesh.size == 1
