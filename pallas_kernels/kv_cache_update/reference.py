"""The plain definition: a one-hot selection of every cell of the cache. Slow; the oracle of the other backends."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.kv_cache_update.writes import CacheWrites
from palladio.pallas_kernels.target import Target


def update(kv_pages: jax.Array, rows: jax.Array, writes: CacheWrites, target: Target) -> jax.Array:
    """Write rows: kv_pages [P, K, S, 2·Hp], rows [T, K, 2·Hp] → [P, K, S, 2·Hp]; the same for every target."""
    P, _, S, _ = kv_pages.shape
    writer = _writer(writes, P, S)
    written = rows[writer].transpose(0, 2, 1, 3)  # [P, K, S, W]
    return jnp.where((writer >= 0)[:, None, :, None], written, kv_pages)


def update_scales(
    page_scales: jax.Array, scales: jax.Array, page_size: int, writes: CacheWrites, target: Target
) -> jax.Array:
    """Write scales: page_scales f32[P, R, C·S], scales f32[T, 2·K] → f32[P, R, C·S]."""
    P, R, L = page_scales.shape
    writer = _writer(writes, P, page_size)
    runs = page_scales.reshape(P, R, L // page_size, page_size)  # run i: [:, i mod R, i // R]
    for number in range(scales.shape[1]):
        run = runs[:, number % R, number // R]
        runs = runs.at[:, number % R, number // R].set(jnp.where(writer >= 0, scales[writer, number], run))
    return runs.reshape(P, R, L)


def _writer(writes: CacheWrites, P: int, S: int) -> jax.Array:
    """Return the last token that writes each cell, i32[P, S]; -1: none."""
    T = writes.page_ids.shape[0]
    cell = writes.page_ids * S + writes.page_offsets  # [T]
    hit = cell[:, None, None] == jnp.arange(P * S).reshape(P, S)  # [T, P, S]
    return jnp.where(hit, jnp.arange(T)[:, None, None], -1).max(0)
