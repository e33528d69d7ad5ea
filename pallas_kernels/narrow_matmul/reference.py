"""The plain definition: rounded rows, products and sums in float32. The oracle of the others."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.narrow_matmul.config import NarrowProducts
from palladio.pallas_kernels.narrow_matmul.rounding import rounded_rows


def matmul(rows: jax.Array, matrix: jax.Array, products: NarrowProducts) -> jax.Array:
    """Multiply rows f32[T, in], matrix bf16[out…, in] → f32[T, out…]."""
    del products
    rounded = rows.astype(jnp.bfloat16).astype(jnp.float32)
    dimensions = (((1,), (matrix.ndim - 1,)), ((), ()))
    return lax.dot_general(rounded, matrix.astype(jnp.float32), dimensions, precision=lax.Precision.HIGHEST)


def grouped_matmul(rows: jax.Array, bits: jax.Array, group_sizes: jax.Array, products: NarrowProducts) -> jax.Array:
    """Multiply rows f32[M, in], bits u16[E, out, in], group_sizes i32[E] → f32[M, out]; 0 for rows of no group."""
    matrices = lax.bitcast_convert_type(bits, jnp.bfloat16)
    ends = jnp.cumsum(group_sizes)
    row = jnp.arange(rows.shape[0])[:, None]
    mine = (row >= ends - group_sizes) & (row < ends)  # [M, E]
    return jnp.where(mine[:, :, None], matmul(rows, matrices, products), 0.0).sum(1)


def byte_matmul(
    rows: jax.Array,
    matrix: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    bits: Literal[8, 16],
    products: NarrowProducts,
) -> jax.Array:
    """Multiply rows f32[T, in], matrix int8[out, in], scales f32[out], zeros int8[out] → f32[T, out]."""
    del products
    numbers, factors = rounded_rows(rows, bits)
    wide = matrix.astype(jnp.float32) if zeros is None else matrix.astype(jnp.float32) - zeros[:, None]
    sums = lax.dot_general(numbers, wide, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)
    return sums * factors[:, None] * scales
