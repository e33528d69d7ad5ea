"""Random weights, made on the devices. Their values do not depend on the layout over devices."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from palladio.model.base.module import Initializer
from palladio.model.base.sharding import ShardingRules
from palladio.model.loading.layout.parameters import Parameters, Slot, at_rest, known_form, scale_form
from palladio.model.loading.layout.relayout import relayout, stored_shape
from palladio.model.loading.layout.tensor_layout import TensorLayout

_Make = Callable[[jax.Array], tuple[jax.Array, ...]]


def random_arrays(
    parameters: Parameters, layout: TensorLayout, mesh: Mesh, seed: int
) -> Iterator[tuple[str, jax.Array]]:
    """Make the values of each parameter, and yield its path and values. A quantized weight is made of random numbers
    like any other.

    Args:
        parameters: the parameters as laid out.
        seed: the same seed gives the same model over any number of devices.
    """
    root = jax.random.key(seed)
    programs: dict[tuple[object, ...], _Make] = {}  # one compile per shape, not per layer
    for number, slot in enumerate(parameters.slots.values()):
        metadata = slot.values.get_metadata()
        kind = (
            type(slot.weight),
            metadata["initializer"],
            *(
                (param.shape, param.dtype, param.get_metadata()["logical_axes"], scale_form(param))
                for param in slot.params.values()
            ),
        )
        if kind not in programs:
            programs[kind] = _program(slot, layout, mesh)
        yield from zip(slot.params, programs[kind](jax.random.fold_in(root, number)), strict=True)


def _program(slot: Slot, layout: TensorLayout, mesh: Mesh) -> _Make:
    rules, params = ShardingRules(), list(slot.params.values())
    known = [known_form(param) for param in params]
    initializer: Initializer = slot.values.get_metadata()["initializer"]
    shape = stored_shape(*known[0], layout)

    def make(key: jax.Array) -> tuple[jax.Array, ...]:
        if slot.weight is None:
            made: tuple[jax.Array, ...] = (initializer(key, shape, slot.values.dtype),)
        else:
            made = slot.weight.made_of(initializer(key, shape, jnp.float32))
        return tuple(
            at_rest(relayout(array, axes, layout, scale_form(param)), param)
            for array, (_, axes), param in zip(made, known, params, strict=True)
        )

    shardings = tuple(rules.sharding(mesh, param.get_metadata()["logical_axes"]) for param in params)
    return jax.jit(make, out_shardings=shardings)
