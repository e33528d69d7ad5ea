"""The portable backend: plain XLA operations, with loops whose trip counts follow the real tokens. Fast on CPU.

Online softmax in float32 over chunks of the keys, one block of queries of one request after the other; a decode step is
blocks of one query, and so are the requests of one token that come first in a mixed step. So work grows with each
request's own keys, never with the width of the block table, the longest neighbour or the padding rows.

Measured on two CPU cores, float32, N=14, K=2, H=64, S=16, ms a layer (2026-11, JAX 0.10.2):
  decode                        all requests at once    one after the other
    B=16, 300 keys each                  2.4                    2.1
    B=16, 6 of them real                 1.8                    0.6
    B=64, 40 real of 20-600 keys        45                      9.5
  pages of a chunk copied one by one against a gather, CPU ms: B=64 of 3,000 keys 60 to 36, B=4 of 2,000 equal.
  scores as keys·q (the long axis first) 2.1, as q·keys 2.5; chunks of 128 keys beat 256 and 512.
  prefill of 1,024: blocks of 128 queries and chunks of 128 keys 23, 64/128 37, 64/256 35, 32/128 46.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import padded_head_size, unpack_scales
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionMetadata, AttentionOptions
from palladio.pallas_kernels.ragged_paged_attention.inputs.passes import Pass, passes

CHUNK_TOKENS = 128
QUERY_BLOCK = 128
MOST_COPIES = 8  # of pages in a chunk, each of which is an operation to compile; 16 small ones are no faster
LOWEST = float(jnp.finfo(jnp.float32).min)  # not -inf: a row that sees no key must stay finite


class _Softmax(NamedTuple):
    """Running state of the online softmax over rows of any leading shape: peak and total [...], output [..., H]."""

    peak: jax.Array
    total: jax.Array
    output: jax.Array

    @classmethod
    def start(cls, rows: tuple[int, ...], head_size: int, sinks: jax.Array | None) -> "_Softmax":
        """Make the initial state.

        Args:
            sinks: f32, broadcasts to rows; for each row, the score of a key whose value is 0.
        """
        output = jnp.zeros((*rows, head_size))
        if sinks is None:
            return cls(jnp.full(rows, LOWEST), jnp.zeros(rows), output)
        return cls(jnp.broadcast_to(sinks, rows), jnp.ones(rows), output)

    def finish(self) -> jax.Array:
        return self.output / jnp.maximum(self.total, jnp.finfo(jnp.float32).tiny)[..., None]


def attention(q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata, options: AttentionOptions) -> jax.Array:
    """Attend: q [T, N, H], kv_pages [P, K, S, 2·Hp] → [T, N, H]."""
    T, N, H = q.shape
    K = kv_pages.shape[1]
    q = q.reshape(T, K, N // K, H)
    out = jnp.zeros(q.shape)
    for part in passes(metadata, min(T, QUERY_BLOCK)):
        out = _attend(q, kv_pages, metadata, options, part, out)
    return (out * options.v_scale).reshape(T, N, H).astype(q.dtype)


def _attend(
    q: jax.Array,
    kv_pages: jax.Array,
    metadata: AttentionMetadata,
    options: AttentionOptions,
    part: Pass,
    out: jax.Array,
) -> jax.Array:
    """Attend the queries of a pass: q [T, K, G, H], out f32[T, K, G, H] → out with the rows of this pass."""
    T, K, G, H = q.shape
    block, block_end = part.block, part.block_end
    pages, table = _pages_per_chunk(kv_pages, metadata)
    chunk = pages * kv_pages.shape[2]
    # A block reads and writes `block` rows even where its request ends earlier. Blocks go in the order of their first
    # tokens, so the next one overwrites what does not belong to its predecessor; the last one needs the extra rows.
    extra = ((0, block - 1), (0, 0), (0, 0), (0, 0))
    padded = jnp.pad(q.astype(jnp.float32) * (options.scale * options.k_scale), extra)
    sinks = None if options.sinks is None else jnp.tile(options.sinks.astype(jnp.float32).reshape(K, G), (1, block))

    def attend(number: jax.Array, out: jax.Array) -> jax.Array:
        request, start, kv_len, first_position = part.place(number, block_end, metadata)
        position = first_position + jnp.repeat(jnp.arange(block), G)  # [R], R = block·G
        rows = lax.dynamic_slice_in_dim(padded, start, block).transpose(1, 0, 2, 3).reshape(K, block * G, H)

        def add_chunk(index: jax.Array, softmax: _Softmax) -> _Softmax:
            numbers = lax.dynamic_slice(table, (request, index * pages), (1, pages))[0]
            keys, values = _gather(kv_pages, options.row_scales, numbers, H)  # [K, C, H]
            key_position = index * chunk + jnp.arange(chunk)
            visible = _visible(key_position, position[:, None], kv_len, options)  # [R, C]
            return _add_chunk(softmax, rows, (keys, values), visible, options)

        first = _first_key(first_position, options) // chunk
        last = -(-jnp.minimum(first_position + block, kv_len) // chunk)
        softmax = lax.fori_loop(first, last, add_chunk, _Softmax.start((K, block * G), H, sinks))
        done = softmax.finish().reshape(K, block, G, H).transpose(1, 0, 2, 3)
        return lax.dynamic_update_slice_in_dim(out, done, start, axis=0)

    out = lax.fori_loop(0, block_end[-1], attend, jnp.pad(out, extra))
    return out[:T]


def _pages_per_chunk(kv_pages: jax.Array, metadata: AttentionMetadata) -> tuple[int, jax.Array]:
    """Return the pages of a chunk, and the block table widened with the scratch page to a whole number of chunks."""
    width = metadata.block_table.shape[1]
    pages = min(max(1, CHUNK_TOKENS // kv_pages.shape[2]), width)
    return pages, jnp.pad(metadata.block_table, ((0, 0), (0, -width % pages)))


def _first_key(position: jax.Array, options: AttentionOptions) -> jax.Array:
    """Return the first key position that a query at `position` sees."""
    if options.sliding_window is None:
        return jnp.zeros_like(position)
    return jnp.maximum(position - options.sliding_window + 1, 0)


def _visible(key_position: jax.Array, position: jax.Array, kv_len: jax.Array, options: AttentionOptions) -> jax.Array:
    visible = (key_position <= position) & (key_position < kv_len)
    if options.sliding_window is not None:
        visible &= key_position > position - options.sliding_window
    return visible


def _gather(
    kv_pages: jax.Array, scales: jax.Array | None, numbers: jax.Array, head_size: int
) -> tuple[jax.Array, jax.Array]:
    """Return keys and values [K, C, H] of the pages with these numbers."""
    _, K, S, W = kv_pages.shape
    Hp = padded_head_size(head_size)
    rows = _copy(kv_pages, numbers).transpose(1, 0, 2, 3).reshape(K, numbers.shape[0] * S, W).astype(jnp.float32)
    keys, values = rows[..., :head_size], rows[..., Hp : Hp + head_size]
    if scales is None:
        return keys, values
    of_rows = unpack_scales(_copy(scales, numbers), K, S).transpose(1, 2, 0, 3).reshape(2, K, -1, 1)
    return keys * of_rows[0], values * of_rows[1]


def _copy(kv_pages: jax.Array, numbers: jax.Array) -> jax.Array:
    """Copy the pages with these numbers: page by page, since XLA:CPU gathers element by element."""
    if numbers.shape[0] > MOST_COPIES:
        return kv_pages.at[numbers].get(mode="promise_in_bounds")
    return jnp.concatenate([lax.dynamic_slice_in_dim(kv_pages, number, 1) for number in numbers])


def _add_chunk(
    softmax: _Softmax,
    q: jax.Array,
    keys_values: tuple[jax.Array, jax.Array],
    visible: jax.Array,
    options: AttentionOptions,
) -> _Softmax:
    """Add one chunk to the online softmax: q [K, R, H], keys and values [K, C, H], visible [R, C]."""
    keys, values = keys_values
    scores = jnp.einsum("kch,krh->kcr", keys, q).swapaxes(-1, -2)  # the long axis first: see the module's table
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    scores = jnp.where(visible, scores, LOWEST)
    peak = jnp.maximum(softmax.peak, scores.max(-1))
    weights = jnp.where(visible, jnp.exp(scores - peak[..., None]), 0.0)
    decay = jnp.exp(softmax.peak - peak)
    # Rows of a page beyond the request's end hold what an earlier owner left, and 0 · NaN is NaN: mask values as well.
    values = jnp.where(visible.any(0)[:, None], values, 0.0)
    return _Softmax(
        peak,
        softmax.total * decay + weights.sum(-1),
        softmax.output * decay[..., None] + jnp.einsum("krc,kch->krh", weights, values),
    )
