"""Rows as whole numbers, for products with matrices of int8."""

from typing import Literal

import jax
import jax.numpy as jnp

LARGEST = {8: 127, 16: 127 * 256}  # by the bits of rows


def rounded_rows(rows: jax.Array, bits: Literal[8, 16]) -> tuple[jax.Array, jax.Array]:
    """Round each row by its largest number.

    Args:
        rows: f32[T, in].
        bits: bits of the whole numbers.

    Returns:
        Whole numbers f32[T, in], and their factors f32[T].
    """
    largest = LARGEST[bits]
    factors = jnp.max(jnp.abs(rows), axis=1) / largest
    numbers = jnp.round(rows / jnp.where(factors == 0, 1.0, factors)[:, None])
    return jnp.clip(numbers, -largest, largest), factors
