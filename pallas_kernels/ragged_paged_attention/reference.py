"""The plain definition, in float32: every token gathers all pages of its request. Slow; the oracle of the other
backends."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import padded_head_size, unpack_scales
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionMetadata, AttentionOptions


def attention(q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata, options: AttentionOptions) -> jax.Array:
    """Attend: q [T, N, H], kv_pages [P, K, S, 2·Hp] → [T, N, H]."""
    T, N, H = q.shape
    _, K, S, _ = kv_pages.shape
    Pmax = metadata.block_table.shape[1]
    Hp = padded_head_size(H)
    request, kv_len, position = metadata.owners(T)

    rows = kv_pages[metadata.block_table[request]]  # [T, Pmax, K, S, W]
    rows = rows.transpose(0, 2, 1, 3, 4).reshape(T, K, Pmax * S, -1).astype(jnp.float32)
    keys, values = rows[..., :H] * options.k_scale, rows[..., Hp : Hp + H] * options.v_scale  # [T, K, C, H]

    if options.row_scales is not None:
        scales = unpack_scales(options.row_scales, K, S)[metadata.block_table[request]]  # [T, Pmax, 2, K, S]
        of_keys, of_values = scales.transpose(2, 0, 3, 1, 4).reshape(2, T, K, Pmax * S, 1)
        keys, values = keys * of_keys, values * of_values

    key_position = jnp.arange(Pmax * S)
    visible = (key_position <= position[:, None]) & (key_position < kv_len[:, None])  # [T, C]
    if options.sliding_window is not None:
        visible &= key_position > position[:, None] - options.sliding_window

    grouped = q.reshape(T, K, N // K, H).astype(jnp.float32)
    scores = jnp.einsum("tkgh,tkch->tkgc", grouped, keys, precision="highest") * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    visible = visible[:, None, None, :]
    # Not -inf: a padding row sees no key at all, and must stay finite.
    scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
    if options.sinks is None:
        weights = jax.nn.softmax(scores, axis=-1)
    else:
        sinks = jnp.broadcast_to(options.sinks.astype(jnp.float32).reshape(1, K, N // K, 1), (T, K, N // K, 1))
        weights = jax.nn.softmax(jnp.concatenate([scores, sinks], axis=-1), axis=-1)[..., :-1]
    weights = jnp.where(visible, weights, 0.0)
    values = jnp.where(visible[:, 0, 0, :, None][:, None], values, 0.0)  # stale rows may hold anything, even NaN
    out = jnp.einsum("tkgc,tkch->tkgh", weights, values, precision="highest")
    return out.reshape(T, N, H).astype(q.dtype)
