"""The plain definition, in float32: both sides are widened. The oracle of the kernels, and the backend of CPUs."""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.target import Target


def matmul(
    rows: jax.Array,
    row_scales: jax.Array,
    matrix: jax.Array,
    scales: jax.Array,
    group: int,
    out_dtype: jnp.dtype,
    target: Target,
) -> jax.Array:
    """Multiply as block_matmul; rows f8[M, D], row_scales f32[groups, M]."""
    del target
    sides = (_widened(rows, row_scales, group), _widened(matrix, scales, group))
    out = lax.dot_general(*sides, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
    return out.astype(out_dtype)


def _widened(numbers: jax.Array, scales: jax.Array, group: int) -> jax.Array:
    """Widen numbers f8[N, D] with scales f32[groups, N] → f32[N, D]."""
    factors = jnp.repeat(scales.T, group, axis=1)[:, : numbers.shape[1]]
    return numbers.astype(jnp.float32) * factors
