"""The placing of one parameter's values: the slices that this host's devices need, and their way to the devices."""

import math

import jax
from flax import nnx
from jax.sharding import Mesh

from palladio.model.base.sharding import ShardingRules
from palladio.model.loading.layout.parameters import known_dtype, known_form, rest_form
from palladio.model.loading.read_back import Place, ReadBack
from palladio.model.loading.readers.safetensors_file import Array

Bounds = tuple[tuple[int | None, int | None], ...]
Slices = dict[Bounds, Array]


class Target:
    """A parameter, and the slices of it that this host's devices need."""

    def __init__(self, path: str, param: nnx.Param, mesh: Mesh) -> None:
        rules, (self.shape, axes) = ShardingRules(), known_form(param)
        self.path, self.dtype, self._form = path, known_dtype(param), rest_form(param)
        self.order = tuple(range(len(self.shape))) if self._form is None else self._form.order
        indices = rules.sharding(mesh, axes).addressable_devices_indices_map(self.shape)
        self.slices = {_bounds(index): index for index in indices.values() if index is not None}
        # A device's slice of the one form is its slice of the other.
        self._placed_shape = param.shape
        self._sharding = rules.sharding(mesh, param.get_metadata()["logical_axes"])
        placed = self._sharding.addressable_devices_indices_map(param.shape)
        self._placed = {device: _bounds(index) for device, index in placed.items()}
        self._read_as = {self._placed[device]: _bounds(index) for device, index in indices.items()}
        self._own_shape = self._sharding.shard_shape(param.shape)
        self.num_bytes = math.prod(self._own_shape) * param.dtype.itemsize * len(self.slices)

    def place(self, slices: Slices, read_back: ReadBack | None) -> jax.Array:
        """Place the slices on the devices, and wait until they have them."""
        place = None if read_back is None else Place.of(self.path, self._own_shape)
        samples: Slices = {}

        def part(index: tuple[slice, ...] | None) -> Array:
            own = slices[self._read_as[_bounds(index)]]
            laid = own if self._form is None else self._form.laid_on_host(own, self._own_shape)
            if place is not None:
                samples[_bounds(index)] = place.take(laid)
            return laid

        array = jax.make_array_from_callback(self._placed_shape, self._sharding, part)
        array.block_until_ready()
        if read_back is not None and place is not None:
            read_back.note(self.path, place, {device: samples[own] for device, own in self._placed.items()})
        return array


def _bounds(index: tuple[slice, ...] | None) -> Bounds:
    assert index is not None, "every device has a part"
    return tuple((where.start, where.stop) for where in index)
