"""The plain definition, in float32: scores of all pairs of tokens. Slow; the oracle of the other backends."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.segment_attention.segments import LOWEST, SegmentOptions, Segments


def attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, options: SegmentOptions) -> jax.Array:
    """Attend: q [T, N, H], k and v [T, K, H] → [T, N, H]; 0 for padding."""
    T, N, H = q.shape
    K = k.shape[1]
    wide_q, wide_k, wide_v = (x.astype(jnp.float32) for x in (q.reshape(T, K, N // K, H), k, v))
    scores = jnp.einsum("tkgh,ckh->kgtc", wide_q, wide_k, precision="highest") * options.scale
    token = jnp.arange(T)
    if options.bias is not None:
        most = options.bias.shape[1] // 2
        columns = jnp.clip(token[None, :] - token[:, None], -most, most) + most
        scores += options.bias.astype(jnp.float32)[:, columns].reshape(scores.shape)
    first, end = (bound[:, None] for bound in segments.seen(options.window))
    visible = (token >= first) & (token < end)
    weights = jnp.where(visible, jax.nn.softmax(jnp.where(visible, scores, LOWEST), axis=-1), 0.0)
    return jnp.einsum("kgtc,ckh->tkgh", weights, wide_v, precision="highest").reshape(T, N, H).astype(q.dtype)
