"""The portable backend: plain XLA operations, with loops whose trip counts follow the real tokens. Fast on CPU.

Both kinds are online softmax in float32 over chunks of the keys: work grows with the longest request of the batch
(decode) or with each query block's own keys (prefill), never with the width of the block table.

Measured on two CPU cores, float32, H=64, N=14, K=2, S=16, µs a layer (2026-11, JAX 0.10.2):
  decode, 512 keys      B=1     B=16
    keys·q per head     218     2,100    batched [C,H]@[H,G]: the long axis first; what is used
    q·keys per head     262     2,540    batched [G,H]@[H,C]
    multiply and sum    545     3,700    no dot at all
    a loop per request  320     2,300    requests one after the other, exact lengths
  and chunks of 128 tokens beat 256 and 512 at B=16 (the gathered chunk stays in the cache).
  prefill of 1,024: blocks of 128 queries and chunks of 128 keys 23 ms, 64/128 37 ms, 64/256 35 ms, 32/128 46 ms.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.ragged_paged_attention.layout import padded_head_size
from palladio.pallas_kernels.ragged_paged_attention.metadata import AttentionMetadata, AttentionOptions

CHUNK_TOKENS = 128
QUERY_BLOCK = 128
LOWEST = float(jnp.finfo(jnp.float32).min)  # not -inf: a row that sees no key must stay finite


class _Softmax(NamedTuple):
    """Running state of the online softmax over rows of any leading shape: peak and total [...], output [..., H]."""

    peak: jax.Array
    total: jax.Array
    output: jax.Array

    @classmethod
    def start(cls, rows: tuple[int, ...], head_size: int) -> "_Softmax":
        return cls(jnp.full(rows, LOWEST), jnp.zeros(rows), jnp.zeros((*rows, head_size)))

    def finish(self) -> jax.Array:
        return self.output / jnp.maximum(self.total, jnp.finfo(jnp.float32).tiny)[..., None]


def attention(q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata, options: AttentionOptions) -> jax.Array:
    """q [T, N, H], kv_pages [P, K, S, 2·Hp] → [T, N, H]."""
    T, N, H = q.shape
    K = kv_pages.shape[1]
    grouped = q.reshape(T, K, N // K, H)
    step = _decode if metadata.kind == "decode" else _prefill
    return step(grouped, kv_pages, metadata, options).reshape(T, N, H).astype(q.dtype)


def _decode(q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata, options: AttentionOptions) -> jax.Array:
    """All requests together, chunk after chunk. q [B, K, G, H] → f32[B, K, G, H]."""
    B, K, G, H = q.shape
    pages, table = _pages_per_chunk(kv_pages, metadata)
    chunk = pages * kv_pages.shape[2]
    kv_len = metadata.kv_len
    first = _first_key(kv_len - 1, options) // chunk  # [B]: with a sliding window, each row starts at its own chunk
    last = -(-kv_len // chunk)
    scaled = q.astype(jnp.float32) * options.scale

    def add_chunk(step: jax.Array, softmax: _Softmax) -> _Softmax:
        index = first + step  # [B]
        columns = index[:, None] * pages + jnp.arange(pages)
        columns = jnp.minimum(columns, table.shape[1] - 1)  # rows that are done read anything; all of it is masked
        keys, values = _gather(kv_pages, jnp.take_along_axis(table, columns, axis=1), H)  # [B, K, C, H]
        key_position = index[:, None] * chunk + jnp.arange(chunk)
        visible = _visible(key_position, (kv_len - 1)[:, None], kv_len[:, None], options)  # [B, C]
        return _add_chunk(softmax, scaled, (keys, values), visible[:, None, None, :], options)

    softmax: _Softmax = lax.fori_loop(0, jnp.max(last - first), add_chunk, _Softmax.start((B, K, G), H))
    return softmax.finish()


def _prefill(q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata, options: AttentionOptions) -> jax.Array:
    """One block of queries of one request after the other. q [T, K, G, H] → f32[T, K, G, H]."""
    T, K, G, H = q.shape
    pages, table = _pages_per_chunk(kv_pages, metadata)
    chunk = pages * kv_pages.shape[2]
    block = min(T, QUERY_BLOCK)
    # A block reads and writes `block` rows even where its request ends earlier. Blocks go in the order of their first
    # tokens, so the next one overwrites what does not belong to its predecessor; the last one needs the extra rows.
    padded = jnp.pad(q.astype(jnp.float32) * options.scale, ((0, block), (0, 0), (0, 0), (0, 0)))

    query_len = metadata.query_start[1:] - metadata.query_start[:-1]  # [B]
    block_end = jnp.cumsum(-(-query_len // block))  # [B], blocks of requests 0 … b

    def attend(number: jax.Array, out: jax.Array) -> jax.Array:
        request = jnp.searchsorted(block_end, number, side="right")
        before = number - (block_end[request] - -(-query_len[request] // block))
        start = metadata.query_start[request] + before * block
        kv_len = metadata.kv_len[request]
        first_position = kv_len - query_len[request] + before * block
        position = first_position + jnp.repeat(jnp.arange(block), G)  # [R], R = block·G
        rows = lax.dynamic_slice_in_dim(padded, start, block).transpose(1, 0, 2, 3).reshape(1, K, block * G, H)

        def add_chunk(index: jax.Array, softmax: _Softmax) -> _Softmax:
            numbers = lax.dynamic_slice(table, (request, index * pages), (1, pages))
            keys, values = _gather(kv_pages, numbers, H)  # [1, K, C, H]
            key_position = index * chunk + jnp.arange(chunk)
            visible = _visible(key_position, position[:, None], kv_len, options)  # [R, C]
            return _add_chunk(softmax, rows, (keys, values), visible, options)

        first = _first_key(first_position, options) // chunk
        last = -(-jnp.minimum(first_position + block, kv_len) // chunk)
        softmax = lax.fori_loop(first, last, add_chunk, _Softmax.start((1, K, block * G), H))
        done = softmax.finish().reshape(K, block, G, H).transpose(1, 0, 2, 3)
        return lax.dynamic_update_slice_in_dim(out, done, start, axis=0)

    out: jax.Array = lax.fori_loop(0, block_end[-1], attend, jnp.zeros_like(padded))
    return out[:T]


def _pages_per_chunk(kv_pages: jax.Array, metadata: AttentionMetadata) -> tuple[int, jax.Array]:
    """Pages a chunk, and the block table widened with the scratch page to a whole number of chunks."""
    width = metadata.block_table.shape[1]
    pages = min(max(1, CHUNK_TOKENS // kv_pages.shape[2]), width)
    return pages, jnp.pad(metadata.block_table, ((0, 0), (0, -width % pages)))


def _first_key(position: jax.Array, options: AttentionOptions) -> jax.Array:
    """The first key position that a query at `position` sees."""
    if options.sliding_window is None:
        return jnp.zeros_like(position)
    return jnp.maximum(position - options.sliding_window + 1, 0)


def _visible(key_position: jax.Array, position: jax.Array, kv_len: jax.Array, options: AttentionOptions) -> jax.Array:
    visible = (key_position <= position) & (key_position < kv_len)
    if options.sliding_window is not None:
        visible &= key_position > position - options.sliding_window
    return visible


def _gather(kv_pages: jax.Array, numbers: jax.Array, head_size: int) -> tuple[jax.Array, jax.Array]:
    """Keys and values [B, K, C, H] of pages numbers [B, pages]."""
    B, pages = numbers.shape
    _, K, S, W = kv_pages.shape
    Hp = padded_head_size(head_size)
    rows = kv_pages.at[numbers].get(mode="promise_in_bounds")  # [B, pages, K, S, W]
    rows = rows.transpose(0, 2, 1, 3, 4).reshape(B, K, pages * S, W).astype(jnp.float32)
    return rows[..., :head_size], rows[..., Hp : Hp + head_size]


def _add_chunk(
    softmax: _Softmax,
    q: jax.Array,
    keys_values: tuple[jax.Array, jax.Array],
    visible: jax.Array,
    options: AttentionOptions,
) -> _Softmax:
    """One chunk of the online softmax. q [B, K, R, H], keys and values [B, K, C, H], visible → [B, K, R, C]."""
    keys, values = keys_values
    scores = jnp.einsum("bkch,bkrh->bkcr", keys, q).swapaxes(-1, -2)  # the long axis first: see the module's table
    if options.soft_cap is not None:
        scores = options.soft_cap * jnp.tanh(scores / options.soft_cap)
    scores = jnp.where(visible, scores, LOWEST)
    peak = jnp.maximum(softmax.peak, scores.max(-1))
    weights = jnp.where(visible, jnp.exp(scores - peak[..., None]), 0.0)
    decay = jnp.exp(softmax.peak - peak)
    # Rows of a page beyond the request's end hold what an earlier owner left, and 0 · NaN is NaN: mask values as well.
    seen = visible.any(-2, keepdims=True).swapaxes(-1, -2)
    values = jnp.where(seen, values, 0.0)
    return _Softmax(
        peak,
        softmax.total * decay + weights.sum(-1),
        softmax.output * decay[..., None] + jnp.einsum("bkrc,bkch->bkrh", weights, values),
    )
