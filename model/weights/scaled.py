"""Scaled: a weight of 8-bit numbers and scales, one a channel or one a group of inputs. It is widened only inside
products."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.sharding import GROUP_AXES, ShardingRules, num_shards, on_each_device
from palladio.model.weights.kinds import WeightKind
from palladio.model.weights.weight import Dense, FileMatrix, HostArray, Weight
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.grouped_matmul import Scales, grouped_matmul

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}
_CHUNK = 1 << 18  # numbers that are quantized at a time, in float32


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleForm:
    """What the scales of a weight count. Scales have the dimensions of `values`, but for that of the inputs.

    Attributes:
        inputs: the dimension of `values` that is the inputs'.
        group: inputs that share a scale; None: all, and the scales have no such dimension.
        stored_group: the same on one device, and in a converted checkpoint.
    """

    inputs: int
    group: int | None
    stored_group: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class FlatOutputs:
    """Outputs of several dimensions that lie as one, each device's part together: kernels take matrices of two
    dimensions, and on a TPU an array of more would have to be copied for them.

    Attributes:
        shape, axes: [in, out…] as everybody else knows them.
        split: the output dimension that devices share.
        num_parts: devices that share it.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    split: int
    num_parts: int

    @classmethod
    def of(cls, shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: Mesh) -> Self:
        """At most one of the outputs' axes is split over devices."""
        split = next((number for number, axis in enumerate(axes) if number and axis is not None), 1)
        return cls(shape, axes, split, ShardingRules().num_parts(mesh, axes[split]))

    @property
    def flat_shape(self) -> tuple[int, int]:
        """As it lies."""
        return self.shape[0], math.prod(self.shape[1:])

    @property
    def flat_axes(self) -> tuple[str | None, str | None]:
        """As it lies."""
        return self.axes[0], self.axes[self.split]

    @property
    def own_outputs(self) -> tuple[int, ...]:
        """Sizes of the outputs that one device has."""
        sizes = list(self.shape[1:])
        sizes[self.split - 1] //= self.num_parts
        return tuple(sizes)

    @property
    def order(self) -> tuple[int, ...]:
        """See RestForm."""
        return tuple(range(len(self.shape)))

    def known_dtype(self, dtype: np.dtype) -> np.dtype:
        """See RestForm."""
        return dtype

    def laid_axes(self) -> tuple[str | None, ...]:
        """See RestForm."""
        return self.flat_axes

    def laid_on_host(self, values: HostArray, own_shape: tuple[int, ...]) -> HostArray:
        """See RestForm. Each device's slice of the one form is its slice of the other."""
        return values.reshape(own_shape)

    def laid(self, values: jax.Array) -> jax.Array:
        """See RestForm."""
        before, size, after = self.shape[: self.split], self.shape[self.split], self.shape[self.split + 1 :]
        parts = values.reshape(*before, self.num_parts, size // self.num_parts, *after)
        return jnp.moveaxis(parts, self.split, 1).reshape(self.flat_shape)


class Scaled(Weight):
    """values · scales; a scale is of one output, and of all inputs or of a group of them.

    Attributes:
        kind: what it is made as.
        group: inputs that share a scale here, where devices may have cut the kind's groups; None: all.
    """

    def __init__(
        self, dense: Dense, kind: WeightKind, groups: tuple[int, int] | None, kernels: Kernels, mesh: Mesh
    ) -> None:
        """
        Args:
            dense: a weight without values, of the same shape and axes.
            groups: inputs that share a scale here, and those on one device; None: all do.
        """
        group, stored_group = (None, None) if groups is None else groups
        shape, inputs = dense.values.shape, dense.inputs
        metadata = dense.values.get_metadata()
        axes: tuple[str | None, ...] = metadata["logical_axes"]
        counts, scale_axes = list(shape), list(axes)
        if group is None:
            del counts[inputs], scale_axes[inputs]
        else:
            counts[inputs] = -(-shape[inputs] // group)
        is_flat = group is not None and inputs == 0 and len(shape) > 2
        self.flat = FlatOutputs.of(shape, axes, mesh) if is_flat else None
        self.values = _param(shape, axes, self.flat, kind.storage, initializer=metadata["initializer"])
        flat_scales = FlatOutputs.of(tuple(counts), tuple(scale_axes), mesh) if is_flat else None
        form = ScaleForm(inputs, group, stored_group)
        self.scales = _param(tuple(counts), tuple(scale_axes), flat_scales, "float32", scale_form=form)
        self.inputs = inputs
        self.kind = kind
        self.group = group
        self.stored_group = stored_group
        self.kernels = kernels
        self.mesh = mesh

    @property
    def part_names(self) -> tuple[str, ...]:
        """See Weight."""
        return ("values", "scales")

    @property
    def params(self) -> tuple[Any, ...]:
        """See Weight."""
        return (self.values, self.scales)

    @property
    def kind_name(self) -> str:
        """See Weight."""
        return self.kind.name

    def matmul(
        self, x: jax.Array, *, out_dtype: DTypeLike | None = None, arrays: tuple[jax.Array, ...] | None = None
    ) -> jax.Array:
        """See Weight."""
        values, scales = self.arrays() if arrays is None else arrays
        if self.group is not None and self.inputs == 0:
            product = self._product_of_groups if arrays is not None else self._over_devices()
            out: jax.Array = product(x, values, scales)
            return out if out_dtype is None else out.astype(out_dtype)
        dimensions = (((1,), (self.inputs,)), ((), ()))
        wide = values.astype(x.dtype) if self.group is None else self._widened(values, scales, x.dtype)
        out = lax.dot_general(x, wide, dimensions, preferred_element_type=jnp.float32)
        if self.group is None:
            out *= scales
        return out.astype(x.dtype if out_dtype is None else out_dtype)

    def _over_devices(self) -> Callable[..., jax.Array]:
        """`_product_of_groups` of whole arrays: each device computes with its part."""
        rules = ShardingRules()
        axes, scale_axes = (param.get_metadata()["logical_axes"] for param in self.params)

        def own(x: jax.Array, values: jax.Array, scales: jax.Array) -> jax.Array:
            out = self._product_of_groups(x, values, scales)
            return out if axes[0] is None or num_shards(self.mesh) == 1 else lax.psum(out, GROUP_AXES)

        return on_each_device(
            own,
            self.mesh,
            in_specs=(rules.spec((None, axes[0])), rules.spec(axes), rules.spec(scale_axes)),
            out_specs=rules.spec((None, *(axes if self.flat is None else self.flat.axes)[1:])),
        )

    def _product_of_groups(self, x: jax.Array, values: jax.Array, scales: jax.Array) -> jax.Array:
        """x [T, in], values [in, out], scales [groups, out] → [T, out…]. Compilers would make the widened weight
        before the product, kernels do not: it is that of one expert."""
        assert self.group is not None
        T = x.shape[0]
        backend, target = self.kernels.grouped_matmul, self.kernels.target
        sizes, factors = jnp.full(1, T, jnp.int32), Scales(scales[None], self.group)
        out = grouped_matmul(x, values[None], sizes, scales=factors, backend=backend, target=target)
        return out if self.flat is None else out.reshape(T, *self.flat.own_outputs)

    def take(self, ids: jax.Array, dtype: DTypeLike) -> jax.Array:
        """See Weight."""
        values, scales = (jnp.take(array, ids, axis=0, mode="clip") for array in self.arrays())
        if self.group is None:
            return (values.astype(jnp.float32) * scales[:, None]).astype(dtype)
        return self._widened(values, scales, dtype)

    def grouped_matmul(
        self, rows: jax.Array, sizes: jax.Array, kernels: Kernels, arrays: tuple[jax.Array, ...]
    ) -> jax.Array:
        """See Weight."""
        values, scales = arrays
        factors = Scales(scales[:, None], values.shape[1]) if self.group is None else Scales(scales, self.group)
        backend, target = kernels.grouped_matmul, kernels.target
        return grouped_matmul(rows, values, sizes, scales=factors, backend=backend, target=target)

    def _widened(self, values: jax.Array, scales: jax.Array, dtype: DTypeLike) -> jax.Array:
        """The numbers, of weights with groups: the compiler makes it part of the product."""
        assert self.group is not None
        factors = jnp.repeat(scales, self.group, axis=self.inputs, total_repeat_length=None)
        factors = lax.slice_in_dim(factors, 0, values.shape[self.inputs], axis=self.inputs)
        return (values.astype(jnp.float32) * factors).astype(dtype)

    def read(self, matrix: FileMatrix) -> tuple[HostArray, ...]:
        """See Weight. Scales come as [out, groups] or [out], behind [E] where values have it."""
        if matrix.scales is None:
            return _quantized(matrix.values, self.kind)
        height, width = matrix.block
        scales = np.repeat(matrix.scales, height, axis=0)[: matrix.values.shape[0]]
        if self.group is None:
            return matrix.values, scales[:, 0]
        scales = np.repeat(scales, width // self.group, axis=1)
        return matrix.values, scales[:, : -(-matrix.values.shape[1] // self.group)]

    def made_of(self, numbers: jax.Array) -> tuple[jax.Array, ...]:
        """See Weight. With the groups of one device."""
        largest, inputs = LARGEST[self.kind.storage], self.inputs
        size = numbers.shape[inputs]
        group = size if self.stored_group is None else self.stored_group
        widths = [(0, 0)] * numbers.ndim
        widths[inputs] = (0, -size % group)
        padded = jnp.pad(numbers, widths)
        split = (*padded.shape[:inputs], -1, group, *padded.shape[inputs + 1 :])
        scales = jnp.max(jnp.abs(padded.reshape(split)), axis=inputs + 1) / largest
        factors = lax.slice_in_dim(jnp.repeat(scales, group, axis=inputs), 0, size, axis=inputs)
        values = numbers / jnp.where(factors == 0, 1.0, factors)
        values = jnp.round(values) if self.kind.storage == "int8" else values
        made = jnp.clip(values, -largest, largest).astype(self.values.dtype)
        return made, scales if self.stored_group is not None else jnp.squeeze(scales, axis=inputs)


def _param(
    shape: tuple[int, ...], axes: tuple[str | None, ...], flat: FlatOutputs | None, dtype: str, **metadata: object
) -> nnx.Param:
    """Without values. Args: shape, axes: as everybody else knows them."""
    if flat is not None:
        shape, axes = flat.flat_shape, flat.flat_axes
    value = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    return nnx.Param(value, logical_axes=axes, rest=flat, **metadata)


def _quantized(values: HostArray, kind: WeightKind) -> tuple[HostArray, ...]:
    """8-bit numbers [out, in] or [E, out, in] and a scale for each row, which is the largest absolute value of the row
    over the largest of the 8-bit numbers."""
    assert kind.group is None, "weights with groups are read as they are stored"
    rows = values.reshape(-1, values.shape[-1])
    made, scales = np.empty(rows.shape, np.dtype(kind.storage)), np.empty(len(rows), np.float32)
    step = max(1, _CHUNK // rows.shape[1])
    for start in range(0, len(rows), step):
        band = slice(start, start + step)
        numbers = rows[band].astype(np.float32)
        scales[band] = np.abs(numbers).max(axis=1) / np.float32(LARGEST[kind.storage])
        numbers /= np.where(scales[band] == 0, 1, scales[band])[:, None]
        made[band] = np.rint(numbers) if kind.storage == "int8" else numbers
    return made.reshape(values.shape), scales.reshape(values.shape[:-1])
