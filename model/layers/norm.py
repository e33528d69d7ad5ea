"""Norms over the last dimension, and those of queries and keys."""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.model.base.module import Context, Initializer, Module
from palladio.model.config.config import HeadCounts
from palladio.model.spec.layer_spec import QKNormSpec
from palladio.model.spec.norm_spec import NormSpec


class Norm(Module):
    """x / rms(x) · scale over the last dimension, or another norm as the spec says; means are in float32."""

    def __init__(self, context: Context, size: int, spec: NormSpec, *, axis: str | None = None) -> None:
        self.scale = context.param((size,), (axis,), Initializer("zeros" if spec.scaling == "plus_one" else "ones"))
        self.bias = context.param((size,), (axis,), Initializer("zeros")) if spec.bias else None
        self.spec = spec

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalize […, size] → […, size]."""
        wide = self._centered(x)
        wide *= lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.spec.eps)
        return self._scaled(wide, x, self.scale[...])

    def _centered(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        if self.spec.kind == "layer":
            wide -= jnp.mean(wide, axis=-1, keepdims=True)
        return wide

    def _scaled(self, wide: jax.Array, x: jax.Array, scale: jax.Array) -> jax.Array:
        """Multiply by the scale and add the bias.

        Args:
            wide: x, normalized, in float32.
        """
        if self.spec.scaling == "rounded":  # as Llama and its kin were trained
            out: jax.Array = wide.astype(x.dtype) * scale.astype(x.dtype)
            return out if self.bias is None else out + self.bias[...].astype(x.dtype)
        scale = scale.astype(jnp.float32)
        wide *= scale + 1.0 if self.spec.scaling == "plus_one" else scale
        wide = wide if self.bias is None else wide + self.bias[...].astype(jnp.float32)
        return wide.astype(x.dtype)


class HeadNorm(Norm):
    """The norm of queries or of keys, [T, heads, H]; see QKNormSpec for its forms."""

    def __init__(
        self,
        context: Context,
        num_heads: int,
        head_size: int,
        spec: QKNormSpec,
        *,
        axis: str,
        num_counted: int,
        counts: tuple[bool, ...] | None,
    ) -> None:
        """Make the parameters.

        Args:
            num_heads: heads as laid out.
            axis: logical axis of a scale for each head.
            num_counted: heads that a mean over all heads counts.
            counts: for each head as laid out, whether a mean counts it; None: heads that do not count are zeros.
        """
        is_shared = spec.form == "head"
        super().__init__(
            context, head_size if is_shared else num_heads * head_size, spec.norm, axis=None if is_shared else axis
        )
        self.form = spec.form
        self.num_counted = num_counted
        self.counts = counts

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalize [T, heads, H] → [T, heads, H]."""
        if self.form == "head":
            return super().__call__(x)
        wide, scale = self._centered(x), self.scale[...].reshape(x.shape[-2:])
        squares = jnp.square(wide)
        if self.form == "own_scales":
            mean = jnp.mean(squares, axis=-1, keepdims=True)
        else:  # over devices, too, where heads are split over them
            if self.counts is not None:
                squares = jnp.where(jnp.array(self.counts)[:, None], squares, 0.0)
            mean = jnp.sum(squares, axis=(-2, -1), keepdims=True) / (self.num_counted * x.shape[-1])
        return self._scaled(wide * lax.rsqrt(mean + self.spec.eps), x, scale)


def query_norm(
    context: Context, num_heads: int, head_size: int, spec: QKNormSpec, counts: HeadCounts | None
) -> HeadNorm:
    """Make the norm of queries.

    Args:
        num_heads, counts: heads of the layout; its padding makes queries of zeros.
    """
    num_counted = num_heads if counts is None else counts.num_heads
    return HeadNorm(context, num_heads, head_size, spec, axis="heads", num_counted=num_counted, counts=None)


def key_norm(
    context: Context, num_kv_heads: int, head_size: int, spec: QKNormSpec, counts: HeadCounts | None
) -> HeadNorm:
    """Make the norm of keys.

    Args:
        num_kv_heads, counts: heads of the layout, which may have a key more than once.
    """
    return HeadNorm(
        context,
        num_kv_heads,
        head_size,
        spec,
        axis="keys",
        num_counted=num_kv_heads if counts is None else counts.num_kv_heads,
        counts=None if counts is None else counts.counts,
    )
