"""Scaled: a weight of 8-bit or 4-bit numbers and scales, one a channel or one a group of inputs. It is dequantized only
inside products."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from palladio.model.base.sharding import GROUP_AXES, ShardingRules, num_shards, on_each_device
from palladio.model.weights.file_matrix import FileMatrix, HostArray
from palladio.model.weights.flat_outputs import FlatOutputs
from palladio.model.weights.kinds import WeightKind
from palladio.model.weights.outputs_first import OutputsFirst, multiplies_bytes
from palladio.model.weights.quantize import LARGEST, quantized, quantized_rows
from palladio.model.weights.weight import Dense, Weight
from palladio.pallas_kernels.block_matmul import block_matmul
from palladio.pallas_kernels.block_matmul import refusal_of_kernels as refusal_of_blocks
from palladio.pallas_kernels.choice import Kernels
from palladio.pallas_kernels.grouped_matmul import Scales, grouped_matmul, refusal_of_kernels
from palladio.pallas_kernels.grouped_matmul.scales import unpacked
from palladio.pallas_kernels.narrow_matmul import NarrowProducts, byte_matmul

_NOT_ON_CPU = "XLA has no such product for CPU"


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleForm:
    """The form of a weight's scales. Scales have the dimensions of `values`, except that of the inputs.

    Attributes:
        inputs: the dimension of `values` that counts inputs.
        group: inputs that share a scale; None: all, and the scales have no such dimension.
        stored_group: the same on one device, and in a converted checkpoint.
    """

    inputs: int
    group: int | None
    stored_group: int | None


class Scaled(Weight):
    """(values - zeros) · scales; a scale is of one output, and of all inputs or of a group of them.

    Attributes:
        kind: the kind that it is made as.
        group: inputs that share a scale here, where devices may have cut the kind's groups; None: all.
        multiplies_bytes: products are those of byte_matmul, and the values lie outputs first.
        multiplies_blocks: products are those of block_matmul, and the values lie outputs first.
        zeros: laid out as scales; None: the kind has none.
        why_unrounded: why activations keep their bits although the flag asks for 8; None: the flag is followed.
    """

    def __init__(
        self,
        dense: Dense,
        kind: WeightKind,
        groups: tuple[int, int] | None,
        kernels: Kernels,
        mesh: Mesh,
        *,
        why_unrounded: str | None = None,
    ) -> None:
        """Make the parameters.

        Args:
            dense: a weight without values, of the same shape and axes.
            groups: inputs that share a scale here, and those on one device; None: all do.
            why_unrounded: see Attributes.
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
        self.multiplies_blocks = kind.activation_bits == 8 and group is not None
        is_flat = group is not None and inputs == 0 and (len(shape) > 2 or self.multiplies_blocks)
        self.flat = FlatOutputs.of(shape, axes, mesh, outputs_first=self.multiplies_blocks) if is_flat else None
        is_multiplied = kind.has_bytes and axes[0] != "experts"
        self.multiplies_bytes = is_multiplied and multiplies_bytes(kernels.target, mesh)
        form = OutputsFirst(shape, axes, inputs) if self.multiplies_bytes else self.flat
        self.values = _param(shape, axes, form, kind.dtype, initializer=metadata["initializer"])
        flat_scales = FlatOutputs.of(tuple(counts), tuple(scale_axes), mesh) if is_flat else None
        of_scales = tuple(counts), tuple(scale_axes), flat_scales
        scale_form = ScaleForm(inputs, group, stored_group)
        self.scales = _param(*of_scales, "float32", scale_form=scale_form)
        self.zeros = _param(*of_scales, kind.zeros_dtype, scale_form=scale_form) if kind.has_zeros else None
        self.inputs = inputs
        self.kind = kind
        self.group = group
        self.stored_group = stored_group
        self.kernels = kernels
        self.mesh = mesh
        self.why_unrounded = why_unrounded

    @property
    def part_names(self) -> tuple[str, ...]:
        return ("values", "scales", *(("zeros",) if self.kind.has_zeros else ()))

    @property
    def params(self) -> tuple[Any, ...]:
        return (self.values, self.scales, *((self.zeros,) if self.kind.has_zeros else ()))

    @property
    def kind_name(self) -> str:
        return self.kind.name

    def matmul(
        self, x: jax.Array, *, out_dtype: DTypeLike | None = None, arrays: tuple[jax.Array, ...] | None = None
    ) -> jax.Array:
        parts = self.arrays() if arrays is None else arrays
        out_dtype = x.dtype if out_dtype is None else out_dtype
        if self.group is None:
            return self._product_of_channels(x, *parts).astype(out_dtype)
        if self.inputs == 0:
            product = self._product_of_groups if arrays is not None else self._over_devices()
            out: jax.Array = product(x, *parts)
            return out.astype(out_dtype)
        dimensions = (((1,), (self.inputs,)), ((), ()))
        wide = self._widened(x.dtype, *parts)
        return lax.dot_general(x, wide, dimensions, preferred_element_type=jnp.float32).astype(out_dtype)

    def _product_of_channels(
        self, x: jax.Array, values: jax.Array, scales: jax.Array, zeros: jax.Array | None = None
    ) -> jax.Array:
        """Multiply: x [T, in] → f32[T, out…]. Zero points are a product of their own: if they were subtracted first,
        XLA:GPU would materialize the dequantized weight."""
        if self.multiplies_bytes:
            products = NarrowProducts.of(self.kernels.target)
            return byte_matmul(x, values, scales, zeros, products, bits=self.kind.activation_bits)
        dimensions, ones = (((1,), (self.inputs,)), ((), ())), (1,) * (values.ndim - 1)
        of_rows, sums_dtype = None, jnp.float32
        if self.kind.activation_bits == 8:
            x, of_rows = rounded_rows(x, self.kind)
            sums_dtype = jnp.int32 if self.kind.storage == "int8" else jnp.float32
        else:
            values = values.astype(x.dtype)
        out = lax.dot_general(x, values, dimensions, preferred_element_type=sums_dtype).astype(jnp.float32)
        if zeros is not None:
            out -= zeros.astype(jnp.float32) * jnp.sum(x.astype(jnp.float32), axis=1).reshape(-1, *ones)
        if of_rows is not None:
            out *= of_rows.reshape(-1, *ones)
        return out * scales

    def _over_devices(self) -> Callable[..., jax.Array]:
        """Return `_product_of_groups` of whole arrays: each device computes with its part."""
        rules = ShardingRules()
        axes, *scale_axes = (param.get_metadata()["logical_axes"] for param in self.params)
        of_inputs = axes[1 if self.multiplies_blocks else 0]

        def own(x: jax.Array, *parts: jax.Array) -> jax.Array:
            out = self._product_of_groups(x, *parts)
            return out if of_inputs is None or num_shards(self.mesh) == 1 else lax.psum(out, GROUP_AXES)

        return on_each_device(
            own,
            self.mesh,
            in_specs=(rules.spec((None, of_inputs)), rules.spec(axes), *map(rules.spec, scale_axes)),
            out_specs=rules.spec((None, *(axes if self.flat is None else self.flat.axes)[1:])),
        )

    def _product_of_groups(
        self, x: jax.Array, values: jax.Array, scales: jax.Array, zeros: jax.Array | None = None
    ) -> jax.Array:
        """Multiply: x [T, in], values [in, out] ([out, in] of blocks), scales [groups, out] → [T, out…]. Compilers
        would materialize the dequantized weight first, so this is a grouped product with one expert."""
        T = x.shape[0]
        backend, target = self.kernels.grouped_matmul, self.kernels.target
        if self.multiplies_blocks:
            assert self.flat is not None
            assert self.group is not None
            backend = self.kernels.block_matmul
            out = block_matmul(x, values, scales, group=self.group, out_dtype=x.dtype, backend=backend, target=target)
            return out.reshape(T, *self.flat.own_outputs)
        if zeros is not None:  # else XLA:TPU widens those of all layers before the first
            x, zeros = lax.optimization_barrier((x, zeros))
        factors = self._factors(scales[None], None if zeros is None else zeros[None])
        out = grouped_matmul(x, values[None], jnp.full(1, T, jnp.int32), scales=factors, backend=backend, target=target)
        return out if self.flat is None else out.reshape(T, *self.flat.own_outputs)

    def _factors(self, scales: jax.Array, zeros: jax.Array | None, group: int | None = None) -> Scales:
        """Return the scales in the form that kernels take.

        Args:
            scales, zeros: [E, groups, out].
            group: inputs that share a scale; None: the weight's group.
        """
        group = self.group if group is None else group
        assert group is not None
        wide = None if zeros is None else zeros.astype(jnp.float32)
        return Scales(scales, group, wide, is_float4=self.kind.is_float4)

    def widening(self, dtype: DTypeLike) -> tuple[int, str, str] | None:
        """Describe the dequantized copy that a product makes of one device's part: its bytes, its dtype, and the
        reason. None: the product takes the numbers as they are. The weight must have values.

        Args:
            dtype: dtype of activations.
        """
        values, name = self.values[...], jnp.dtype(dtype).name
        shape = values.sharding.shard_shape(values.shape)
        is_expert = self.inputs == 1 and len(shape) > 2
        num_bytes = math.prod(shape) * jnp.dtype(dtype).itemsize
        if self.group is None and not is_expert:
            if self.kernels.target.platform != "cpu" or self.multiplies_bytes:
                return None
            if self.kind.activation_bits == 16:
                return num_bytes, name, _NOT_ON_CPU
            # Two of float8 become float32 both; of int8 there is a product.
            is_float = self.kind.storage == "float8_e4m3fn"
            return (math.prod(shape) * 4, "float32", _NOT_ON_CPU) if is_float else None
        if self.inputs and not is_expert:
            return num_bytes, name, "it is a table with groups"
        if self.multiplies_blocks:
            assert self.group is not None
            why = refusal_of_blocks(self.group, self.kernels.target)
            return None if why is None else (math.prod(shape) * 4, "float32", why)
        matrices = shape if is_expert else (1, *shape)
        why = refusal_of_kernels(
            jnp.dtype(dtype),
            jax.ShapeDtypeStruct(matrices, self.values.dtype),
            matrices[1] if self.group is None else self.group,
            has_zeros=self.kind.has_zeros,
            is_float4=self.kind.is_float4,
            backend=self.kernels.grouped_matmul,
            target=self.kernels.target,
        )
        return None if why is None else (num_bytes, name, why)

    def take(self, ids: jax.Array, dtype: DTypeLike) -> jax.Array:
        """Take rows of a table, as Weight.take. For one row XLA:TPU would make a slice, and copy the whole table into
        another layout for it."""
        rows = jnp.pad(ids, (0, 1)) if ids.shape[0] == 1 else ids
        values, *factors = (jnp.take(array, rows, axis=0, mode="clip")[: ids.shape[0]] for array in self.arrays())
        if self.group is None:
            factors = [array[:, None] for array in factors]
        return self._widened(dtype, values, *factors)

    def grouped_matmul(
        self, rows: jax.Array, sizes: jax.Array, kernels: Kernels, arrays: tuple[jax.Array, ...]
    ) -> jax.Array:
        values, scales, *rest = arrays
        zeros = rest[0] if rest else None
        if self.group is None:
            scales, zeros = scales[:, None], None if zeros is None else zeros[:, None]
        factors = self._factors(scales, zeros, values.shape[1] if self.group is None else self.group)
        backend, target = kernels.grouped_matmul, kernels.target
        return grouped_matmul(rows, values, sizes, scales=factors, backend=backend, target=target)

    def _widened(
        self, dtype: DTypeLike, values: jax.Array, scales: jax.Array, zeros: jax.Array | None = None
    ) -> jax.Array:
        """Dequantize; the compiler fuses it into a product.

        Args:
            scales, zeros: one for each group, or for all inputs.
        """

        def of_inputs(array: jax.Array) -> jax.Array:
            if self.group is None:
                return array
            wide = jnp.repeat(array, self.group, axis=self.inputs, total_repeat_length=None)
            return lax.slice_in_dim(wide, 0, values.shape[self.inputs], axis=self.inputs)

        wide = unpacked(values, is_float4=self.kind.is_float4)
        if zeros is not None:
            wide -= of_inputs(zeros).astype(jnp.float32)
        return (wide * of_inputs(scales)).astype(dtype)

    def read(self, matrix: FileMatrix) -> tuple[HostArray, ...]:
        """Make the values of each parameter, as Weight.read. Scales and zeros are [out, groups] or [out], after [E] if
        values have it."""
        if matrix.scales is None:
            values, scales = quantized_rows(matrix.values, self.kind, self.stored_group)
            return values, scales if self.group is None else self._own_groups(scales, self.stored_group, values)
        zeros = matrix.real_zeros()
        parts = [matrix.scales, *([] if zeros is None else [zeros])]
        wide = (matrix.of_every_row(part) for part in parts)
        if self.group is None:
            return matrix.values, *(part[..., 0] for part in wide)
        return matrix.values, *(self._own_groups(part, matrix.block[1], matrix.values) for part in wide)

    def _own_groups(self, array: HostArray, width: int | None, values: HostArray) -> HostArray:
        """Turn scales of groups of `width` inputs into one scale for each of this weight's groups."""
        assert self.group is not None
        assert width is not None
        return np.repeat(array, width // self.group, axis=-1)[..., : -(-values.shape[-1] // self.group)]

    def made_of(self, numbers: jax.Array) -> tuple[jax.Array, ...]:
        """Return the parameters of a weight with these numbers, with the groups of one device."""
        group = numbers.shape[self.inputs] if self.stored_group is None else self.stored_group
        values, *factors = quantized(numbers, self.kind, group, self.inputs)
        if self.stored_group is None:
            factors = [jnp.squeeze(array, axis=self.inputs) for array in factors]
        return values, *factors


def rounded_rows(x: jax.Array, kind: WeightKind) -> tuple[jax.Array, jax.Array]:
    """Quantize activations [T, in] like the weight's numbers, with a factor f32[T] for each row."""
    wide, largest = x.astype(jnp.float32), LARGEST[kind.storage]
    factors = jnp.max(jnp.abs(wide), axis=1) / largest
    wide /= jnp.where(factors == 0, 1.0, factors)[:, None]
    wide = jnp.clip(jnp.round(wide) if kind.storage == "int8" else wide, -largest, largest)
    return wide.astype(kind.dtype), factors


def _param(
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    form: FlatOutputs | OutputsFirst | None,
    dtype: str,
    **metadata: object,
) -> nnx.Param:
    """Make a parameter without values.

    Args:
        shape, axes: those of the known form.
    """
    if form is not None:
        shape, axes = form.laid_shape, form.laid_axes()
    value = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    return nnx.Param(value, logical_axes=axes, rest=form, **metadata)
