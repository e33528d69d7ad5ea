"""Products of int8 matrices by XLA:CPU, whose fastest product is int8 times int8 with sums of int32.

Its library takes this product from two rows on. For one row, or for a product in another dtype, XLA widens the whole
matrix first, which costs 10 to 50 times the product.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.narrow_matmul.config import NarrowProducts
from palladio.pallas_kernels.narrow_matmul.rounding import rounded_rows

_MIN_ROWS = 2


def byte_matmul(
    rows: jax.Array,
    matrix: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    bits: Literal[8, 16],
    products: NarrowProducts,
) -> jax.Array:
    """Multiply rows f32[T, in], matrix int8[out, in], scales f32[out], zeros int8[out] → f32[T, out]. Rows of 16 bits
    become two of 8, high and low, in one product."""
    del products
    T = rows.shape[0]
    numbers, factors = rounded_rows(rows, bits)
    whole = numbers.astype(jnp.int8) if bits == 8 else _pairs_of_bytes(numbers)
    whole = jnp.pad(whole, ((0, max(0, _MIN_ROWS - whole.shape[0])), (0, 0)))
    sums = lax.dot_general(whole, matrix, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
    if zeros is not None:
        sums -= zeros.astype(jnp.int32) * jnp.sum(whole.astype(jnp.int32), axis=1)[:, None]
    wide = sums.astype(jnp.float32)
    out = wide[:T] if bits == 8 else 256 * wide[:T] + wide[T : 2 * T]
    return out * factors[:, None] * scales


def _pairs_of_bytes(numbers: jax.Array) -> jax.Array:
    """Split numbers f32[T, in] = 256 · high + low → int8[2 · T, in], the high ones first."""
    high = jnp.floor((numbers + 128) / 256)
    return jnp.concatenate([high, numbers - 256 * high]).astype(jnp.int8)
