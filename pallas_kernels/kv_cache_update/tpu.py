"""The TPU backend: a kernel over runs of rows, each page read, changed and written back; the rest of the cache stays.

An XLA scatter would copy the whole cache into another layout and back. A decode step has a kernel of its own.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.kv_cache_update.tpu_decode import update_rows
from palladio.pallas_kernels.kv_cache_update.writes import CacheWrites, plan_runs
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.tpu_mode import hbm, interpret_mode, require

Ref = Any
ROW_TILE = {1: 32, 2: 16, 4: 8}  # rows of a native tile, by the bytes of an element
ALIGNMENT = 8  # of a block's first token: the finest that a copy may begin at
MAX_RUNS = 32_768  # of which scalar memory holds four numbers each


def update(kv_pages: jax.Array, rows: jax.Array, writes: CacheWrites, target: Target) -> jax.Array:
    """Write rows: kv_pages [P, K, S, 2·Hp], rows [T, K, 2·Hp] → [P, K, S, 2·Hp].

    Raises:
        NotImplementedError: the target is no TPU, or pages are no whole tiles.
    """
    require(target)
    _, K, S, W = kv_pages.shape
    tile = ROW_TILE.get(kv_pages.dtype.itemsize, 0)
    if not tile or kv_pages.dtype == jnp.float16:
        raise NotImplementedError(f"a cache of {kv_pages.dtype} (--kv-cache-dtype)")
    if S % tile:
        raise NotImplementedError(
            f"pages of {S} tokens: with a cache of {kv_pages.dtype} they must be a multiple of {tile} (--page-size)"
        )
    # Products place the rows of a run, and no unit multiplies 8 bits as they are: bfloat16 holds each of their values.
    exact = rows if rows.dtype in (jnp.float32, jnp.bfloat16) else _widened(rows)
    if writes.one_each:
        return update_rows(kv_pages, exact, writes, target, tile=tile)
    runs = writes.runs or plan_runs(writes)
    if runs.page.shape[0] > MAX_RUNS:
        raise NotImplementedError(f"{runs.page.shape[0]} runs of rows: at most {MAX_RUNS} (--chunked-prefill-size)")
    chunk = -(-(S + ALIGNMENT) // 16) * 16  # tokens that a grid step sees
    T = rows.shape[0]
    size = max(T + -T % 16, chunk)
    tokens = jnp.pad(exact.transpose(1, 0, 2), ((0, 0), (0, size - T), (0, 0)))  # of most steps' sizes none

    def begin(i: jax.Array, page: Ref, row: Ref, token: Ref, *_: Ref) -> tuple[Any, ...]:
        return 0, _window(token[i], chunk, size), 0

    source = pl.BlockSpec((pl.Element(K), pl.Element(chunk), pl.Element(W)), begin)
    place = pl.BlockSpec((1, K, S, W), lambda i, page, *_: (page[i], 0, 0, 0))
    scalars = (runs.page, runs.row, runs.token, runs.count, runs.num_runs)
    moved = runs.page.shape[0] * K * W  # of every row of the runs' pieces
    cost = pl.CostEstimate(
        flops=2 * moved * S * chunk,
        bytes_accessed=moved * (2 * S * kv_pages.dtype.itemsize + chunk * tokens.dtype.itemsize),
        transcendentals=0,
    )
    call = pl.pallas_call(
        functools.partial(_kernel, num_tokens=size),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars), grid=(runs.num_runs[0],), in_specs=[source, place], out_specs=place
        ),
        out_shape=jax.ShapeDtypeStruct(kv_pages.shape, kv_pages.dtype),
        input_output_aliases={len(scalars) + 1: 0},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        cost_estimate=cost,
        interpret=interpret_mode(target),
        name=f"kv_cache_update_{S}",
    )
    updated: jax.Array = call(*scalars, tokens, hbm(kv_pages, target))
    return updated


def _window(token: jax.Array, chunk: int, num_tokens: int) -> jax.Array:
    """Return the first token that a grid step sees, for a run that begins at `token`: its window never reaches beyond
    the last token."""
    first = jnp.minimum(lax.div(token, ALIGNMENT) * ALIGNMENT, num_tokens - chunk)
    aligned: jax.Array = pl.multiple_of(first, ALIGNMENT)
    return aligned


def _widened(rows: jax.Array) -> jax.Array:
    return rows.astype(jnp.float32).astype(jnp.bfloat16)


def _kernel(
    page: Ref,
    row: Ref,
    token: Ref,
    count: Ref,
    num_runs: Ref,
    tokens: Ref,
    old: Ref,
    new: Ref,
    *,
    num_tokens: int,
) -> None:
    """Write one run. Scalars: see WriteRuns; tokens [K, chunk, W], the run's window; old and new [1, K, S, W], the same
    memory."""
    i = pl.program_id(0)
    _, num_heads, page_size, width = old.shape
    chunk = tokens.shape[1]
    first = row[i]
    skipped = token[i] - _window(token[i], chunk, num_tokens)
    size = count[i]
    to = lax.broadcasted_iota(jnp.int32, (page_size, chunk), 0) - first
    source = lax.broadcasted_iota(jnp.int32, (page_size, chunk), 1) - skipped
    hot = ((to == source) & (to >= 0) & (to < size)).astype(tokens.dtype)
    to = lax.broadcasted_iota(jnp.int32, (page_size, width), 0) - first
    kept = (to < 0) | (to >= size)
    # Tokens beyond the run may be anything, and 0 · NaN is NaN.
    source = lax.broadcasted_iota(jnp.int32, (chunk, width), 0) - skipped
    mine = (source >= 0) & (source < size)
    precision = lax.Precision.HIGHEST if tokens.dtype == jnp.float32 else None
    for head in range(num_heads):
        values = jnp.where(mine, tokens[head].astype(jnp.float32), 0.0).astype(tokens.dtype)
        placed = lax.dot_general(
            hot, values, (((1,), (0,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
        )
        before = old[0, head]
        new[0, head] = jnp.where(kept, before.astype(jnp.float32), placed).astype(before.dtype)
