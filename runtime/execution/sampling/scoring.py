"""Log-probabilities of given tokens and of the likeliest tokens under the model's own distribution."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from palladio.runtime.interface.request.sampling_params import MAX_LOGPROBS

_BLOCK = 128  # columns a block of the two-level top-k; a TPU's lane width
_CHUNK = 128  # rows of logits that are alive at once when a prompt is scored


def top_k_exact(values: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest values of each row, best first, equal values by lowest id; several times `lax.top_k`'s speed.

    Two levels: an element among the first k (by value, then id) can only lie in one of the first k blocks (by
    maximum, then id), because each earlier block holds an element that goes before it. So only k blocks of 128
    columns are searched.

    Args:
        values: f32[B, V], without NaN.
        k: static; if V < k, the ids from V on fill up with value -inf.

    Returns:
        values f32[B, k] and ids i32[B, k].
    """
    B, V = values.shape
    num_blocks = -(-V // _BLOCK)
    padded = jnp.pad(values, ((0, 0), (0, num_blocks * _BLOCK - V)), constant_values=-jnp.inf)
    if num_blocks <= 4 * k:  # a small vocabulary: the second level would cost more than it saves
        top_values, top_ids = lax.top_k(padded, k)
        return top_values, top_ids.astype(jnp.int32)
    blocks = padded.reshape(B, num_blocks, _BLOCK)
    _, block_ids = lax.top_k(blocks.max(axis=-1), k)
    block_ids = jnp.sort(block_ids, axis=-1).astype(jnp.int32)  # ascending ids, so that ties stay in order below
    candidates = jnp.take_along_axis(blocks, block_ids[:, :, None], axis=1).reshape(B, k * _BLOCK)
    top_values, where = lax.top_k(candidates, k)
    top_blocks = jnp.take_along_axis(block_ids, where // _BLOCK, axis=1)
    return top_values, (top_blocks * _BLOCK + where % _BLOCK).astype(jnp.int32)


Scores = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def token_logprobs(logits: jax.Array, token_ids: jax.Array, asked_ids: jax.Array, top_n: int = MAX_LOGPROBS) -> Scores:
    """Log-softmax of given tokens, of the likeliest ones and of the requested ones.

    A token that is several of these gets the same float in each: logit and normalizer are the same numbers.

    Args:
        logits: f32[B, V].
        token_ids: i32[B].
        asked_ids: i32[B, K], in 0 … V-1; of others, the result means nothing.
        top_n: static.

    Returns:
        logprobs f32[B] of token_ids, top_ids i32[B, top_n] (best first, ties by lowest id), top_logprobs f32[B, top_n],
        and those of asked_ids f32[B, K].
    """
    normalizer = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    top_logits, top_ids = top_k_exact(logits, top_n)
    chosen = jnp.take_along_axis(logits, token_ids[:, None], axis=1)
    asked = jnp.take_along_axis(logits, asked_ids, axis=1, mode="clip")
    return (chosen - normalizer)[:, 0], top_ids, top_logits - normalizer, asked - normalizer


def score_tokens(
    logits_fn: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    target_ids: jax.Array,
    asked_ids: jax.Array,
    slots: jax.Array,
    top_n: int = MAX_LOGPROBS,
    chunk: int = _CHUNK,
) -> Scores:
    """Log-probability of each target under the logits of its row; [T, V] is never materialized.

    Args:
        logits_fn: the LM head, [rows, D] → f32[rows, V]; called once, traced for `chunk` rows.
        hidden: [T, D]; row t predicts target_ids[t].
        target_ids: i32[T], in 0 … V-1; what padding rows hold is only junk in, junk out.
        asked_ids: i32[slots, K], see `token_logprobs`.
        slots: i32[T], whose asked_ids are those of row t.
        top_n: static, how many likeliest tokens to report.
        chunk: static, rows of logits alive at once.

    Returns:
        logprobs f32[T], top_ids i32[T, top_n], top_logprobs f32[T, top_n], asked logprobs f32[T, K]: see
        `token_logprobs`.
    """
    T, D = hidden.shape
    chunk = min(chunk, T)
    num_chunks = -(-T // chunk)
    padding = num_chunks * chunk - T
    hidden_chunks = jnp.pad(hidden, ((0, padding), (0, 0))).reshape(num_chunks, chunk, D)
    target_chunks, slot_chunks = (
        jnp.pad(column, (0, padding)).reshape(num_chunks, chunk) for column in (target_ids, slots)
    )
    scores: Scores = lax.map(
        lambda rows: token_logprobs(logits_fn(rows[0]).astype(jnp.float32), rows[1], asked_ids[rows[2]], top_n),
        (hidden_chunks, target_chunks, slot_chunks),
    )
    logprobs, *tables = scores
    top_ids, top_logprobs, asked = (table.reshape(-1, table.shape[-1])[:T] for table in tables)
    return logprobs.reshape(-1)[:T], top_ids, top_logprobs, asked
