"""The plain definition: the oracle of the others."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.target import Target


def row_argmax(values: jax.Array, target: Target, *, is_computed: bool = False) -> tuple[jax.Array, jax.Array]:
    """Find the largest values as api.row_argmax: [B, V] → i32[B], bool[B]."""
    del target, is_computed
    token_ids = jnp.argmax(values, axis=-1)
    largest = jnp.take_along_axis(values, token_ids[:, None], axis=-1)[:, 0]
    return token_ids.astype(jnp.int32), jnp.isfinite(largest)
