"""The calls of the library. Load it before a program with one of them runs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import jax
import jax.numpy as jnp
import numpy as np

from palladio.pallas_kernels.cpu_native.forms import Form

BFLOAT16: Final = "palladio_rows_times_bfloat16"
GROUPS: Final = "palladio_groups_times_bfloat16"
INT8: Final = "palladio_rows_times_int8"
ATTENTION: Final = "palladio_paged_attention"
CACHE_WRITE: Final = "palladio_cache_write"
MLP_BLOCK: Final = "palladio_mlp_block"
ATTENTION_BLOCK: Final = "palladio_attention_block"
ROW_ARGMAX: Final = "palladio_row_argmax"
SYMBOLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        BFLOAT16: "PalladioRowsTimesBfloat16",
        GROUPS: "PalladioGroupsTimesBfloat16",
        INT8: "PalladioRowsTimesInt8",
        ATTENTION: "PalladioPagedAttention",
        CACHE_WRITE: "PalladioCacheWrite",
        MLP_BLOCK: "PalladioMlpBlock",
        ATTENTION_BLOCK: "PalladioAttentionBlock",
        ROW_ARGMAX: "PalladioRowArgmax",
    }
)
"""The function of each call."""


def name_of(call: str, form: Form | None) -> str:
    """Return the name of a call in the library of a form; None: in the one for this CPU."""
    return call if form is None else f"{call}_{form}"


def rows_times_bfloat16(rows: jax.Array, matrix: jax.Array, *, form: Form | None = None) -> jax.Array:
    """Multiply rows f32[T, in], matrix bf16[out, in] → f32[T, out]. Rows are rounded to bfloat16.

    Args:
        form: form of the library; None: the one for this CPU. Other forms must be loaded by their names.
    """
    out = jax.ShapeDtypeStruct((rows.shape[0], matrix.shape[0]), jnp.float32)
    return jax.ffi.ffi_call(name_of(BFLOAT16, form), out)(rows, matrix)


def groups_times_bfloat16(
    rows: jax.Array, bits: jax.Array, group_sizes: jax.Array, *, form: Form | None = None
) -> jax.Array:
    """Multiply the first group of rows with the first matrix, the next one with the second, and so on.

    Args:
        rows: f32[M, in].
        bits: u16[E, out, in], the bits of bfloat16 matrices.
        group_sizes: i32[E], rows of each group; their sum is at most M.
        form: as in `rows_times_bfloat16`.

    Returns:
        f32[M, out]; 0 for rows of no group.
    """
    out = jax.ShapeDtypeStruct((rows.shape[0], bits.shape[1]), jnp.float32)
    return jax.ffi.ffi_call(name_of(GROUPS, form), out)(rows, bits, group_sizes)


def rows_times_int8(
    rows: jax.Array,
    matrix: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None = None,
    *,
    bits: Literal[8, 16] = 16,
    form: Form | None = None,
) -> jax.Array:
    """Multiply rows, each rounded to whole numbers by its largest one. Rows with NaN or infinity become NaN.

    Args:
        rows: f32[T, in].
        matrix: int8[out, in].
        scales: f32[out]; outputs are multiplied by them.
        zeros: f32[out], subtracted from the numbers of the matrix; None: all are 0.
        bits: bits of the rows' whole numbers.
        form: as in `rows_times_bfloat16`.

    Returns:
        f32[T, out].
    """
    out = jax.ShapeDtypeStruct((rows.shape[0], matrix.shape[0]), jnp.float32)
    of_outputs = jnp.zeros(0, jnp.float32) if zeros is None else zeros
    call = jax.ffi.ffi_call(name_of(INT8, form), out)
    return call(rows, matrix, scales, of_outputs, bits=np.int64(bits))


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
    form: Form | None = None,
) -> jax.Array:
    """Compute attention of a step's tokens.

    Args:
        q: f32[T, N, H], scaled.
        pages: f32[P, K, S, 2·Hp], keys and values.
        query_start: i32[B + 1], see AttentionMetadata.
        kv_len: i32[B], see AttentionMetadata.
        block_table: i32[B, Pmax], see AttentionMetadata.
        sinks: f32[N]; None: there are none.
        window: number of keys that a query sees; None: all before it.
        soft_cap: cap of the scores; None: there is none.
        form: as in `rows_times_bfloat16`.

    Returns:
        f32[T, N, H]; 0 for rows of padding.
    """
    out = jax.ShapeDtypeStruct(q.shape, jnp.float32)
    of_heads = jnp.zeros(0, jnp.float32) if sinks is None else sinks.astype(jnp.float32)
    call = jax.ffi.ffi_call(name_of(ATTENTION, form), out)
    attributes = {"window": np.int64(window or 0), "soft_cap": np.float32(soft_cap or 0.0)}
    return call(q, pages, query_start, kv_len, block_table, of_heads, **attributes)


def cache_write(pages: jax.Array, rows: jax.Array, page_ids: jax.Array, page_offsets: jax.Array) -> jax.Array:
    """Write rows f32[T, K, W] into pages f32[P, K, S, W] at [page_ids, :, page_offsets] i32[T], in place if nothing
    else reads the pages. Of two rows at one place, the later one wins."""
    out = jax.ShapeDtypeStruct(pages.shape, pages.dtype)
    call = jax.ffi.ffi_call(CACHE_WRITE, out, input_output_aliases={0: 0})
    return call(pages, rows, page_ids, page_offsets)


def row_argmax(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Find the place of the largest number of each row, the lowest of equals, where NaN is larger than all; and whether
    that number is finite: f32[B, V] → i32[B], bool[B]."""
    rows = values.shape[:1]
    results = jax.ShapeDtypeStruct(rows, jnp.int32), jax.ShapeDtypeStruct(rows, jnp.bool_)
    ids, are_finite = jax.ffi.ffi_call(ROW_ARGMAX, results)(values)
    return ids, are_finite
