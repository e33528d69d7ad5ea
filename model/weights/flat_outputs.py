"""FlatOutputs: the form at rest of weights with groups, whose kernels take matrices of two dimensions."""

import dataclasses
import math
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from palladio.model.base.sharding import ShardingRules
from palladio.model.weights.file_matrix import HostArray


@dataclasses.dataclass(frozen=True, slots=True)
class FlatOutputs:
    """A form at rest with all outputs in one dimension, each device's part together: kernels take matrices of two
    dimensions, and on a TPU an array of more would have to be copied for them.

    Attributes:
        shape, axes: those of the weight's known form, [in, out…].
        split: the output dimension that devices share.
        num_parts: devices that share it.
        outputs_first: inputs come last, as in files: a GPU's tensor cores multiply float8 only this way.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    split: int
    num_parts: int
    outputs_first: bool = False

    @classmethod
    def of(
        cls, shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: Mesh, *, outputs_first: bool = False
    ) -> Self:
        """Choose the form of a weight. Devices may split at most one of the outputs' axes."""
        split = next((number for number, axis in enumerate(axes) if number and axis is not None), 1)
        return cls(shape, axes, split, ShardingRules().num_parts(mesh, axes[split]), outputs_first)

    @property
    def laid_shape(self) -> tuple[int, int]:
        """Shape at rest."""
        inputs, outputs = self.shape[0], math.prod(self.shape[1:])
        return (outputs, inputs) if self.outputs_first else (inputs, outputs)

    @property
    def flat_axes(self) -> tuple[str | None, str | None]:
        """Logical axes at rest."""
        inputs, outputs = self.axes[0], self.axes[self.split]
        return (outputs, inputs) if self.outputs_first else (inputs, outputs)

    @property
    def own_outputs(self) -> tuple[int, ...]:
        """Sizes of the outputs that one device has."""
        sizes = list(self.shape[1:])
        sizes[self.split - 1] //= self.num_parts
        return tuple(sizes)

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions of `shape` in memory order."""
        numbers = tuple(range(len(self.shape)))
        return (*numbers[1:], 0) if self.outputs_first else numbers

    def known_dtype(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype of the numbers: that at rest."""
        return dtype

    def laid_axes(self) -> tuple[str | None, ...]:
        """Return the logical axes at rest."""
        return self.flat_axes

    def laid_on_host(self, values: HostArray, own_shape: tuple[int, ...]) -> HostArray:
        """Return one device's part at rest, without a copy. Each device's slice of one form is its slice of the
        other."""
        return values.transpose(self.order).reshape(own_shape)

    def laid(self, values: jax.Array) -> jax.Array:
        """Convert an array of `shape` to the form at rest."""
        before, size, after = self.shape[: self.split], self.shape[self.split], self.shape[self.split + 1 :]
        parts = values.reshape(*before, self.num_parts, size // self.num_parts, *after)
        flat = jnp.moveaxis(parts, self.split, 1).reshape(self.shape[0], -1)
        return flat.T if self.outputs_first else flat
