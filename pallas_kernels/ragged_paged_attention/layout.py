"""Where keys and values lie in the paged cache, and how they are stored there. This file is the only one that knows.

A layer's cache is one array [P, K, S, 2·Hp]: page, kv head, row in the page, then the key in lanes 0:H and the value in
lanes Hp:Hp+H. Hp is the head size rounded up to a whole TPU row of 128 lanes, except that heads of up to 64 share one
row (Hp = 64), so neither wastes memory on the most common sizes and no strided load is needed to read K or V. Lanes
beyond H are 0 in every row that was written.

A cache of 8 bits holds k / k_scale and v / v_scale, rounded and held within the type's range.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

LANES = 128
QUANTIZED = ("float8_e4m3fn", "float8_e5m2", "int8")


def padded_head_size(head_size: int) -> int:
    """Lanes that one key or one value takes (Hp)."""
    if head_size <= LANES // 2:
        return LANES // 2
    return -(-head_size // LANES) * LANES


def kv_page_shape(num_pages: int, num_kv_heads: int, page_size: int, head_size: int) -> tuple[int, int, int, int]:
    """Shape of one layer's cache: [P, K, S, 2·Hp]."""
    return (num_pages, num_kv_heads, page_size, 2 * padded_head_size(head_size))


def pack_rows(
    k: jax.Array,
    v: jax.Array,
    width: int,
    dtype: DTypeLike,
    k_scale: jax.Array | float = 1.0,
    v_scale: jax.Array | float = 1.0,
) -> jax.Array:
    """k and v [T, K, H] → rows of a cache [T, K, width] of that dtype."""
    padding = ((0, 0), (0, 0), (0, width // 2 - k.shape[-1]))
    stored = [jnp.pad(_store(x, scale, dtype), padding) for x, scale in ((k, k_scale), (v, v_scale))]
    return jnp.concatenate(stored, axis=-1)


def _store(x: jax.Array, scale: jax.Array | float, dtype: DTypeLike) -> jax.Array:
    dtype = jnp.dtype(dtype)
    if dtype.name not in QUANTIZED:
        return x.astype(dtype)
    scaled = x.astype(jnp.float32) / scale
    if dtype == jnp.int8:
        return jnp.clip(jnp.round(scaled), -127, 127).astype(dtype)
    largest = float(jnp.finfo(dtype).max)
    return jnp.clip(scaled, -largest, largest).astype(dtype)  # beyond it, a cast gives NaN or infinity
