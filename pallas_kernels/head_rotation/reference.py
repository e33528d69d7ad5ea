"""The plain definition of the rotation of heads."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.target import Target


def rotate(projected: jax.Array, cos: jax.Array, sin: jax.Array, target: Target) -> tuple[jax.Array, jax.Array]:
    """Rotate projected [K, G+2, T, H], cos and sin f32[T, H/2] → [K, G, T, H] and [K, T, 2·H], computed in float32."""
    first, second = jnp.split(projected[:, :-1].astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    rotated = rotated.astype(projected.dtype)
    return rotated[:, :-1], jnp.concatenate([rotated[:, -1], projected[:, -1]], axis=-1)
