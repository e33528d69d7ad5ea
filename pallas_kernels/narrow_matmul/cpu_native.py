"""The backend of our own C++, for as many rows as it multiplies faster than XLA:CPU; see NarrowProducts."""

from typing import Literal

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.cpu_native.calls import groups_times_bfloat16, rows_times_bfloat16, rows_times_int8
from palladio.pallas_kernels.narrow_matmul.config import NarrowProducts


def matmul(rows: jax.Array, matrix: jax.Array, products: NarrowProducts) -> jax.Array:
    """Multiply rows f32[T, in], matrix bf16[out…, in] → f32[T, out…].

    Raises:
        NotImplementedError: there are more rows than it multiplies.
    """
    _require(rows.shape[0], products.native_rows)
    outputs = matrix.shape[:-1]
    return rows_times_bfloat16(rows, matrix.reshape(-1, matrix.shape[-1])).reshape(-1, *outputs)


def grouped_matmul(rows: jax.Array, bits: jax.Array, group_sizes: jax.Array, products: NarrowProducts) -> jax.Array:
    """Multiply rows f32[M, in], bits u16[E, out, in], group_sizes i32[E] → f32[M, out]; 0 for rows of no group.

    Raises:
        NotImplementedError: groups have more rows on average than it multiplies.
    """
    _require(rows.shape[0], products.native_rows * bits.shape[0])
    return groups_times_bfloat16(rows, bits, group_sizes.astype(jnp.int32))


def byte_matmul(
    rows: jax.Array,
    matrix: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    bits: Literal[8, 16],
    products: NarrowProducts,
) -> jax.Array:
    """Multiply rows f32[T, in], matrix int8[out, in], scales f32[out], zeros int8[out] → f32[T, out].

    Raises:
        NotImplementedError: there are more rows than it multiplies.
    """
    _require(rows.shape[0], products.native_int8_rows)
    of_zeros = None if zeros is None else zeros.astype(jnp.float32)
    return rows_times_int8(rows, matrix, scales, of_zeros, bits=bits)


def _require(num_rows: int, most: int) -> None:
    if num_rows > most:
        raise NotImplementedError(f"it multiplies up to {most} rows here, not {num_rows}")
