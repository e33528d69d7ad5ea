"""A parameter as the checkpoint has it, laid out over several devices: what TensorLayout says, on the device."""

import jax
import jax.numpy as jnp

from palladio.model.loading.tensor_layout import TensorLayout
from palladio.model.weights.scaled import ScaleForm

LogicalAxes = tuple[str | None, ...]


def stored_shape(
    shape: tuple[int, ...], axes: LogicalAxes, layout: TensorLayout, form: ScaleForm | None = None
) -> tuple[int, ...]:
    """The shape that a parameter has before `relayout`.

    Args:
        form: of a weight's scales; None: it has none.
    """
    stored, sizes = layout.stored, list(shape)
    for dimension, axis in enumerate(axes):
        group = 1 if form is None or dimension != form.inputs else form.stored_group or 1
        match axis:
            case None:
                pass
            case "heads":
                sizes[dimension] = stored.num_heads * stored.head_size // group
            case "query_heads":
                sizes[dimension] = stored.num_heads
            case "keys":
                sizes[dimension] = stored.num_kv_heads * stored.head_size
            case "kv_heads":
                sizes[dimension : dimension + 2] = stored.num_kv_heads, stored.num_heads // stored.num_kv_heads + 2
            case _:
                sizes[dimension] = -(-layout.sizes(axis)[0] // group)
    return tuple(sizes)


def relayout(values: jax.Array, axes: LogicalAxes, layout: TensorLayout, form: ScaleForm | None = None) -> jax.Array:
    """Pads and copies, to be compiled with the sharding that the result is to have.

    Args:
        values: of `stored_shape`.
        form: as there.
    """
    if form is not None and form.group is not None:
        values = _regrouped(values, axes[form.inputs], layout, form)
    if layout.is_plain:
        return values
    for dimension, axis in enumerate(axes):
        group = 1 if form is None or dimension != form.inputs else form.group or 1
        match axis:
            case None:
                pass
            case "heads":
                values = _place_heads(values, dimension, layout, layout.stored.head_size // group)
            case "query_heads":
                values = _place_heads(values, dimension, layout, 1)
            case "keys":
                values = _place_keys(values, dimension, layout)
            case "kv_heads":
                values = _place_fused_heads(values, dimension, layout)
            case _:
                values = _padded(values, dimension, -(-layout.sizes(axis)[1] // group))
    return values


def _regrouped(values: jax.Array, axis: str | None, layout: TensorLayout, form: ScaleForm) -> jax.Array:
    """Scales of groups that devices have cut: of each, as many as it has parts."""
    assert form.group is not None
    assert form.stored_group is not None
    if form.group == form.stored_group or axis is None:
        return values
    values = jnp.repeat(values, form.stored_group // form.group, axis=form.inputs)
    return jax.lax.slice_in_dim(values, 0, -(-layout.sizes(axis)[0] // form.group), axis=form.inputs)


def _place_fused_heads(values: jax.Array, dimension: int, layout: TensorLayout) -> jax.Array:
    """[…, K, G+2, H], kv heads along `dimension`, as the layout places them."""
    slots = dimension + 1
    stored_group, parts = values.shape[slots] - 2, []
    for place in layout.places:
        number = place.kv_head if place is not None else 0
        head = jax.lax.slice_in_dim(values, number, number + 1, axis=dimension)
        first, count = (place.first_query, place.num_queries) if place is not None else (0, 0)
        first -= number * stored_group
        queries = jax.lax.slice_in_dim(head, first, first + count, axis=slots)
        key_and_value = jax.lax.slice_in_dim(head, stored_group, stored_group + 2, axis=slots)
        if place is None:
            key_and_value = jnp.zeros_like(key_and_value)
        parts.append(jnp.concatenate([_padded(queries, slots, layout.group), key_and_value], axis=slots))
    return jnp.concatenate(parts, axis=dimension)


def _place_heads(values: jax.Array, dimension: int, layout: TensorLayout, H: int) -> jax.Array:
    """[…, N·H, …], query heads along `dimension`, as the layout places them."""
    parts = []
    for place in layout.places:
        first, count = (place.first_query, place.num_queries) if place is not None else (0, 0)
        heads = jax.lax.slice_in_dim(values, first * H, (first + count) * H, axis=dimension)
        parts.append(_padded(heads, dimension, layout.group * H))
    return jnp.concatenate(parts, axis=dimension)


def _place_keys(values: jax.Array, dimension: int, layout: TensorLayout) -> jax.Array:
    """[…, K·H, …], kv heads along `dimension`, as the layout places them."""
    H, parts = layout.stored.head_size, []
    for place in layout.places:
        number = place.kv_head if place is not None else 0
        head = jax.lax.slice_in_dim(values, number * H, (number + 1) * H, axis=dimension)
        parts.append(jnp.zeros_like(head) if place is None else head)
    return jnp.concatenate(parts, axis=dimension)


def _padded(values: jax.Array, dimension: int, size: int) -> jax.Array:
    widths = [(0, 0)] * values.ndim
    widths[dimension] = (0, size - values.shape[dimension])
    return jnp.pad(values, widths)
