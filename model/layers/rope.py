"""Rotary position embedding: frequencies from the config (on the host, once), angles per step, rotation per layer."""

import dataclasses
import math
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from palladio.model.spec.rope_config import RopeConfig, yarn_mscale

Rotation = tuple[jax.Array, jax.Array]
"""cos and sin, f32[T, R/2] each; R dimensions of a head are rotated."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rotations:
    """The rotations of a step, one for each rotary embedding of the model, shared by all layers.

    Attributes:
        ropes: static; the rotary embeddings.
        values: their rotations, in the same order.
    """

    ropes: tuple[RopeConfig, ...] = dataclasses.field(metadata={"static": True})
    values: tuple[Rotation, ...]

    @classmethod
    def of(cls, ropes: tuple[RopeConfig, ...], head_size: int, positions: jax.Array) -> Self:
        """Compute the rotations of a step.

        Args:
            positions: i32[T], or i32[A, T] if each has several axes.
        """
        return cls(ropes, tuple(rotation(rope, head_size, positions) for rope in ropes))

    def rotate(self, x: jax.Array, rope: RopeConfig | None) -> jax.Array:
        """Rotate x [T, heads, H] by one of them; None: return it as it is."""
        return x if rope is None else rotate(x, self.of_rope(rope), rope)

    def of_rope(self, rope: RopeConfig) -> Rotation:
        """Return the rotation of one rotary embedding."""
        return self.values[self.ropes.index(rope)]


def rotation(rope: RopeConfig, head_size: int, positions: jax.Array) -> Rotation:
    """Compute cos and sin of every token's angles, once a step for all layers; positions as in `Rotations.of`."""
    wide = positions.astype(jnp.float32)
    if positions.ndim == 2 and rope.axes:
        by = wide[np.array(rope.axes)].T
    else:
        by = (wide if positions.ndim == 1 else wide[0])[:, None]
    angles = by * inverse_frequencies(rope, head_size)
    factor = attention_factor(rope)
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def rotate(x: jax.Array, by: Rotation, rope: RopeConfig) -> jax.Array:
    """Rotate the pairs in the first R dimensions of every head: x [T, heads, H] → the same, computed in float32."""
    cos, sin = by[0][:, None], by[1][:, None]  # [T, 1, R/2]
    rotated = 2 * cos.shape[-1]
    if rotated < x.shape[-1]:
        part = rotate(x[..., :rotated], by, rope)
        return jnp.concatenate([part, x[..., rotated:]], axis=-1)
    wide = x.astype(jnp.float32)
    if rope.is_interleaved:
        first, second = wide[..., ::2], wide[..., 1::2]
        pairs = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return pairs.reshape(x.shape).astype(x.dtype)
    first, second = jnp.split(wide, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def inverse_frequencies(rope: RopeConfig, head_size: int) -> NDArray[np.float32]:
    """Return the frequencies f32[R/2], scaled as the config says."""
    rotated = rope.rotated(head_size)
    exponents = np.arange(0, rotated, 2, dtype=np.float32) / np.float32(rotated)
    plain = (1.0 / np.float32(rope.theta) ** exponents).astype(np.float32)
    if rope.kind == "linear":
        return (plain / rope.factor).astype(np.float32)
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain)
    if rope.kind == "longrope":
        divisors = rope.long_divisors if rope.is_long else rope.short_divisors
        return (plain / np.array(divisors, np.float32)).astype(np.float32)
    return plain


def attention_factor(rope: RopeConfig) -> float:
    """Return the factor on cos and sin; other than 1 only for yarn and longrope."""
    if rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.kind == "longrope":
        return 1.0 if rope.factor <= 1 else math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_position))
    if rope.mscale is not None and rope.mscale_all_dim is not None:
        return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim)
    return yarn_mscale(rope.factor, 1.0)


def _llama3(rope: RopeConfig, plain: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale frequencies: stretch long waves by `factor`, keep short ones, blend those between."""
    wavelength = 2 * math.pi / plain
    blend = (rope.original_max_position / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blend = np.clip(blend, 0.0, 1.0)
    return ((1 - blend) * plain / rope.factor + blend * plain).astype(np.float32)


def _yarn(rope: RopeConfig, plain: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale frequencies: stretch by `factor` those with fewer than beta_slow rotations over the original context."""
    rotated = 2 * plain.size

    def dimension(rotations: float) -> float:
        wavelength = rope.original_max_position / (rotations * 2 * math.pi)
        return rotated * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    if low == high:
        high += 0.001  # no division by zero; the ramp becomes a step
    stretched = np.clip((np.arange(plain.size, dtype=np.float32) - low) / (high - low), 0.0, 1.0)
    blended: NDArray[np.float32] = (plain / rope.factor * stretched + plain * (1 - stretched)).astype(np.float32)
    return blended
