"""Activations in float8, with a factor for each group of a row's numbers."""

import jax
import jax.numpy as jnp
import numpy as np

LARGEST = 448.0  # of float8 e4m3


def rounded_groups(x: jax.Array, group: int) -> tuple[jax.Array, jax.Array]:
    """Round x [M, D] to numbers f8[M, D] with factors f32[ceil(D / group), M]: each group's largest absolute value
    becomes the largest of float8. The factors of one group are contiguous, as kernels read them."""
    M, D = x.shape
    groups = jnp.pad(x.astype(jnp.float32), ((0, 0), (0, -D % group))).reshape(M, -1, group)
    factors = jnp.max(jnp.abs(groups), axis=2) * np.float32(1 / LARGEST)  # what XLA makes of a division by it
    numbers = groups / jnp.where(factors == 0, 1.0, factors)[:, :, None]
    numbers = jnp.clip(numbers, -LARGEST, LARGEST).reshape(M, -1)[:, :D]
    return numbers.astype(jnp.float8_e4m3fn), factors.T
