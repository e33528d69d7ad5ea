"""Scales: what matrices of 8-bit numbers are multiplied with."""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True, slots=True)
class Scales:
    """Factors on the numbers of matrices [E, D, F].

    Attributes:
        values: f32[E, ceil(D / group), F].
        group: rows of D that share a factor in each column; D: one factor a column.
    """

    values: jax.Array
    group: int

    def is_of(self, matrices: jax.Array) -> bool:
        """Whether the shapes fit together."""
        E, D, F = matrices.shape
        return self.values.shape == (E, -(-D // self.group), F)

    def widened(self, matrices: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """The numbers times their factors, [E, D, F]: products in float32, then rounded."""
        D = matrices.shape[1]
        factors = jnp.repeat(self.values, self.group, axis=1)[:, :D]
        return (matrices.astype(jnp.float32) * factors).astype(dtype)
