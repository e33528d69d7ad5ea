"""The portable backend: plain XLA operations, with loops whose trip counts follow the real tokens. Fast on CPU.

Online softmax in float32: a block of queries after another, and of each the keys from the first that one of its queries
sees to the last, in chunks. So work and memory grow with the segments, never with the square of all tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.segment_attention.segments import LOWEST, SegmentOptions, Segments, block_ranges

QUERY_BLOCK = 128  # tokens
KEY_CHUNK = 128  # tokens


class _Softmax(NamedTuple):
    """State of the online softmax: peak and total f32[K, R], output f32[K, R, H]."""

    peak: jax.Array
    total: jax.Array
    output: jax.Array


def attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, options: SegmentOptions) -> jax.Array:
    """Attend: q [T, N, H], k and v [T, K, H] → [T, N, H]; 0 for padding."""
    T, N, H = q.shape
    K = k.shape[1]
    G, block, chunk = N // K, min(T, QUERY_BLOCK), min(T, KEY_CHUNK)
    extra = -T % block
    rows = jnp.pad(q, ((0, extra), (0, 0), (0, 0))).reshape(-1, block, K, G, H)
    rows = rows.transpose(0, 2, 3, 1, 4).reshape(-1, K, G * block, H)  # [blocks, K, R, H]
    # A chunk that begins near the end reads beyond it.
    keys, values = (jnp.pad(x, ((0, chunk), (0, 0), (0, 0))).transpose(1, 0, 2) for x in (k, v))  # [K, T + C, H]
    first, end = (jnp.pad(bound, (0, extra)) for bound in segments.seen(options.window))
    low, high = block_ranges(first, end, block)
    first, end = first.reshape(-1, block), end.reshape(-1, block)
    bias = None if options.bias is None else options.bias.astype(jnp.float32)

    def attend(number: jax.Array, out: jax.Array) -> jax.Array:
        own, begin, stop = rows[number], first[number], end[number]

        def add_chunk(index: jax.Array, softmax: _Softmax) -> _Softmax:
            at = low[number] + index * chunk
            token = at + jnp.arange(chunk, dtype=jnp.int32)
            visible = (token >= begin[:, None]) & (token < stop[:, None])  # [block, C]
            added = None
            if bias is not None:
                query = number * block + jnp.arange(block, dtype=jnp.int32)
                added = _distances(bias, query, token).reshape(K, G * block, chunk)
            here, there = (lax.dynamic_slice_in_dim(x, at, chunk, axis=1) for x in (keys, values))
            return _add_chunk(softmax, own, here, there, jnp.tile(visible, (G, 1)), options.scale, added)

        R = (K, G * block)
        # Masked scores are far below the first peak, so that a row which has seen no key yet has no weights.
        start = _Softmax(jnp.full(R, LOWEST / 2), jnp.zeros(R), jnp.zeros((*R, H)))
        num_chunks = -(-(high[number] - low[number]) // chunk)
        softmax = lax.fori_loop(0, num_chunks, add_chunk, start)
        done = softmax.output / jnp.maximum(softmax.total, jnp.finfo(jnp.float32).tiny)[..., None]
        new: jax.Array = lax.dynamic_update_index_in_dim(out, done.astype(q.dtype), number, axis=0)
        return new

    num_blocks = -(-segments.stops.max() // block)  # of real tokens
    out: jax.Array = lax.fori_loop(0, num_blocks, attend, jnp.zeros(rows.shape, q.dtype))
    return out.reshape(-1, K, G, block, H).transpose(0, 3, 1, 2, 4).reshape(-1, N, H)[:T]


def _distances(bias: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """Return what the distances add to scores: f32[N, queries, keys]."""
    most = bias.shape[1] // 2
    return bias[:, jnp.clip(key[None, :] - query[:, None], -most, most) + most]


def _add_chunk(
    softmax: _Softmax,
    q: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    visible: jax.Array,
    scale: float,
    added: jax.Array | None,
) -> _Softmax:
    """Add one chunk to the online softmax: q [K, R, H], keys and values [K, C, H], visible [R, C]."""
    # The long axis first: faster on CPUs than q·keys, as in ragged paged attention.
    scores = jnp.einsum("kch,krh->kcr", keys, q, preferred_element_type=jnp.float32).swapaxes(-1, -2) * scale
    scores = jnp.where(visible, scores if added is None else scores + added, LOWEST)
    peak = jnp.maximum(softmax.peak, scores.max(-1))
    weights = jnp.exp(scores - peak[..., None])
    decay = jnp.exp(softmax.peak - peak)
    sums = jnp.einsum("krc,kch->krh", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
    return _Softmax(peak, softmax.total * decay + weights.sum(-1), softmax.output * decay[..., None] + sums)
