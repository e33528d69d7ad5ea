"""The plain definition: a one-hot selection of every cell of the cache. Slow; the oracle of the other backends."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.kv_cache_update.xla import pack_rows


def update(kv_pages: jax.Array, k: jax.Array, v: jax.Array, page_ids: jax.Array, page_offsets: jax.Array) -> jax.Array:
    """kv_pages [P, K, S, 2·Hp], k and v [T, K, H] → [P, K, S, 2·Hp]."""
    P, _, S, _ = kv_pages.shape
    T = k.shape[0]
    cell = page_ids * S + page_offsets  # [T]
    hit = cell[:, None, None] == jnp.arange(P * S).reshape(P, S)  # [T, P, S]
    writer = jnp.where(hit, jnp.arange(T)[:, None, None], -1).max(0)  # [P, S]: the last token that writes the cell
    rows = pack_rows(k, v, kv_pages)[writer].transpose(0, 2, 1, 3)  # [P, K, S, W]
    return jnp.where((writer >= 0)[:, None, :, None], rows, kv_pages)
