"""Scales: factors of matrices of 8-bit and 4-bit numbers, and the meaning of these bits."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


@dataclasses.dataclass(frozen=True, slots=True)
class Scales:
    """Factors on the numbers of matrices [E, D, F].

    Attributes:
        values: f32[E, ceil(D / group), F].
        group: rows of D that share a factor in each column; D: one factor a column.
        zeros: f32 of the same shape, whole numbers that are subtracted before; None: all are 0.
        is_float4: the matrices' 4 bits are floats (E2M1, as in MXFP4), stored as steps from zero, -7 to 7. All factors
            are powers of two.
    """

    values: jax.Array
    group: int
    zeros: jax.Array | None = None
    is_float4: bool = False

    def is_of(self, matrices: jax.Array) -> bool:
        """Return whether the shapes fit together."""
        E, D, F = matrices.shape
        fits = self.values.shape == (E, -(-D // self.group), F)
        return fits and (self.zeros is None or self.zeros.shape == self.values.shape)

    @property
    def arrays(self) -> tuple[jax.Array, ...]:
        """The arrays that kernels read besides the matrices: factors, and zeros if there are any."""
        return (self.values,) if self.zeros is None else (self.values, self.zeros)

    def widened(self, matrices: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """Return the numbers times their factors, [E, D, F]: products in float32, then rounded."""
        D = matrices.shape[1]
        wide = unpacked(matrices, is_float4=self.is_float4)
        if self.zeros is not None:
            wide -= jnp.repeat(self.zeros, self.group, axis=1)[:, :D]
        factors = jnp.repeat(self.values, self.group, axis=1)[:, :D]
        return (wide * factors).astype(dtype)


def unpacked(stored: jax.Array, *, is_float4: bool, dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Return the numbers that 4 or 8 bits stand for.

    Args:
        dtype: dtype of the result; bfloat16 holds all numbers of 4 and 8 bits exactly.
    """
    if not is_float4:
        return stored.astype(dtype)
    step = stored.astype(dtype)  # of ±(0, ½, 1, 1½, 2, 3, 4, 6): they are ½ apart up to 2, 1 up to 4, and then 2
    return (2 * step - 0.5 * jnp.clip(step, -4, 4) - jnp.clip(step, -6, 6)).astype(dtype)
