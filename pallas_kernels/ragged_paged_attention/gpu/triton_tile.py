"""One block of keys and values against a tile of queries: the inner step that both Triton kernels repeat.

Scores are kept in units of log2, so that the softmax takes exp2, which is one instruction on the device. Lanes beyond
the head size and rows beyond a request's end are never read: they may hold anything.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.triton import Precision, load, matmul

LOG2E = math.log2(math.e)
MIN_ROWS = 16  # of a product's left side
LOWEST = -1e30  # not -inf: the difference of two of them must be a number


class Softmax(NamedTuple):
    """Running state of the online softmax over R rows.

    Attributes:
        output: f32[R, L], weighted sum of the values so far.
        peak: f32[R], highest score so far, in units of log2.
        total: f32[R], sum of the weights so far.
    """

    output: jax.Array
    peak: jax.Array
    total: jax.Array

    @classmethod
    def start(cls, num_rows: int, num_lanes: int) -> "Softmax":
        return cls(
            jnp.zeros((num_rows, num_lanes), jnp.float32),
            jnp.full((num_rows,), LOWEST, jnp.float32),
            jnp.zeros((num_rows,), jnp.float32),
        )

    def add(
        self, scores: jax.Array, values: jax.Array, precision: Precision, factors: jax.Array | None = None
    ) -> "Softmax":
        """Add one more block: scores f32[R, C] and values [C, L]. factors: f32[C], of the values; None: 1."""
        peak = jnp.maximum(self.peak, scores.max(axis=1))
        decay = jnp.exp2(self.peak - peak)
        weights = jnp.exp2(scores - peak[:, None])
        scaled = weights if factors is None else weights * factors[None, :]
        output = self.output * decay[:, None] + matmul(scaled.astype(values.dtype), values, precision)
        return Softmax(output, peak, self.total * decay + weights.sum(axis=1))

    def with_sinks(self, sinks: jax.Array) -> "Softmax":
        """Add sinks f32[R]: the score of one more key of each row, whose value is 0."""
        sinks = sinks * LOG2E
        peak = jnp.maximum(self.peak, sinks)
        decay = jnp.exp2(self.peak - peak)
        return Softmax(self.output * decay[:, None], peak, self.total * decay + jnp.exp2(sinks - peak))

    def finish(self, v_scale: jax.Array) -> jax.Array:
        """Return the weighted means times v_scale f32[], as f32[R, L]; 0 for rows that saw no key."""
        return self.output * (v_scale / jnp.maximum(self.total, jnp.finfo(jnp.float32).tiny))[:, None]


class KeyBlock(NamedTuple):
    """Keys and values [C, L] as stored, and their factors f32[C]; None: 1."""

    keys: jax.Array
    values: jax.Array
    key_scales: jax.Array | None
    value_scales: jax.Array | None


@dataclasses.dataclass(frozen=True, slots=True)
class CacheReader:
    """Reads blocks of one kv head's keys and values, and scores queries with them.

    Attributes:
        kv_ref: [P·K·S, 2·Hp] the cache as rows.
        table_ref: i32[B·Pmax] the block table.
        head: i32[], the kv head.
        num_kv_heads: K.
        page_size: S.
        table_width: Pmax.
        head_size: H.
        value_lane: Hp, where the values begin.
        dtype: dtype of the factors of products.
        precision: precision of products.
        block: tokens a block (C).
        scale: f32[], factor on q·k, with that of the stored keys.
        soft_cap: see AttentionOptions.
        scales_ref: [P, R, C·S], of a cache of int8, see ScaledPages.
    """

    kv_ref: jax.Array
    table_ref: jax.Array
    head: jax.Array
    num_kv_heads: int
    page_size: int
    table_width: int
    head_size: int
    value_lane: int
    dtype: jnp.dtype
    precision: Precision
    block: int
    scale: jax.Array
    soft_cap: float | None
    scales_ref: jax.Array | None = None

    @property
    def num_lanes(self) -> int:
        """Lanes of a tile (L): the head size rounded up to a power of two, which Triton needs."""
        return tile_lanes(self.head_size)

    def read(
        self, request: jax.Array, first: jax.Array, end: jax.Array | None, begin: jax.Array | None = None
    ) -> KeyBlock:
        """Read keys and values of tokens first … first + C - 1 of a request.

        Args:
            end: tokens from here on are not read, and become zeros; None: all of them exist.
            begin: tokens before this one have left the window: they are not read, and become zeros. Only with `end`.
        """
        tokens = self.tokens(first)
        valid = None if end is None else tokens < end
        if valid is not None and begin is not None:
            valid &= tokens >= begin
        base = request * self.table_width
        pages = load(self.table_ref, (base + lax.div(tokens, self.page_size),), valid)
        rows = (pages * self.num_kv_heads + self.head) * self.page_size + lax.rem(tokens, self.page_size)
        keys, values = self._load(rows, 0, valid), self._load(rows, self.value_lane, valid)
        if self.scales_ref is None:
            return KeyBlock(keys, values, None, None)
        of_keys, of_values = (
            self._load_scales(number, pages, tokens, valid) for number in (self.head, self.num_kv_heads + self.head)
        )
        return KeyBlock(keys, values, of_keys, of_values)

    def tokens(self, first: jax.Array) -> jax.Array:
        """Return the positions i32[C] of the block that begins there."""
        return first + lax.iota(jnp.int32, self.block)

    def scores(self, q: jax.Array, block: KeyBlock) -> jax.Array:
        """Score q [R, L] → f32[R, C], in units of log2."""
        scores = matmul(q, block.keys, self.precision, transpose=True)
        if block.key_scales is not None:
            scores *= block.key_scales[None, :]
        if self.soft_cap is None:
            return scores * (self.scale * LOG2E)
        # tanh by exp2: exact for large scores of either sign, where exp2 is 0 or inf.
        tanh = 1.0 - 2.0 / (jnp.exp2(scores * (2.0 * LOG2E * self.scale / self.soft_cap)) + 1.0)
        return tanh * (self.soft_cap * LOG2E)

    def _load_scales(
        self, number: jax.Array, pages: jax.Array, tokens: jax.Array, valid: jax.Array | None
    ) -> jax.Array:
        """Load the scales f32[C] of one number among a token's 2·K."""
        assert self.scales_ref is not None
        num_rows = self.scales_ref.shape[1]
        lanes = lax.div(number, num_rows) * self.page_size + lax.rem(tokens, self.page_size)
        return load(self.scales_ref, (pages, lax.rem(number, num_rows), lanes), valid)

    def _load(self, rows: jax.Array, first_lane: int, valid: jax.Array | None) -> jax.Array:
        shape = (self.block, self.num_lanes)
        mask = None if valid is None else lax.broadcast_in_dim(valid, shape, (0,))
        lanes = lax.broadcasted_iota(jnp.int32, shape, 1)
        if self.num_lanes != self.head_size:
            inside = lanes < self.head_size
            mask = inside if mask is None else mask & inside
        cells = lax.broadcast_in_dim(rows, shape, (0,)), first_lane + lanes
        return load(self.kv_ref, cells, mask).astype(self.dtype)


def tile_lanes(head_size: int) -> int:
    """Return the head size rounded up to a power of two, and at least the size that a product needs."""
    return max(16, 1 << (head_size - 1).bit_length())


def compute_dtype(q: jax.Array, kv_pages: jax.Array) -> jnp.dtype:
    """Return the dtype of products: a cache of 8 bits is widened to q's dtype."""
    return jnp.promote_types(q.dtype, kv_pages.dtype) if kv_pages.dtype.itemsize > 1 else jnp.dtype(q.dtype)
