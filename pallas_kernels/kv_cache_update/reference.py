"""The plain definition: a one-hot selection of every cell of the cache. Slow; the oracle of the other backends."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.kv_cache_update.writes import CacheWrites
from palladio.pallas_kernels.target import Target


def update(kv_pages: jax.Array, rows: jax.Array, writes: CacheWrites, target: Target) -> jax.Array:
    """kv_pages [P, K, S, 2·Hp], rows [T, K, 2·Hp] → [P, K, S, 2·Hp]; the same for every target."""
    P, _, S, _ = kv_pages.shape
    T = rows.shape[0]
    cell = writes.page_ids * S + writes.page_offsets  # [T]
    hit = cell[:, None, None] == jnp.arange(P * S).reshape(P, S)  # [T, P, S]
    writer = jnp.where(hit, jnp.arange(T)[:, None, None], -1).max(0)  # [P, S]: the last token that writes the cell
    written = rows[writer].transpose(0, 2, 1, 3)  # [P, K, S, W]
    return jnp.where((writer >= 0)[:, None, :, None], written, kv_pages)
