"""Layout over several devices, computed on the device from a checkpoint's parameter as TensorLayout says."""

import jax
import jax.numpy as jnp

from palladio.model.config.config import ModelConfig
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.spec.delta_config import DeltaConfig
from palladio.model.weights.scaled import ScaleForm

LogicalAxes = tuple[str | None, ...]


def stored_shape(
    shape: tuple[int, ...], axes: LogicalAxes, layout: TensorLayout, form: ScaleForm | None = None
) -> tuple[int, ...]:
    """Return the shape of a parameter before `relayout`.

    Args:
        form: form of a weight's scales; None: the parameter holds no scales.
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
                heads, has_gates = stored.num_heads // stored.num_kv_heads, sizes[dimension + 1] > layout.group + 2
                sizes[dimension : dimension + 2] = stored.num_kv_heads, heads * (1 + has_gates) + 2
            case "state_heads":
                sizes[dimension] = _states(stored).num_key_heads
            case "state_group":
                sizes[dimension] = _states(stored).group
            case "state_values":
                sizes[dimension] = _states(stored).num_value_heads * _states(stored).value_size // group
            case _:
                sizes[dimension] = -(-layout.sizes(axis)[0] // group)
    return tuple(sizes)


def relayout(values: jax.Array, axes: LogicalAxes, layout: TensorLayout, form: ScaleForm | None = None) -> jax.Array:
    """Pad and copy. Compile it with the sharding that the result needs.

    Args:
        values: an array of `stored_shape`.
        form: as in `stored_shape`.
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
            case "state_heads":
                has_group = axes[dimension + 1 : dimension + 2] == ("state_group",)
                values = _place_states(values, dimension, layout, has_group=has_group)
            case "state_group":
                pass  # with the heads
            case "state_values":
                stored = _states(layout.stored)
                values = values.reshape(
                    *values.shape[:dimension], stored.num_key_heads, stored.group, -1, *values.shape[dimension + 1 :]
                )
                values = _place_states(values, dimension, layout, has_group=True)
                values = values.reshape(*values.shape[:dimension], -1, *values.shape[dimension + 3 :])
            case _:
                values = _padded(values, dimension, -(-layout.sizes(axis)[1] // group))
    return values


def _regrouped(values: jax.Array, axis: str | None, layout: TensorLayout, form: ScaleForm) -> jax.Array:
    """Repeat the scales of groups that devices have cut: one copy for each part of a group."""
    assert form.group is not None
    assert form.stored_group is not None
    if form.group == form.stored_group or axis is None:
        return values
    values = jnp.repeat(values, form.stored_group // form.group, axis=form.inputs)
    return jax.lax.slice_in_dim(values, 0, -(-layout.sizes(axis)[0] // form.group), axis=form.inputs)


def _place_fused_heads(values: jax.Array, dimension: int, layout: TensorLayout) -> jax.Array:
    """Place kv heads, along `dimension` of […, K, G+2, H] or […, K, 2·G+2, H], as the layout says."""
    slots, stored = dimension + 1, layout.stored
    stored_group, parts = stored.num_heads // stored.num_kv_heads, []
    has_gates = values.shape[slots] > stored_group + 2
    for place in layout.places:
        number = place.kv_head if place is not None else 0
        head = jax.lax.slice_in_dim(values, number, number + 1, axis=dimension)
        first, count = (place.first_query, place.num_queries) if place is not None else (0, 0)
        first -= number * stored_group
        queries = jax.lax.slice_in_dim(head, first, first + count, axis=slots)
        key_and_value = jax.lax.slice_in_dim(head, stored_group, stored_group + 2, axis=slots)
        if place is None:
            key_and_value = jnp.zeros_like(key_and_value)
        columns = [_padded(queries, slots, layout.group), key_and_value]
        if has_gates:
            begin = stored_group + 2 + first
            gates = jax.lax.slice_in_dim(head, begin, begin + count, axis=slots)
            columns.append(_padded(gates, slots, layout.group))
        parts.append(jnp.concatenate(columns, axis=slots))
    return jnp.concatenate(parts, axis=dimension)


def _place_heads(values: jax.Array, dimension: int, layout: TensorLayout, H: int) -> jax.Array:
    """Place query heads, along `dimension` of […, N·H, …], as the layout says."""
    parts = []
    for place in layout.places:
        first, count = (place.first_query, place.num_queries) if place is not None else (0, 0)
        heads = jax.lax.slice_in_dim(values, first * H, (first + count) * H, axis=dimension)
        parts.append(_padded(heads, dimension, layout.group * H))
    return jnp.concatenate(parts, axis=dimension)


def _states(model: ModelConfig) -> DeltaConfig:
    assert model.delta is not None
    return model.delta


def _place_states(values: jax.Array, dimension: int, layout: TensorLayout, *, has_group: bool) -> jax.Array:
    """Place key heads, along `dimension` of […, K, …], as the layout says.

    Args:
        has_group: the next dimension counts value heads.
    """
    group, parts = _states(layout.stored).group, []
    for place in layout.state_places:
        number = 0 if place is None else place.kv_head
        head = jax.lax.slice_in_dim(values, number, number + 1, axis=dimension)
        if place is None:
            head = jnp.zeros_like(head)
        if has_group:
            first = 0 if place is None else place.first_query - number * group
            count = 0 if place is None else place.num_queries
            head = jax.lax.slice_in_dim(head, first, first + count, axis=dimension + 1)
            head = _padded(head, dimension + 1, _states(layout.config).group)
        parts.append(head)
    return jnp.concatenate(parts, axis=dimension)


def _place_keys(values: jax.Array, dimension: int, layout: TensorLayout) -> jax.Array:
    """Place kv heads, along `dimension` of […, K·H, …], as the layout says."""
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
