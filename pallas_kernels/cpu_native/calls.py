"""The calls of the library, which has to be loaded before a program runs that has one."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

BFLOAT16: Final = "palladio_rows_times_bfloat16"
INT8: Final = "palladio_rows_times_int8"
ATTENTION: Final = "palladio_decode_attention"
SYMBOLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        BFLOAT16: "PalladioRowsTimesBfloat16",
        INT8: "PalladioRowsTimesInt8",
        ATTENTION: "PalladioDecodeAttention",
    }
)
"""The function of each call."""


def rows_times_bfloat16(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    """rows f32[T, in], matrix bf16[out, in] → f32[T, out]. Rows are rounded to bfloat16."""
    out = jax.ShapeDtypeStruct((rows.shape[0], matrix.shape[0]), jnp.float32)
    return jax.ffi.ffi_call(BFLOAT16, out)(rows, matrix)


def rows_times_int8(rows: jax.Array, matrix: jax.Array) -> jax.Array:
    """rows f32[T, in], matrix int8[in, out] → f32[T, out]. Nothing is rounded but sums."""
    out = jax.ShapeDtypeStruct((rows.shape[0], matrix.shape[1]), jnp.float32)
    return jax.ffi.ffi_call(INT8, out)(rows, matrix)


def decode_attention(
    q: jax.Array,
    pages: jax.Array,
    query_start: jax.Array,
    kv_len: jax.Array,
    block_table: jax.Array,
    sinks: jax.Array | None,
    *,
    window: int | None,
    soft_cap: float | None,
) -> jax.Array:
    """Attention of one token a request.

    Args:
        q: f32[B, N, H], scaled. pages: f32[P, K, S, 2·Hp], keys and values.
        query_start: i32[B + 1]; kv_len: i32[B]; block_table: i32[B, Pmax], see AttentionMetadata.
        sinks: f32[N]. window: keys that a query sees. soft_cap: of the scores. None: there is none.

    Returns:
        f32[B, N, H]; 0 for rows of padding.
    """
    out = jax.ShapeDtypeStruct(q.shape, jnp.float32)
    of_heads = jnp.zeros(0, jnp.float32) if sinks is None else sinks.astype(jnp.float32)
    call = jax.ffi.ffi_call(ATTENTION, out)
    attributes = {"window": np.int64(window or 0), "soft_cap": np.float32(soft_cap or 0.0)}
    return call(q, pages, query_start, kv_len, block_table, of_heads, **attributes)
