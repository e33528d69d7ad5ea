"""RMSNorm."""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.model.module import Context, Initializer, Module


class RMSNorm(Module):
    """x / rms(x) · scale over the last dimension; the mean of squares in float32."""

    def __init__(self, context: Context, size: int, eps: float, *, axis: str | None) -> None:
        self.scale = context.param((size,), (axis,), Initializer("ones"))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """[…, size] → […, size]"""
        wide = x.astype(jnp.float32)
        wide *= lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        # Rounded before the scale, as the published models were trained.
        out: jax.Array = wide.astype(x.dtype) * self.scale[...]
        return out
