"""The layout of keys and values in the paged cache, and their storage types. No other file depends on it.

A layer's cache is one array [P, K, S, 2·Hp]: page, kv head, row in the page, then the key in lanes 0:H and the value in
lanes Hp:Hp+H. Hp is the head size rounded up to a whole TPU row of 128 lanes, except that heads of up to 64 share one
row (Hp = 64), so neither wastes memory on the most common sizes and no strided load is needed to read K or V. Lanes
beyond H are 0 in every row that was written.

A cache of float8 holds k / k_scale and v / v_scale, rounded and clipped to the type's range. One of int8 holds whole
numbers up to 127, and for each page a scale for each of its rows: one for the key of a token and a kv head, and one for
the value. See ScaledPages.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

LANES = 128
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
QUANTIZED = (*FLOAT8, "int8")
LARGEST_INT8 = 127


class ScaledPages(NamedTuple):
    """One layer's cache of int8.

    The 2·K scales of a token are numbered: those of the keys of heads 0 … K-1, then those of the values. A page has S
    of each number, contiguous in S lanes of a row. A row of 128 lanes holds as many of these runs as it can (C), since
    a TPU pads shorter rows: run i is in row i mod R, and there the (i // R)-th.

    Attributes:
        rows: int8[P, K, S, 2·Hp].
        scales: f32[P, R, C·S], factors on stored keys and values.
    """

    rows: jax.Array
    scales: jax.Array

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of keys and values."""
        return jnp.dtype(self.rows.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of keys and values."""
        return self.rows.shape


KVPages = jax.Array | ScaledPages
"""One layer's cache."""


def padded_head_size(head_size: int) -> int:
    """Return the lanes of one key or one value (Hp)."""
    if head_size <= LANES // 2:
        return LANES // 2
    return -(-head_size // LANES) * LANES


def kv_page_shape(num_pages: int, num_kv_heads: int, page_size: int, head_size: int) -> tuple[int, int, int, int]:
    """Return the shape of one layer's cache: [P, K, S, 2·Hp]."""
    return (num_pages, num_kv_heads, page_size, 2 * padded_head_size(head_size))


def scale_page_shape(num_pages: int, num_kv_heads: int, page_size: int) -> tuple[int, int, int]:
    """Return the shape of the scales of one layer's cache of int8: [P, R, C·S]."""
    runs = max(1, LANES // page_size)
    return num_pages, -(-2 * num_kv_heads // runs), runs * page_size


def unpack_scales(scales: jax.Array, num_kv_heads: int, page_size: int) -> jax.Array:
    """Unpack scales: f32[P, R, C·S] → f32[P, 2, K, S]."""
    P, R, L = scales.shape
    runs = scales.reshape(P, R, L // page_size, page_size).swapaxes(1, 2).reshape(P, -1, page_size)
    return runs[:, : 2 * num_kv_heads].reshape(P, 2, num_kv_heads, page_size)


def scale_cells(num_kv_heads: int, num_rows: int, page_size: int) -> tuple[jax.Array, jax.Array]:
    """Return for each of a token's 2·K scales its row in a page's R = num_rows, and the lane of the page's first
    token."""
    number = jnp.arange(2 * num_kv_heads)
    return number % num_rows, number // num_rows * page_size


def quantize_rows(k: jax.Array, v: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """Quantize k and v [T, K, H] → rows of a cache int8[T, K, width], and their scales f32[T, 2·K]."""
    T, K, H = k.shape
    both = jnp.stack([k, v], axis=1).astype(jnp.float32)  # [T, 2, K, H]
    largest = jnp.abs(both).max(axis=-1, keepdims=True) / LARGEST_INT8
    scales = jnp.where(largest < jnp.finfo(jnp.float32).tiny, 1.0, largest)
    whole = jnp.clip(jnp.round(both / scales), -LARGEST_INT8, LARGEST_INT8).astype(jnp.int8)
    padded = jnp.pad(whole, ((0, 0), (0, 0), (0, 0), (0, width // 2 - H)))
    return jnp.concatenate([padded[:, 0], padded[:, 1]], axis=-1), scales.reshape(T, 2 * K)


def pack_rows(
    k: jax.Array,
    v: jax.Array,
    width: int,
    dtype: DTypeLike,
    k_scale: jax.Array | float = 1.0,
    v_scale: jax.Array | float = 1.0,
) -> jax.Array:
    """Pack k and v [T, K, H] → rows of a cache [T, K, width] of that dtype; for int8 see quantize_rows."""
    padding = ((0, 0), (0, 0), (0, width // 2 - k.shape[-1]))
    stored = [jnp.pad(_store(x, scale, dtype), padding) for x, scale in ((k, k_scale), (v, v_scale))]
    return jnp.concatenate(stored, axis=-1)


def _store(x: jax.Array, scale: jax.Array | float, dtype: DTypeLike) -> jax.Array:
    dtype = jnp.dtype(dtype)
    if dtype.name not in FLOAT8:
        return x.astype(dtype)
    largest = float(jnp.finfo(dtype).max)
    return jnp.clip(x.astype(jnp.float32) / scale, -largest, largest).astype(
        dtype
    )  # beyond it, a cast gives NaN or infinity
