"""The public interface of narrow matmul."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.cpu_native.calls import groups_times_bfloat16, rows_times_bfloat16
from palladio.pallas_kernels.narrow_matmul import xla
from palladio.pallas_kernels.narrow_matmul.config import NarrowProducts

_USUAL = NarrowProducts()


def narrow_matmul(rows: jax.Array, matrix: jax.Array, products: NarrowProducts = _USUAL) -> jax.Array:
    """Multiply rows, rounded to bfloat16, with a matrix; sums are in float32.

    Args:
        rows: f32[T, in].
        matrix: bf16[out…, in].
        products: how this kind of CPU multiplies.

    Returns:
        f32[T, out…].

    Raises:
        ValueError: arguments do not fit together.
    """
    if rows.ndim != 2 or rows.shape[1] != matrix.shape[-1] or matrix.dtype != jnp.bfloat16:
        raise ValueError(
            f"rows {rows.shape} and matrix {matrix.dtype}{matrix.shape} do not fit together: they are [T, in] and "
            "bfloat16[out…, in]"
        )
    wide = rows.astype(jnp.float32)
    if rows.shape[0] > products.native_rows:
        return xla.matmul(wide, matrix, products)
    outputs = matrix.shape[:-1]
    return rows_times_bfloat16(wide, matrix.reshape(-1, matrix.shape[-1])).reshape(-1, *outputs)


def narrow_grouped_matmul(
    rows: jax.Array, bits: jax.Array, group_sizes: jax.Array, products: NarrowProducts = _USUAL
) -> jax.Array:
    """Multiply the first group of rows with the first matrix, the next one with the second, and so on.

    Args:
        rows: f32[M, in].
        bits: u16[E, out, in], the bits of bfloat16 matrices.
        group_sizes: i32[E], rows of each group; their sum is at most M.
        products: how this kind of CPU multiplies.

    Returns:
        f32[M, out]; 0 for rows of no group.

    Raises:
        ValueError: arguments do not fit together.
    """
    if rows.ndim != 2 or rows.shape[1] != bits.shape[-1] or bits.dtype != jnp.uint16 or bits.ndim != 3:
        raise ValueError(
            f"rows {rows.shape} and bits {bits.dtype}{bits.shape} do not fit together: they are [M, in] and "
            "uint16[E, out, in]"
        )
    wide = rows.astype(jnp.float32)
    if rows.shape[0] > products.native_rows * bits.shape[0]:
        return xla.grouped_matmul(wide, bits, group_sizes, products)
    return groups_times_bfloat16(wide, bits, group_sizes.astype(jnp.int32))
