"""Products by XLA:CPU's own library, which it uses for bfloat16 times bfloat16 with a result of float32.

XLA first converts whole matrices to float32 for other products, which costs 10 to 50 times the product: one row, a
result of bfloat16, and any slice of a bfloat16 array by a number that only the device knows. With outputs of several
dimensions it transposes the matrix at every call. Hence rows are padded, outputs are one dimension, and matrices of
experts are stored as bits (u16), which are cut first and become bfloat16 afterwards.
`tests/model/weights/test_narrow.py` reads the compiled programs.
"""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.grouped_matmul.blocks import in_blocks
from palladio.pallas_kernels.narrow_matmul.config import NarrowProducts


def matmul(rows: jax.Array, matrix: jax.Array, products: NarrowProducts) -> jax.Array:
    """Multiply rows f32[T, in], matrix bf16[out…, in] → f32[T, out…]."""
    num_rows, outputs = rows.shape[0], matrix.shape[:-1]
    missing = max(0, products.min_rows - num_rows)
    rounded = jnp.pad(rows.astype(jnp.bfloat16), ((0, missing), (0, 0)))
    flat = matrix.reshape(-1, matrix.shape[-1])
    out = lax.dot_general(rounded, flat, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return out[:num_rows].reshape(num_rows, *outputs)


def grouped_matmul(rows: jax.Array, bits: jax.Array, group_sizes: jax.Array, products: NarrowProducts) -> jax.Array:
    """Multiply rows f32[M, in], bits u16[E, out, in], group_sizes i32[E] → f32[M, out]; 0 for rows of no group."""

    def multiply(block: jax.Array, own: jax.Array) -> jax.Array:
        return matmul(block, lax.bitcast_convert_type(own, jnp.bfloat16), products)

    return in_blocks(rows, bits, group_sizes, bits.shape[1], multiply)
