"""The public interface of narrow matmul; picks a backend."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.dispatch import dispatch
from palladio.pallas_kernels.narrow_matmul import cpu_native, reference, xla, xla_bytes
from palladio.pallas_kernels.narrow_matmul.config import NarrowProducts
from palladio.pallas_kernels.target import Target

BACKENDS = {"cpu_native": cpu_native.matmul, "xla": xla.matmul, "reference": reference.matmul}
OF_GROUPS = {"cpu_native": cpu_native.grouped_matmul, "xla": xla.grouped_matmul, "reference": reference.grouped_matmul}
OF_BYTES = {"cpu_native": cpu_native.byte_matmul, "xla": xla_bytes.byte_matmul, "reference": reference.byte_matmul}
AUTO_ORDER = ("cpu_native", "xla", "reference")
_USUAL = NarrowProducts()


def has_byte_products(target: Target) -> bool:
    """Return whether `byte_matmul` is known to be fast; it was not measured on CPUs without known features."""
    return target.platform == "cpu" and bool(target.kind)


def narrow_matmul(
    rows: jax.Array, matrix: jax.Array, products: NarrowProducts = _USUAL, *, backend: str = "auto"
) -> jax.Array:
    """Multiply rows, rounded to bfloat16, with a matrix; sums are in float32.

    Args:
        rows: f32[T, in].
        matrix: bf16[out…, in].
        products: how this kind of CPU multiplies.
        backend: "auto", or the name of one.

    Returns:
        f32[T, out…].

    Raises:
        ValueError: unknown backend, or arguments that do not fit together.
        NotImplementedError: the named backend does not accept the call.
    """
    if rows.ndim != 2 or rows.shape[1] != matrix.shape[-1] or matrix.dtype != jnp.bfloat16:
        raise ValueError(
            f"rows {rows.shape} and matrix {matrix.dtype}{matrix.shape} do not fit together: they are [T, in] and "
            "bfloat16[out…, in]"
        )
    args = rows.astype(jnp.float32), matrix, products
    calls = {name: functools.partial(call, *args) for name, call in BACKENDS.items()}
    return dispatch("narrow_matmul", calls, AUTO_ORDER, backend)


def narrow_grouped_matmul(
    rows: jax.Array,
    bits: jax.Array,
    group_sizes: jax.Array,
    products: NarrowProducts = _USUAL,
    *,
    backend: str = "auto",
) -> jax.Array:
    """Multiply the first group of rows with the first matrix, the next one with the second, and so on.

    Args:
        rows: f32[M, in].
        bits: u16[E, out, in], the bits of bfloat16 matrices.
        group_sizes: i32[E], rows of each group; their sum is at most M.
        products: how this kind of CPU multiplies.
        backend: "auto", or the name of one.

    Returns:
        f32[M, out]; 0 for rows of no group.

    Raises:
        ValueError: unknown backend, or arguments that do not fit together.
        NotImplementedError: the named backend does not accept the call.
    """
    if rows.ndim != 2 or rows.shape[1] != bits.shape[-1] or bits.dtype != jnp.uint16 or bits.ndim != 3:
        raise ValueError(
            f"rows {rows.shape} and bits {bits.dtype}{bits.shape} do not fit together: they are [M, in] and "
            "uint16[E, out, in]"
        )
    args = rows.astype(jnp.float32), bits, group_sizes, products
    calls = {name: functools.partial(call, *args) for name, call in OF_GROUPS.items()}
    return dispatch("narrow_grouped_matmul", calls, AUTO_ORDER, backend)


def byte_matmul(
    rows: jax.Array,
    matrix: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None = None,
    products: NarrowProducts = _USUAL,
    *,
    bits: Literal[8, 16] = 16,
    backend: str = "auto",
) -> jax.Array:
    """Multiply rows, each rounded to whole numbers by its largest one, with a matrix of whole numbers.

    Args:
        rows: [T, in].
        matrix: int8[out…, in].
        scales: f32[out…]; outputs are multiplied by them.
        zeros: int8[out…], subtracted from the matrix; None: all are 0.
        products: how this kind of CPU multiplies.
        bits: bits of the rows' whole numbers.
        backend: "auto", or the name of one.

    Returns:
        f32[T, out…].

    Raises:
        ValueError: unknown backend, or arguments that do not fit together.
        NotImplementedError: the named backend does not accept the call.
    """
    outputs = matrix.shape[:-1]
    fits = rows.ndim == 2 and rows.shape[1] == matrix.shape[-1] and matrix.dtype == jnp.int8
    if not fits or scales.shape != outputs or (zeros is not None and zeros.shape != outputs):
        raise ValueError(
            f"rows {rows.shape}, matrix {matrix.dtype}{matrix.shape}, scales {scales.shape} and zeros "
            f"{None if zeros is None else zeros.shape} do not fit together: they are [T, in], int8[out…, in], [out…] "
            "and [out…]"
        )
    of_zeros = None if zeros is None else zeros.reshape(-1)
    flat = rows.astype(jnp.float32), matrix.reshape(-1, matrix.shape[-1]), scales.reshape(-1), of_zeros
    calls = {name: functools.partial(call, *flat, bits, products) for name, call in OF_BYTES.items()}
    return dispatch("byte_matmul", calls, AUTO_ORDER, backend).reshape(-1, *outputs)
