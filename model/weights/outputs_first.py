"""OutputsFirst: the form at rest of weights on a CPU, whose products read all inputs of one output before the next
output."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from palladio.model.weights.file_matrix import HostArray
from palladio.pallas_kernels.narrow_matmul import has_byte_products
from palladio.pallas_kernels.target import Target

BFLOAT16: np.dtype[Any] = jnp.dtype(jnp.bfloat16)


def multiplies_bytes(target: Target, mesh: Mesh) -> bool:
    """Return whether int8 weights take this form, and are multiplied as whole numbers. Several devices of a CPU serve
    only tests: flattened outputs could not be split."""
    return mesh.size == 1 and has_byte_products(target)


@dataclasses.dataclass(frozen=True, slots=True)
class OutputsFirst:
    """A form at rest with the inputs last, as in files. Weights of experts are stored as bits, see narrow_matmul.

    Attributes:
        shape, axes: those of the weight's known form.
        inputs: the dimension of `shape` that counts inputs.
        is_bits: bfloat16 numbers are stored as u16.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    inputs: int
    is_bits: bool = False

    @property
    def laid_shape(self) -> tuple[int, ...]:
        """Shape at rest."""
        return tuple(self.shape[number] for number in self.order)

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions of `shape` in memory order."""
        return (*(number for number in range(len(self.shape)) if number != self.inputs), self.inputs)

    def known_dtype(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype of the numbers: bfloat16 if they are stored as bits."""
        return BFLOAT16 if self.is_bits else dtype

    def laid_axes(self) -> tuple[str | None, ...]:
        """Return the logical axes at rest."""
        return tuple(self.axes[number] for number in self.order)

    def laid(self, values: jax.Array) -> jax.Array:
        """Convert an array of `shape` to the form at rest."""
        moved = values.transpose(self.order)
        return lax.bitcast_convert_type(moved, jnp.uint16) if self.is_bits else moved

    def laid_on_host(self, values: HostArray, own_shape: tuple[int, ...]) -> HostArray:
        """Return one device's part at rest, without a copy."""
        moved = values.transpose(self.order)
        return moved.view(np.uint16) if self.is_bits else moved
