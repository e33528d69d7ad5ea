"""4-bit numbers, packed two to a byte: libraries that write files store a byte for each."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike


def is_packed(shape: tuple[int, ...], dtype: DTypeLike) -> bool:
    """Return whether an array is written as pairs: 4-bit numbers, an even number of them in a row."""
    return jnp.dtype(dtype) == jnp.int4 and len(shape) > 0 and shape[-1] % 2 == 0


def packed_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the pairs of an array."""
    return (*shape[:-1], shape[-1] // 2)


def pack(array: jax.Array) -> jax.Array:
    """Pack on the host: i4[…, n] → u8[…, n / 2], the first of two in the low bits."""
    bits = np.asarray(array).astype(np.int8).view(np.uint8) & 15
    return jnp.asarray(bits[..., 0::2] | bits[..., 1::2] << 4)


def unpack(pairs: jax.Array) -> jax.Array:
    """Unpack u8[…, n / 2] → i4[…, n]."""
    both = jnp.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], -1).astype(jnp.int8)
    return jnp.where(both > 7, both - 16, both).astype(jnp.int4)
