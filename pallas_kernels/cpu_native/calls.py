"""The calls of the library, which has to be loaded before a program runs that has one."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

BFLOAT16: Final = "palladio_rows_times_bfloat16"
INT8: Final = "palladio_rows_times_int8"
ATTENTION: Final = "palladio_paged_attention"
CACHE_WRITE: Final = "palladio_cache_write"
SYMBOLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        BFLOAT16: "PalladioRowsTimesBfloat16",
        INT8: "PalladioRowsTimesInt8",
        ATTENTION: "PalladioPagedAttention",
        CACHE_WRITE: "PalladioCacheWrite",
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


def paged_attention(
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
    """Attention of a step's tokens.

    Args:
        q: f32[T, N, H], scaled. pages: f32[P, K, S, 2·Hp], keys and values.
        query_start: i32[B + 1]; kv_len: i32[B]; block_table: i32[B, Pmax], see AttentionMetadata.
        sinks: f32[N]. window: keys that a query sees. soft_cap: of the scores. None: there is none.

    Returns:
        f32[T, N, H]; 0 for rows of padding.
    """
    out = jax.ShapeDtypeStruct(q.shape, jnp.float32)
    of_heads = jnp.zeros(0, jnp.float32) if sinks is None else sinks.astype(jnp.float32)
    call = jax.ffi.ffi_call(ATTENTION, out)
    attributes = {"window": np.int64(window or 0), "soft_cap": np.float32(soft_cap or 0.0)}
    return call(q, pages, query_start, kv_len, block_table, of_heads, **attributes)


def cache_write(pages: jax.Array, rows: jax.Array, page_ids: jax.Array, page_offsets: jax.Array) -> jax.Array:
    """The pages f32[P, K, S, W], written in place if nobody else reads them, with rows f32[T, K, W] at [page_ids, :,
    page_offsets] i32[T]; of two rows at one place, the later one."""
    out = jax.ShapeDtypeStruct(pages.shape, pages.dtype)
    call = jax.ffi.ffi_call(CACHE_WRITE, out, input_output_aliases={0: 0})
    return call(pages, rows, page_ids, page_offsets)
