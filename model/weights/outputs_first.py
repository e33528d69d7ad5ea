"""OutputsFirst: how weights lie on a CPU, whose products walk the inputs of one output after those of another."""

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
    """Whether weights of int8 lie so, and are multiplied as whole numbers. Several devices of a CPU serve tests alone:
    outputs that lie as one could not be split."""
    return mesh.size == 1 and has_byte_products(target)


@dataclasses.dataclass(frozen=True, slots=True)
class OutputsFirst:
    """A weight's inputs lie last, as in files. Those of experts lie as bits, see narrow_matmul.

    Attributes:
        shape, axes: as everybody else knows them.
        inputs: the dimension of `shape` that is the inputs'.
        is_bits: bfloat16 numbers lie as u16.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    inputs: int
    is_bits: bool = False

    @property
    def laid_shape(self) -> tuple[int, ...]:
        """As it lies."""
        return tuple(self.shape[number] for number in self.order)

    @property
    def order(self) -> tuple[int, ...]:
        """See RestForm."""
        return (*(number for number in range(len(self.shape)) if number != self.inputs), self.inputs)

    def known_dtype(self, dtype: np.dtype) -> np.dtype:
        """See RestForm."""
        return BFLOAT16 if self.is_bits else dtype

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
