"""Sparse vectors of texts: a weight for each token of the vocabulary that a text is about."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True, slots=True)
class SparseSpec:
    """How weights come about.

    Attributes:
        source: of a head of one number for each token of the text, as BGE-M3 has it; or of the logits of a masked
            language model at each token, as SPLADE has it.
        strategy: of the weights at all tokens of a text, the largest or the sum.
        num_logs: SPLADE: how often log(1 + x) is taken of the positive part of a logit; most models take it once.
    """

    source: Literal["tokens", "logits"] = "logits"
    strategy: Literal["max", "sum"] = "max"
    num_logs: int = 1


def token_weights(hidden: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """The weight of each token of a text, the positive part of a linear head.

    Args:
        hidden: [T, D], after the final norm. kernel: [1, D]. bias: [1].

    Returns:
        f32[T]. A text's weight of a vocabulary's token is the largest one among its positions with that token.
    """
    wide, row = hidden.astype(jnp.float32), kernel.astype(jnp.float32)
    found = jnp.matmul(wide, row.T, precision=lax.Precision.HIGHEST)[:, 0] + bias.astype(jnp.float32)[0]
    return jax.nn.relu(found)


def vocabulary_weights(
    spec: SparseSpec,
    logits_of: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    segment_of_token: jax.Array,
    num_segments: int,
    vocab_size: int,
    block: int = 256,
) -> jax.Array:
    """The weight of each token of the vocabulary for each text, out of the logits of a masked language model.

    Logits are computed for `block` tokens at a time, so there is no array of tokens × vocabulary.

    Args:
        logits_of: [block, D] → [block, V], the head of the language model.
        hidden: [T, D], after the final norm.
        segment_of_token, num_segments: see `pool`.

    Returns:
        f32[B, V]; 0 for most tokens.
    """
    num_tokens = hidden.shape[0]
    block = min(block, num_tokens)
    padding = -num_tokens % block
    padded = jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, block, hidden.shape[1])
    is_padding = (segment_of_token < 0) | (segment_of_token >= num_segments)
    segments = jnp.where(is_padding, num_segments, segment_of_token)
    blocks = jnp.pad(segments, (0, padding), constant_values=num_segments).reshape(-1, block)

    def add(total: jax.Array, one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        states, rows = one
        weights = jax.nn.relu(logits_of(states).astype(jnp.float32))
        for _ in range(spec.num_logs):
            weights = jnp.log1p(weights)
        if spec.strategy == "max":
            found = jax.ops.segment_max(weights, rows, num_segments=num_segments + 1)[:num_segments]
            return jnp.maximum(total, found), None
        return total + jax.ops.segment_sum(weights, rows, num_segments=num_segments + 1)[:num_segments], None

    total, _ = lax.scan(add, jnp.zeros((num_segments, vocab_size), jnp.float32), (padded, blocks))
    return total
