"""Random weights, made on the devices: the same model however it is laid out over them."""

from collections.abc import Callable, Iterator

import jax
from jax.sharding import Mesh

from palladio.model.loading.parameters import Params
from palladio.model.loading.relayout import LogicalAxes, relayout, stored_shape
from palladio.model.loading.tensor_layout import TensorLayout
from palladio.model.module import Initializer
from palladio.model.sharding import ShardingRules


def random_arrays(params: Params, layout: TensorLayout, mesh: Mesh, seed: int) -> Iterator[tuple[str, jax.Array]]:
    """Name and values of each parameter.

    Args:
        params: as they are laid out.
        seed: the same seed gives the same model over any number of devices.
    """
    rules, root = ShardingRules(), jax.random.key(seed)
    programs: dict[tuple[object, ...], Callable[[jax.Array], jax.Array]] = {}  # one compile per shape, not per layer
    for number, (name, (_, param)) in enumerate(params.items()):
        metadata = param.get_metadata()
        axes: LogicalAxes = metadata["logical_axes"]
        initializer: Initializer = metadata["initializer"]
        kind = (initializer, param.shape, param.dtype, axes)
        if kind not in programs:
            shape, dtype = stored_shape(param.shape, axes, layout), param.dtype

            def make(
                key: jax.Array,
                initializer: Initializer = initializer,
                shape: tuple[int, ...] = shape,
                axes: LogicalAxes = axes,
                dtype: jax.typing.DTypeLike = dtype,
            ) -> jax.Array:
                return relayout(initializer(key, shape, dtype), axes, layout)

            programs[kind] = jax.jit(make, out_shardings=rules.sharding(mesh, axes))
        yield name, programs[kind](jax.random.fold_in(root, number))
