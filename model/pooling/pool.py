"""Vectors of texts out of the hidden states of their tokens, which lie packed one text behind the other."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import jax
import jax.numpy as jnp
from jax import lax

from palladio.model.pooling.pooling_spec import Activation, Dense, Normalize, PoolingMethod, PoolingSpec, VectorStep

_TINY = 1e-12  # a shorter vector is divided by this: what torch's normalize does
_NORM_EPSILON = 1e-5  # torch's default, which sentence-transformers leaves as it is


@dataclasses.dataclass(frozen=True)
class PackedRows:
    """Where the texts of a step lie among its T tokens, and which part of each text that is.

    Attributes:
        begins, ends: i32[B], the first token of each text in the step, and the one behind its last.
        starts: i32[B], the position of its first token in the text: 0, unless steps before have computed a part.
        skipped: i32[B], positions before this one do not count; None: all count.
    """

    begins: jax.Array
    ends: jax.Array
    starts: jax.Array
    skipped: jax.Array | None = None

    @classmethod
    def of_segments(cls, segment_of_token: jax.Array, num_segments: int, skipped: jax.Array | None = None) -> Self:
        """The rows of whole texts.

        Args:
            segment_of_token: i32[T], the number of each token's text; tokens of one text stand together. Padding has
                a number outside 0 … num_segments - 1.
        """
        is_member = segment_of_token == jnp.arange(num_segments, dtype=jnp.int32)[:, None]
        begins = jnp.argmax(is_member, axis=1).astype(jnp.int32)
        ends = begins + is_member.sum(axis=1, dtype=jnp.int32)
        return cls(begins, ends, jnp.zeros_like(begins), skipped)

    @property
    def stops(self) -> jax.Array:
        """i32[B], the position in its text behind each text's last token of the step."""
        return self.starts + self.ends - self.begins

    @property
    def first_counted(self) -> jax.Array:
        """i32[B], the first position that counts; of a text whose positions are all skipped, its last one."""
        if self.skipped is None:
            return jnp.zeros_like(self.starts)
        return jnp.minimum(self.skipped, jnp.maximum(self.stops - 1, 0))

    def positions(self, num_tokens: int) -> tuple[jax.Array, jax.Array]:
        """For each text and token of the step the token's position in the text, i32[B, T], and whether it counts."""
        token = jnp.arange(num_tokens, dtype=jnp.int32)
        positions = self.starts[:, None] + token - self.begins[:, None]
        is_member = (token >= self.begins[:, None]) & (token < self.ends[:, None])
        return positions, is_member & (positions >= self.first_counted[:, None])


def pool(
    spec: PoolingSpec,
    hidden: jax.Array,
    segment_of_token: jax.Array,
    num_segments: int,
    weights: Sequence[jax.Array] = (),
    skipped: jax.Array | None = None,
) -> jax.Array:
    """Make a vector of each of B texts, which the step has whole.

    Args:
        hidden: [T, D], after the final norm.
        segment_of_token: i32[T], see PackedRows.of_segments. num_segments: B.
        weights: the tensors of `spec.tensors`.
        skipped: i32[B], see PackedRows; None: all tokens count.

    Returns:
        f32[B, D']. It is not finite where a hidden state that went into it is not; texts without tokens have any value.
    """
    rows = PackedRows.of_segments(segment_of_token, num_segments, skipped)
    carried = jnp.zeros((num_segments, spec.num_carried * spec.token_size(hidden.shape[1])), jnp.float32)
    return pool_rows(spec, hidden, rows, carried, weights)[1]


def pool_rows(
    spec: PoolingSpec, hidden: jax.Array, rows: PackedRows, carried: jax.Array, weights: Sequence[jax.Array] = ()
) -> tuple[jax.Array, jax.Array]:
    """Make vectors of texts, of which steps before may have computed a part.

    A text that begins with the step begins anew, so its row of `carried` is not read.

    Args:
        hidden: [T, D], after the final norm.
        carried: f32[B, num_carried · D], what steps before have left of each text; see PoolingSpec.
        weights: the tensors of `spec.tensors`.

    Returns:
        The new `carried`, and f32[B, D']: the vector of each text as if it ended with this step.
    """
    vectors_of_tokens = token_vectors(spec, hidden, weights)
    num_before = sum(len(step.tensors) for step in spec.token_steps)
    size = vectors_of_tokens.shape[1]
    parts: list[jax.Array] = []
    kept: list[jax.Array] = []
    for method in spec.methods:
        if method == "last":
            parts.append(_rows(vectors_of_tokens, rows.ends - 1))
            continue
        before = carried[:, len(kept) * size : (len(kept) + 1) * size]
        total = _combine(method, vectors_of_tokens, rows, before)
        kept.append(total)
        parts.append(_finish(method, total, rows))
    vectors = jnp.concatenate(parts, axis=1)
    new = jnp.concatenate(kept, axis=1) if kept else carried
    return new, apply_steps(spec.steps, vectors, weights[num_before:])


def token_vectors(spec: PoolingSpec, hidden: jax.Array, weights: Sequence[jax.Array] = ()) -> jax.Array:
    """Make a vector of each token: hidden [T, D] → [T, D'], f32 where there are steps. `weights` as for `pool`."""
    return apply_steps(spec.token_steps, hidden, weights) if spec.token_steps else hidden


def apply_steps(steps: Sequence[VectorStep], vectors: jax.Array, weights: Sequence[jax.Array]) -> jax.Array:
    """Do to vectors [N, D] what the steps say, in float32 → f32[N, D'].

    Args:
        weights: the tensors of these steps first; those behind are not read.
    """
    x = vectors.astype(jnp.float32)
    left = iter(weights)
    for step in steps:
        own = {name: next(left).astype(jnp.float32) for name in step.tensors}
        if isinstance(step, Normalize):
            x = x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), _TINY)
        elif isinstance(step, Dense):
            x = _dense(step, x, own)
        else:
            centred = x - x.mean(axis=-1, keepdims=True)
            variance = jnp.square(centred).mean(axis=-1, keepdims=True)
            x = centred * lax.rsqrt(variance + _NORM_EPSILON) * own["norm.weight"] + own["norm.bias"]
    return x


def _dense(step: Dense, x: jax.Array, own: dict[str, jax.Array]) -> jax.Array:
    y = _product(x, own["linear.weight"])
    if step.has_bias:
        y = y + own["linear.bias"]
    y = _activate(step.activation, y)
    if not step.adds_input:
        return y
    return y + (_product(x, own["residual.weight"]) if "residual.weight" in own else x)


def _product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """x [N, D] times a matrix [D', D] → [N, D']."""
    return jnp.matmul(x, matrix.T, precision=lax.Precision.HIGHEST)


def _activate(activation: Activation, x: jax.Array) -> jax.Array:
    match activation:
        case "identity":
            return x
        case "tanh":
            return jnp.tanh(x)
        case "relu":
            return jax.nn.relu(x)
        case "gelu":
            return jax.nn.gelu(x, approximate=False)
        case "silu":
            return jax.nn.silu(x)
        case "sigmoid":
            return jax.nn.sigmoid(x)


def _combine(method: PoolingMethod, hidden: jax.Array, rows: PackedRows, before: jax.Array) -> jax.Array:
    """What a method keeps of the texts up to this step.

    Args:
        before: f32[B, D], the same of the steps before.
    """
    begins_anew = (rows.starts == 0)[:, None]
    first = rows.first_counted
    if method == "cls":
        has_first = (rows.starts <= first) & (first < rows.stops)
        return jnp.where(has_first[:, None], _rows(hidden, rows.begins + first - rows.starts), before)
    positions, counts = rows.positions(hidden.shape[0])
    if method == "max":
        largest = _row_maxima(hidden, counts)
        return jnp.where(begins_anew, largest, jnp.maximum(before, largest))
    factors = positions + 1 if method == "weighted_mean" else 1
    sums = _row_sums(hidden, jnp.where(counts, factors, 0).astype(jnp.float32))
    return jnp.where(begins_anew, 0.0, before) + sums


def _finish(method: PoolingMethod, total: jax.Array, rows: PackedRows) -> jax.Array:
    """A method's vectors f32[B, D], of what it has kept."""
    first, stops = rows.first_counted.astype(jnp.float32), rows.stops.astype(jnp.float32)
    count = jnp.maximum(stops - first, 1.0)[:, None]
    match method:
        case "mean":
            return total / count
        case "mean_sqrt_len":
            return total / jnp.sqrt(count)
        case "weighted_mean":
            weight = (stops * (stops + 1) - first * (first + 1)) / 2
            return total / jnp.maximum(weight, 1.0)[:, None]
        case _:
            return total


def _rows(hidden: jax.Array, places: jax.Array) -> jax.Array:
    return hidden[jnp.clip(places, 0, hidden.shape[0] - 1)].astype(jnp.float32)


def _row_sums(hidden: jax.Array, factors: jax.Array) -> jax.Array:
    """The sum f32[B, D] of the tokens of hidden [T, D], each times its factor in f32[B, T].

    A product of matrices: unlike a scatter it adds in one order everywhere. It would spread non-finite values to all
    rows, so these are left out, and their own sums become NaN.
    """
    is_finite = jnp.isfinite(hidden).all(axis=1)
    wide = jnp.where(is_finite[:, None], hidden, 0).astype(jnp.float32)
    sums = jnp.matmul(factors, wide, precision=lax.Precision.HIGHEST)
    return jnp.where(((factors != 0) & ~is_finite).any(axis=1)[:, None], jnp.nan, sums)


def _row_maxima(hidden: jax.Array, counts: jax.Array) -> jax.Array:
    """The largest of each number, f32[B, D], among the tokens of hidden [T, D] that count, bool[B, T]; no token counts
    for two rows. Rows without tokens are -inf."""
    num_rows = counts.shape[0]
    row = jnp.where(counts.any(axis=0), jnp.argmax(counts, axis=0), num_rows)
    largest: jax.Array = jax.ops.segment_max(hidden.astype(jnp.float32), row, num_segments=num_rows + 1)
    return largest[:num_rows]
