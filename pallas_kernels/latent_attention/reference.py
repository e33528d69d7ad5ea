"""The plain definition, in float32: every token gathers all pages of its request. Slow; the oracle of the other
backends."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.latent_attention.layout import LatentOptions
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata


def attention(q: jax.Array, pages: jax.Array, metadata: AttentionMetadata, options: LatentOptions) -> jax.Array:
    """Attend: q [T, N, W], pages [P, S, W] → [T, N, L]."""
    T = q.shape[0]
    C = metadata.block_table.shape[1]
    request, kv_len, position = metadata.owners(T)
    rows = pages[metadata.block_table[request]].reshape(T, C * pages.shape[1], -1).astype(jnp.float32)
    key_position = jnp.arange(rows.shape[1])
    visible = (key_position <= position[:, None]) & (key_position < kv_len[:, None])  # [T, keys]
    rows = jnp.where(visible[:, :, None], rows, 0.0)  # stale rows may hold anything, even NaN
    scores = jnp.einsum("tnw,tcw->tnc", q.astype(jnp.float32), rows, precision="highest") * options.scale
    # Not -inf: a padding row sees no key at all, and must stay finite.
    scores = jnp.where(visible[:, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("tnc,tcl->tnl", weights, rows[..., : options.size], precision="highest")
    return out.astype(q.dtype)
