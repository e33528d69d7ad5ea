"""Residuals divided over the devices of a TPU slice by tokens, in steps of many of them."""

import dataclasses
from collections.abc import Callable
from typing import Final, Self

import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from palladio.model.base.sharding import GROUP_AXES, num_ranks, num_shards, on_each_device
from palladio.model.config.config import ModelConfig
from palladio.model.spec.layer_spec import AttentionSpec, DenseSpec
from palladio.model.weights.weight import Dense, Weight
from palladio.pallas_kernels.target import Target

LEAST_TOKENS: Final = 512  # of a step: with fewer, reading weights takes longer than what is divided
LEAST_PART: Final = 512  # tokens of a device, for a product of its own to be limited by the matrix units
RING: Final = ("v5e",)  # kinds of TPU for which a ring has been compared with whole products
_WHOLE, _PARTS = PartitionSpec(), PartitionSpec(GROUP_AXES)


@dataclasses.dataclass(frozen=True, slots=True)
class DividedTokens:
    """Residuals that each device adds and norms for its own tokens. The sum over devices that ends half of a layer
    becomes a reduce-scatter, and the next product's input an all-gather: together they send as much as the whole sum
    did.

    Where this does not apply, arrays stay as they are.
    """

    target: Target
    mesh: Mesh
    is_plain: bool

    @classmethod
    def of(cls, config: ModelConfig, target: Target, mesh: Mesh) -> Self:
        """Decide whether to divide tokens: only if all layers are plain attention and a dense MLP, since others end
        with a whole sum, and weights are not quantized."""
        layers = config.layers
        is_plain = all(isinstance(each.attention, AttentionSpec) and isinstance(each.mlp, DenseSpec) for each in layers)
        return cls(target, mesh, is_plain and config.weight_kinds.kind is None)

    def divide(self, x: jax.Array) -> jax.Array:
        """Divide x [T, D] along T; before, every device has all of it."""
        if not self._has_parts(x):
            return x
        size = x.shape[0] // num_shards(self.mesh)

        def own_part(x: jax.Array) -> jax.Array:
            mine: jax.Array = lax.dynamic_slice_in_dim(x, lax.axis_index(GROUP_AXES) * size, size)
            return mine

        part: jax.Array = on_each_device(own_part, self.mesh, in_specs=_WHOLE, out_specs=_PARTS)(x)
        return part

    def gather(self, x: jax.Array) -> jax.Array:
        """Gather x, which `divide` divided: every device then has all of it."""
        if not self._has_parts(x):
            return x

        def all_parts(x: jax.Array) -> jax.Array:
            everything: jax.Array = lax.all_gather(x, GROUP_AXES, tiled=True)
            return everything

        whole: jax.Array = on_each_device(all_parts, self.mesh, in_specs=_PARTS, out_specs=_WHOLE)(x)
        return whole

    def product(self, kernel: Weight, x: jax.Array) -> jax.Array:
        """Multiply: x [T, in] → [T, D], divided along T; each device has some of `in`."""
        if not (isinstance(kernel, Dense) and self._has_parts(x)):
            return self.divide(kernel.matmul(x))

        def own_sums(x: jax.Array, *arrays: jax.Array) -> jax.Array:
            mine: jax.Array = lax.psum_scatter(kernel.matmul(x, arrays=arrays), GROUP_AXES, tiled=True)
            return mine

        specs = PartitionSpec(None, GROUP_AXES), PartitionSpec(GROUP_AXES)
        sums: jax.Array = on_each_device(own_sums, self.mesh, in_specs=specs, out_specs=_PARTS)(x, *kernel.arrays())
        return sums

    def ring(self, x: jax.Array, up: Weight, inner: Callable[[jax.Array], jax.Array], down: Weight) -> jax.Array | None:
        """Compute down(inner(up(x))), x and the result divided: parts of x, then of the sums, pass round the devices
        while others are multiplied. None: parts are too small, or the device or the weights do not support it."""
        num_devices = num_shards(self.mesh)
        is_usual = isinstance(up, Dense) and isinstance(down, Dense) and self.target.kind in RING
        if not (is_usual and self._has_parts(x) and x.shape[0] >= LEAST_PART * num_devices):
            return None
        onwards = [(i, (i + 1) % num_devices) for i in range(num_devices)]

        def on_device(x: jax.Array, into: jax.Array, back: jax.Array) -> jax.Array:
            part, made = x, []
            for step in range(num_devices):  # the data of the device `step` places before
                following = lax.ppermute(part, GROUP_AXES, onwards) if step + 1 < num_devices else part
                made.append(inner(up.matmul(part, arrays=(into,))))
                part = following
            sums = down.matmul(made[1], arrays=(back,))  # its way to that device is the longest
            for step in range(2, num_devices + 1):
                sums = lax.ppermute(sums, GROUP_AXES, onwards) + down.matmul(made[step % num_devices], arrays=(back,))
            return sums

        columns = PartitionSpec(*(None,) * (up.values[...].ndim - 1), GROUP_AXES)
        call = on_each_device(on_device, self.mesh, in_specs=(_PARTS, columns, _PARTS), out_specs=_PARTS)
        out: jax.Array = call(x, *up.arrays(), *down.arrays())
        return out

    def _has_parts(self, x: jax.Array) -> bool:
        T, num_devices = x.shape[0], num_shards(self.mesh)
        is_slice = self.target.platform == "tpu" and num_devices > 1 and num_ranks(self.mesh) == 1
        return self.is_plain and is_slice and T >= LEAST_TOKENS and T % num_devices == 0
