"""The portable backend: plain XLA operations, with loops whose trip counts follow the real tokens.

Online softmax in float32 over chunks of the rows, one block of queries of one request after the other; a decode step is
blocks of one query, and so are the requests of one token that come first in a mixed step. So work grows with each
request's own rows, never with the width of the block table, the longest neighbour or the padding.

Every step computes with latents (absorbed), prefill too: expanding them into keys and values of all heads would take
3.4 times fewer operations on scores and values with DeepSeek's sizes, but a chunk after a cached prefix would have to
expand that prefix again, and mixed steps would have two kinds of queries.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.latent_attention.layout import LatentOptions
from palladio.pallas_kernels.ragged_paged_attention import AttentionMetadata
from palladio.pallas_kernels.ragged_paged_attention.inputs.passes import Pass, passes

CHUNK_TOKENS = 128
QUERY_ROWS = 1024  # of all heads, in a block of queries
QUERY_BLOCK = 128  # tokens, at most
LOWEST = float(jnp.finfo(jnp.float32).min)  # not -inf: a row that sees no key must stay finite


class _Softmax(NamedTuple):
    """Running state of the online softmax: peak and total [R], output [R, L]."""

    peak: jax.Array
    total: jax.Array
    output: jax.Array


def attention(q: jax.Array, pages: jax.Array, metadata: AttentionMetadata, options: LatentOptions) -> jax.Array:
    """Attend: q [T, N, W], pages [P, S, W] → [T, N, L]."""
    T, N, _ = q.shape
    wide = q.astype(jnp.float32) * options.scale
    out = jnp.zeros((T, N, options.size))
    for part in passes(metadata, min(T, QUERY_BLOCK, max(1, QUERY_ROWS // N))):
        out = _attend(wide, pages, metadata, part, out)
    return out.astype(q.dtype)


def _attend(q: jax.Array, pages: jax.Array, metadata: AttentionMetadata, part: Pass, out: jax.Array) -> jax.Array:
    """Attend the queries of a pass: q f32[T, N, W], out f32[T, N, L] → out with the rows of this pass."""
    (T, N, W), L = q.shape, out.shape[2]
    block, block_end = part.block, part.block_end
    width, S = metadata.block_table.shape[1], pages.shape[1]
    per_chunk = min(max(1, CHUNK_TOKENS // S), width)  # pages
    chunk = per_chunk * S
    table = jnp.pad(metadata.block_table, ((0, 0), (0, -width % per_chunk)))
    # A block reads and writes `block` rows even where its request ends earlier. Blocks go in the order of their first
    # tokens, so the next one overwrites what does not belong to its predecessor; the last one needs the extra rows.
    extra = ((0, block - 1), (0, 0), (0, 0))
    padded = jnp.pad(q, extra)

    def attend(number: jax.Array, out: jax.Array) -> jax.Array:
        request, start, kv_len, first_position = part.place(number, block_end, metadata)
        position = first_position + jnp.repeat(jnp.arange(block), N)  # [R], R = block·N
        queries = lax.dynamic_slice_in_dim(padded, start, block).reshape(block * N, W)

        def add_chunk(index: jax.Array, softmax: _Softmax) -> _Softmax:
            numbers = lax.dynamic_slice(table, (request, index * per_chunk), (1, per_chunk))[0]
            rows = pages.at[numbers].get(mode="promise_in_bounds").reshape(chunk, W).astype(jnp.float32)
            key_position = index * chunk + jnp.arange(chunk)
            visible = (key_position <= position[:, None]) & (key_position < kv_len)
            return _add_chunk(softmax, queries, rows, visible)

        last = -(-jnp.minimum(first_position + block, kv_len) // chunk)
        start_softmax = _Softmax(jnp.full(block * N, LOWEST), jnp.zeros(block * N), jnp.zeros((block * N, L)))
        softmax = lax.fori_loop(0, last, add_chunk, start_softmax)
        done = softmax.output / jnp.maximum(softmax.total, jnp.finfo(jnp.float32).tiny)[:, None]
        return lax.dynamic_update_slice_in_dim(out, done.reshape(block, N, L), start, axis=0)

    attended: jax.Array = lax.fori_loop(0, block_end[-1], attend, jnp.pad(out, extra))
    return attended[:T]


def _add_chunk(softmax: _Softmax, q: jax.Array, rows: jax.Array, visible: jax.Array) -> _Softmax:
    """Add one chunk to the online softmax: q [R, W], rows [C, W], visible [R, C]."""
    # Rows of a page beyond the request's end hold what an earlier owner left, and 0 · NaN is NaN.
    rows = jnp.where(visible.any(0)[:, None], rows, 0.0)
    scores = jnp.where(visible, jnp.einsum("cw,rw->cr", rows, q).T, LOWEST)
    peak = jnp.maximum(softmax.peak, scores.max(-1))
    weights = jnp.where(visible, jnp.exp(scores - peak[:, None]), 0.0)
    decay = jnp.exp(softmax.peak - peak)
    return _Softmax(
        peak,
        softmax.total * decay + weights.sum(-1),
        softmax.output * decay[:, None] + weights @ rows[:, : softmax.output.shape[1]],
    )
