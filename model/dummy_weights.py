"""Random weights, made on the devices: the same model however it is laid out over them."""

import functools
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from palladio.model.module import Initializer
from palladio.model.sharding import ShardingRules
from palladio.model.tensor_layout import TensorLayout

Params = Mapping[str, tuple[tuple[str | int, ...], nnx.Param]]
"""By dotted path: the path's keys and the parameter, abstract."""


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
        axes, initializer = metadata["logical_axes"], metadata["initializer"]
        kind = (initializer, param.shape, param.dtype, axes)
        if kind not in programs:
            make = functools.partial(
                _make, initializer=initializer, shape=param.shape, dtype=param.dtype, axes=axes, layout=layout
            )
            programs[kind] = jax.jit(make, out_shardings=rules.sharding(mesh, axes))
        yield name, programs[kind](jax.random.fold_in(root, number))


def _make(
    key: jax.Array,
    *,
    initializer: Initializer,
    shape: tuple[int, ...],
    dtype: jnp.dtype,
    axes: tuple[str | None, ...],
    layout: TensorLayout,
) -> jax.Array:
    stored = list(shape)
    for dimension, axis in enumerate(axes):
        if axis is not None:
            stored[dimension] = _stored_size(axis, layout)
            if axis == "kv_heads":
                stored[dimension + 1] = layout.stored.num_heads // layout.stored.num_kv_heads + 2
    values = initializer(key, tuple(stored), dtype)
    if layout.is_plain:
        return values
    for dimension, axis in enumerate(axes):
        if axis == "kv_heads":
            values = _place_fused_heads(values, dimension, layout)
        elif axis == "heads":
            values = _place_heads(values, dimension, layout)
        elif axis is not None:
            values = _padded(values, dimension, shape[dimension])
    return values


def _stored_size(axis: str, layout: TensorLayout) -> int:
    stored = layout.stored
    sizes = {
        "vocab": stored.vocab_size,
        "ffw": stored.intermediate_size,
        "kv_heads": stored.num_kv_heads,
        "heads": stored.num_heads * stored.head_size,
    }
    return sizes[axis]


def _place_fused_heads(values: jax.Array, dimension: int, layout: TensorLayout) -> jax.Array:
    """[…, K, G+2, H], kv heads along `dimension`, as the layout places them."""
    slots = dimension + 1
    stored_group, group = values.shape[slots] - 2, layout.group
    parts = []
    for place in layout.places:
        if place is None:
            head = jax.lax.slice_in_dim(values, 0, 1, axis=dimension)
            parts.append(jnp.zeros_like(jax.lax.slice_in_dim(head, 0, 1, axis=slots).repeat(group + 2, axis=slots)))
            continue
        head = jax.lax.slice_in_dim(values, place.kv_head, place.kv_head + 1, axis=dimension)
        first = place.first_query - place.kv_head * stored_group
        queries = jax.lax.slice_in_dim(head, first, first + place.num_queries, axis=slots)
        key_and_value = jax.lax.slice_in_dim(head, stored_group, stored_group + 2, axis=slots)
        parts.append(jnp.concatenate([_padded(queries, slots, group), key_and_value], axis=slots))
    return jnp.concatenate(parts, axis=dimension)


def _place_heads(values: jax.Array, dimension: int, layout: TensorLayout) -> jax.Array:
    """[…, N·H, …], query heads along `dimension`, as the layout places them."""
    H, parts = layout.stored.head_size, []
    for place in layout.places:
        start, count = (place.first_query, place.num_queries) if place is not None else (0, 0)
        heads = jax.lax.slice_in_dim(values, start * H, (start + count) * H, axis=dimension)
        parts.append(_padded(heads, dimension, layout.group * H))
    return jnp.concatenate(parts, axis=dimension)


def _padded(values: jax.Array, dimension: int, size: int) -> jax.Array:
    widths = [(0, 0)] * values.ndim
    widths[dimension] = (0, size - values.shape[dimension])
    return jnp.pad(values, widths)
