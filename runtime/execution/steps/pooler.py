"""The pool program: what a prefill step adds to its requests' embeddings, and those of the prompts that it ends."""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.runtime.execution.batch.batch_builder import ForwardLayout
from palladio.runtime.interface.request.embedding import Pooling

_TINY = 1e-12  # a shorter vector is divided by this: what torch's normalize does


def pool_step(
    pooled: jax.Array, hidden: jax.Array, packed: jax.Array, *, layout: ForwardLayout, pooling: Pooling
) -> tuple[jax.Array, jax.Array]:
    """Pools the hidden states of a prefill step.

    A row that begins with its request's first token begins anew, so what an earlier owner of the slot left, or the
    request itself before it was retracted, is never read.

    Args:
        pooled: f32[slots, D], what was pooled of each slot's request by earlier steps; [slots, 0] if the method needs
            nothing of them.
        hidden: [T, D], after the final norm.
        packed: i32[layout.size], see ForwardLayout.

    Returns:
        The new `pooled`, and f32[B, D]: the embedding of each row as if its prompt ended with this step. It is not
        finite where a hidden state that went into it is not.
    """
    _, slots, starts, stops, _, _ = (packed[part] for part in layout.sections)
    lengths = stops - starts
    ends = jnp.cumsum(lengths, dtype=jnp.int32)
    if pooling.method == "last":
        vectors = _rows(hidden, ends - 1)
    elif pooling.method == "cls":
        vectors = jnp.where((starts == 0)[:, None], _rows(hidden, ends - lengths), pooled[slots])
        pooled = pooled.at[slots].set(vectors)
    else:
        total = jnp.where((starts == 0)[:, None], 0.0, pooled[slots]) + _row_sums(hidden, ends, lengths)
        pooled = pooled.at[slots].set(total)
        vectors = total / jnp.maximum(stops, 1)[:, None]
    if pooling.normalizes:
        vectors /= jnp.maximum(jnp.linalg.norm(vectors, axis=1, keepdims=True), _TINY)
    return pooled, vectors


def _rows(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    return hidden[jnp.clip(positions, 0, hidden.shape[0] - 1)].astype(jnp.float32)


def _row_sums(hidden: jax.Array, ends: jax.Array, lengths: jax.Array) -> jax.Array:
    """The sum f32[B, D] of each row's tokens [ends - lengths, ends) of hidden [T, D].

    A product of matrices: unlike a scatter it adds in one order everywhere. It would spread non-finite values to all
    rows, so these are left out, and their own sums become NaN.
    """
    token = jnp.arange(hidden.shape[0], dtype=jnp.int32)
    is_member = (token >= (ends - lengths)[:, None]) & (token < ends[:, None])
    is_finite = jnp.isfinite(hidden).all(axis=1)
    wide = jnp.where(is_finite[:, None], hidden, 0).astype(jnp.float32)
    sums = jnp.matmul(is_member.astype(jnp.float32), wide, precision=lax.Precision.HIGHEST)
    return jnp.where((is_member & ~is_finite).any(axis=1)[:, None], jnp.nan, sums)
