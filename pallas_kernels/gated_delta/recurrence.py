"""The gated delta rule for rows of one token, and for chunks, by products of matrices (the WY form).

With S the state before a chunk, g the sum of logarithms of decay up to each token (inclusive), and token j at or before
i:

    D[i, j] = exp(g[i] - g[j]),  A[i, j] = beta[i] (k[i] · k[j]) D[i, j] for j < i,  M = (1 + A)⁻¹
    U = M (beta V),  W = M (beta exp(g) K)
    N = U - W S                                       the addition of each token, given those before it
    out = (exp(g) Q) S + ((Q Kᵀ) D) N
    S' = exp(g[last]) S + (exp(g[last] - g) K)ᵀ N

Only the lines with S run chunk after chunk; all others run for a group of chunks at once.
"""

import jax
import jax.numpy as jnp
from jax import lax

CHUNK = 64  # tokens; more of them make the products larger, and the inverse dearer
SMALL = 16  # rows of blocks that are inverted one after the other; larger ones are made of these by products
GROUP = 16  # chunks whose inverses are computed together: as many as give a matrix unit something to do

Tokens = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]
"""q, k, v, decay and beta, see api.gated_delta."""


def delta_singles(
    q: jax.Array, k: jax.Array, v: jax.Array, decay: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Apply the rule to rows of one token: as in reference.py, with B instead of T, and a state f32[B, K, R, dk, dv]
    for each."""
    state = state * jnp.exp(decay)[..., None, None]
    # Sums of products, not products of matrices: each state is read once, and there is nothing to share.
    known = jnp.sum(state * k[:, :, None, :, None], axis=-2)
    change = beta[..., None] * (v.astype(jnp.float32) - known)
    state += k[:, :, None, :, None] * change[:, :, :, None]
    return jnp.sum(state * q[:, :, None, :, None], axis=-2), state


def delta_chunks(
    tokens: Tokens,
    states: jax.Array,
    rows: tuple[jax.Array, jax.Array],
    slots: jax.Array,
    is_first: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Apply the rule to rows of any number of tokens. Only real chunks are computed, whatever T and B are.

    Args:
        tokens: T tokens.
        states: f32[S, K, R, dk, dv].
        rows: i32[B] each: the first token of each row, and its number of tokens; 0: the row is left out.
        slots, is_first: see DeltaRows.

    Returns:
        [T, K, R, dv] in v's dtype, arbitrary for rows that are left out; and the states after these tokens.
    """
    T, (K, R, dv), dk = tokens[0].shape[0], tokens[2].shape[1:], tokens[0].shape[2]
    size = _chunk_size(T)
    starts, counts = rows
    num_chunks = -(-counts // size)
    ends = jnp.cumsum(num_chunks)
    most = -(-T // size) + min(counts.shape[0], T)
    group = min(GROUP, most)

    def of_group(number: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        chunk = number * group + jnp.arange(group)
        is_real = chunk < ends[-1]
        row = jnp.searchsorted(ends, jnp.minimum(chunk, ends[-1] - 1), side="right", method="compare_all")
        begin = (chunk - (ends - num_chunks)[row]) * size  # in its row
        length = jnp.where(is_real, jnp.clip(counts[row] - begin, 0, size), 0)
        token = jnp.where(is_real, starts[row] + begin, T)
        parts = _within_chunks(_gather(tokens, token, length, size))
        begins_row, fresh = is_real & (begin == 0), is_first[row]
        return lax.scan(_next_chunk, carry, (*parts, begins_row, fresh, slots[row], token))[0]

    state, out = jnp.zeros((K, R, dk, dv), jnp.float32), jnp.zeros((T + size, K, R, dv), tokens[2].dtype)
    _, states, out = lax.fori_loop(0, -(-ends[-1] // group), of_group, (state, states, out))
    return out[:T], states


def _chunk_size(num_tokens: int) -> int:
    """Choose the tokens of a chunk, a power of two."""
    return int(min(CHUNK, 1 << max(0, num_tokens - 1).bit_length()))


def _gather(tokens: Tokens, start: jax.Array, length: jax.Array, size: int) -> Tokens:
    """Gather the tokens of G chunks, [T, …] → [G, …]: q and k [G, K, C, dk], v [G, K, R, C, dv], decay and beta [G, K,
    R, C]. Beyond the length of a chunk nothing decays and nothing is added."""
    place = jnp.arange(size)
    token = jnp.minimum(start[:, None] + place, tokens[0].shape[0] - 1)
    is_real = (place < length[:, None])[:, :, None, None]
    q, k, v, decay, beta = (array[token] for array in tokens)
    decay, beta = (jnp.moveaxis(jnp.where(is_real, array, 0.0), 1, -1) for array in (decay, beta))
    wide = jnp.moveaxis(v.astype(jnp.float32), 1, 3)
    return jnp.swapaxes(q, 1, 2), jnp.swapaxes(k, 1, 2), wide, decay, beta


def _within_chunks(tokens: Tokens) -> tuple[jax.Array, ...]:
    """Compute the parts of G chunks that need no state: U, W, (Q Kᵀ) D, exp(g) Q, exp(g[last] - g) K and
    exp(g[last])."""
    q, k, v, decay, beta = tokens
    size = q.shape[2]
    until = jnp.cumsum(decay, axis=-1)  # [G, K, R, C]
    place = jnp.arange(size)
    is_before = place[:, None] > place
    # Masked before the exponential: above the diagonal it would overflow.
    between = jnp.where(is_before | jnp.eye(size, dtype=bool), until[..., :, None] - until[..., None, :], -jnp.inf)
    between = jnp.exp(between)  # D [G, K, R, C, C]
    keys = _product("gkid,gkjd->gkij", k, k)[:, :, None]
    queries = _product("gkid,gkjd->gkij", q, k)[:, :, None]
    inverse = _inverse(jnp.where(is_before, beta[..., None] * keys * between, 0.0))
    wide_k, wide_q = k[:, :, None], q[:, :, None]
    added = _product("gkrij,gkrjd->gkrid", inverse, beta[..., None] * v)
    read = _product("gkrij,gkrjd->gkrid", inverse, (beta * jnp.exp(until))[..., None] * wide_k)
    last = until[..., -1:]
    return (
        added,
        read,
        queries * between,
        jnp.exp(until)[..., None] * wide_q,
        jnp.exp(last - until)[..., None] * wide_k,
        jnp.exp(last)[..., None],
    )


def _next_chunk(carry: tuple[jax.Array, ...], chunk: tuple[jax.Array, ...]) -> tuple[tuple[jax.Array, ...], None]:
    """Compute the next chunk. It writes its row's state, so the state after the row's last chunk stays. An empty
    chunk changes nothing: it continues the last row's state, and its results go after all tokens."""
    state, states, out = carry
    added, read, scores, queries, keys, kept, begins_row, fresh, slot, token = chunk
    found = jnp.where(fresh, 0.0, lax.dynamic_index_in_dim(states, slot, keepdims=False))
    state = jnp.where(begins_row, found, state)
    new = added - _product("krid,krde->krie", read, state)
    result = _product("krid,krde->krie", queries, state) + _product("krij,krje->krie", scores, new)
    state = state * kept + _product("krid,krie->krde", keys, new)
    # Tokens behind the end of a row are overwritten by those whose they are: chunks come in their order.
    out = lax.dynamic_update_slice_in_dim(out, jnp.moveaxis(result, 2, 0).astype(out.dtype), token, axis=0)
    return (state, lax.dynamic_update_index_in_dim(states, state, slot, axis=0), out), None


def _inverse(lower: jax.Array) -> jax.Array:
    """Compute (1 + A)⁻¹ of A [..., C, C], zeros on and above the diagonal; C is a power of two. Small blocks use
    forward substitution; those of 2, 4, … times their width are combined from them: equally stable, unlike a series of
    powers of A.

    Blocks are multiplied as parts of whole matrices: XLA:TPU takes 8 s to compile one product of smaller ones.
    """
    *outer, size, _ = lower.shape
    width = min(size, SMALL)
    count = size // width
    blocks = _substitute(_diagonal(lower.reshape(*outer, count, width, count, width)))
    apart = jnp.eye(count, dtype=lower.dtype)[:, None, :, None]
    inverse: jax.Array = (blocks[..., :, :, None, :] * apart).reshape(lower.shape)
    place = jnp.arange(size)
    while width < size:
        block = place // width
        is_corner = (block[:, None] % 2 == 1) & (block[None, :] == block[:, None] - 1)
        corners = _product("...ij,...jk->...ik", inverse, jnp.where(is_corner, lower, 0.0))
        inverse -= _product("...ij,...jk->...ik", corners, inverse)
        width *= 2
    return inverse


def _diagonal(blocks: jax.Array) -> jax.Array:
    """Take the diagonal blocks: [..., N, w, N, w] → [..., N, w, w]."""
    return jnp.moveaxis(jnp.diagonal(blocks, axis1=-4, axis2=-2), -1, -3)


def _substitute(lower: jax.Array) -> jax.Array:
    """Compute (1 + A)⁻¹ of A [..., w, w], row after row. Uses a loop and sums of products: products of many such small
    matrices take XLA:TPU minutes to compile."""

    def row(i: jax.Array, inverse: jax.Array) -> jax.Array:
        factors = lax.dynamic_index_in_dim(lower, i, axis=-2, keepdims=False)
        new = -jnp.sum(factors[..., None] * inverse, axis=-2) + (jnp.arange(lower.shape[-1]) == i)
        known: jax.Array = lax.dynamic_update_index_in_dim(inverse, new, i, axis=lower.ndim - 2)
        return known

    identity = jnp.broadcast_to(jnp.eye(lower.shape[-1], dtype=lower.dtype), lower.shape)
    inverse: jax.Array = lax.fori_loop(1, lower.shape[-1], row, identity)
    return inverse


def _product(subscripts: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """Multiply in float32 even where a device would use fewer bits: errors add up over a sequence."""
    product: jax.Array = jnp.einsum(subscripts, x, y, precision=lax.Precision.HIGHEST)
    return product
