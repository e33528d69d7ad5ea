"""Rows of logits on the devices of a group, each of which has a part of every row's vocabulary."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from palladio.model.base.sharding import GROUP_AXES, num_shards, on_each_device

_TILE_ROWS = 8  # of a TPU's 32-bit tile: fewer rows leave it half empty, so they stay in parts


def on_whole_rows(function: Callable[..., jax.Array], mesh: Mesh | None) -> Callable[..., jax.Array]:
    """A function of logits f32[B, V] and columns [B], row by row; each row is one device's work.

    Where the devices of a group have parts of the vocabulary, they exchange them once, so that each gets whole rows: as
    many numbers as it had. What passes over the vocabulary many times waits for no other device then.

    Args:
        function: of f32[P·B, V / P], rows in P parts, the first parts of all rows first, and of columns [B]. Returns
            [B].
    """
    num_devices = 1 if mesh is None else num_shards(mesh)
    if mesh is None or num_devices == 1:
        return function

    def of_one_device(logits: jax.Array, *columns: jax.Array) -> jax.Array:
        """f32[B, V / devices], columns [B] → [B]"""
        num_rows = logits.shape[0] // num_devices
        concat_axis = 0 if num_rows < _TILE_ROWS else 1
        rows = lax.all_to_all(logits, GROUP_AXES, split_axis=0, concat_axis=concat_axis, tiled=True)
        first = lax.axis_index(GROUP_AXES) * num_rows
        own = (lax.dynamic_slice_in_dim(column, first, num_rows) for column in columns)
        found: jax.Array = lax.all_gather(function(rows, *own), GROUP_AXES, tiled=True)
        return found

    def of_all(logits: jax.Array, *columns: jax.Array) -> jax.Array:
        num_rows = logits.shape[0]
        whole = PartitionSpec()
        in_specs = PartitionSpec(None, GROUP_AXES), *[whole] * len(columns)
        of_devices = on_each_device(of_one_device, mesh, in_specs=in_specs, out_specs=whole)
        more = -num_rows % num_devices  # as the last row
        padded = (
            jnp.pad(array, ((0, more), *[(0, 0)] * (array.ndim - 1)), mode="edge") for array in (logits, *columns)
        )
        found: jax.Array = of_devices(*padded)[:num_rows]
        return found

    return of_all
