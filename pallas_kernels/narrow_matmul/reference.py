"""The plain definition: rows rounded to bfloat16, products and sums in float32. The oracle of the other backend."""

import jax
import jax.numpy as jnp
from jax import lax


def matmul(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    """Multiply rows f32[T, in], matrix bf16[out…, in] → f32[T, out…]."""
    rounded = rows.astype(jnp.bfloat16).astype(jnp.float32)
    dimensions = (((1,), (matrix.ndim - 1,)), ((), ()))
    return lax.dot_general(rounded, matrix.astype(jnp.float32), dimensions, precision=lax.Precision.HIGHEST)


def grouped_matmul(rows: jax.Array, bits: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Multiply rows f32[M, in], bits u16[E, out, in], group_sizes i32[E] → f32[M, out]; 0 for rows of no group."""
    matrices = lax.bitcast_convert_type(bits, jnp.bfloat16)
    ends = jnp.cumsum(group_sizes)
    row = jnp.arange(rows.shape[0])[:, None]
    mine = (row >= ends - group_sizes) & (row < ends)  # [M, E]
    return jnp.where(mine[:, :, None], matmul(rows, matrices), 0.0).sum(1)
