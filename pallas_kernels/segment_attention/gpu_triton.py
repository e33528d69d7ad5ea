"""The backend for GPUs: a Pallas kernel by way of Triton.

A program has a block of queries of one head, and loops over the keys from the first that one of its queries sees to the
last. It reads queries, keys and values where they are: nothing is padded or laid out anew.
"""

import dataclasses
import functools
from typing import Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from palladio.pallas_kernels.ragged_paged_attention.gpu.triton_tile import LOG2E, Softmax, tile_lanes
from palladio.pallas_kernels.segment_attention.segments import LOWEST, SegmentOptions, Segments, block_ranges
from palladio.pallas_kernels.triton import DTYPES, Precision, load, matmul, product_precision, refusal, store

MAX_HEAD_SIZE = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Blocks:
    """Block sizes of the kernel.

    Attributes:
        queries: tokens of a block of queries; a power of two.
        keys: tokens of a block of keys; a power of two.
        num_warps: warps of a program.
        num_stages: stages of its pipeline of loads.
    """

    queries: int
    keys: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, head_size: int, dtype: jnp.dtype) -> Self:
        """Choose the sizes for a head size and a dtype of products."""
        lanes = tile_lanes(head_size)
        if dtype == jnp.float32:  # whose factors are kept twice, each rounded to TensorFloat and the rest
            return cls(32, 32, 4, 2) if lanes <= 64 else cls(32, 32, 8, 2) if lanes <= 128 else cls(16, 16, 8, 2)
        return cls(128, 64, 8, 2) if lanes <= 128 else cls(64, 32, 8, 2)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, options: SegmentOptions) -> jax.Array:
    """Attend: q [T, N, H], k and v [T, K, H] → [T, N, H]; 0 for padding.

    Raises:
        NotImplementedError: the target is no GPU of compute capability 8.0 or more, or the kernel does not support the
            layer.
    """
    if (reason := refusal(options.target)) is not None:
        raise NotImplementedError(reason)
    if options.bias is not None:
        raise NotImplementedError("it adds no bias to scores")
    if q.dtype.name not in DTYPES:
        raise NotImplementedError(f"it computes in {', '.join(DTYPES)}, not {q.dtype}")
    T, N, H = q.shape
    if H > MAX_HEAD_SIZE:
        raise NotImplementedError(f"heads of {H}: its tiles have up to {MAX_HEAD_SIZE}")
    blocks = Blocks.of(H, q.dtype)
    first, end = segments.seen(options.window)
    padding = (0, -T % blocks.queries)
    low, high = block_ranges(jnp.pad(first, padding), jnp.pad(end, padding), blocks.queries)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    out: jax.Array = pl.pallas_call(
        functools.partial(
            _kernel,
            blocks=blocks,
            precision=product_precision(q.dtype, options.target),
            scale=options.scale * LOG2E,
        ),
        grid=(N, low.shape[0]),
        in_specs=[anywhere] * 7,
        out_specs=anywhere,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=pltriton.CompilerParams(num_warps=blocks.num_warps, num_stages=blocks.num_stages),
        interpret=options.target.interpret is not None,
        name="segment_attention",
    )(q, k, v, first, end, low, high)
    return out


def _kernel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    first: jax.Array,
    end: jax.Array,
    low: jax.Array,
    high: jax.Array,
    out: jax.Array,
    *,
    blocks: Blocks,
    precision: Precision,
    scale: float,
) -> None:
    """Run program (h, i): block i of query head h.

    Args:
        first, end: i32[T], tokens that each token sees; low, high: i32[blocks], those that a block sees.
        scale: factor on scores, in units of log2.
    """
    (T, N, H), K, lanes = q.shape, k.shape[1], tile_lanes(q.shape[2])
    head, number = pl.program_id(0), pl.program_id(1)
    kv_head = lax.div(head, N // K)
    token = number * blocks.queries + lax.iota(jnp.int32, blocks.queries)
    is_token = token < T
    begin, stop = load(first, (token,), is_token), load(end, (token,), is_token)
    lane = lax.broadcasted_iota(jnp.int32, (1, lanes), 1)
    is_lane = lane < H

    def rows(ref: jax.Array, tokens: jax.Array, valid: jax.Array, of: jax.Array) -> jax.Array:
        shape = (tokens.shape[0], lanes)
        cells = jnp.broadcast_to(tokens[:, None], shape), jnp.full(shape, of), jnp.broadcast_to(lane, shape)
        return load(ref, cells, jnp.broadcast_to(valid[:, None] & is_lane, shape))

    own = rows(q, token, is_token, head)
    last = high[number]

    def add(index: jax.Array, softmax: Softmax) -> Softmax:
        keys = low[number] + index * blocks.keys + lax.iota(jnp.int32, blocks.keys)
        valid = keys < last
        scores = matmul(own, rows(k, keys, valid, kv_head), precision, transpose=True) * scale
        seen = (keys[None, :] >= begin[:, None]) & (keys[None, :] < stop[:, None])
        # Far below the first peak, so that a row which has seen no key yet has no weights.
        scores = jnp.where(seen, scores, 2.0 * LOWEST)
        return softmax.add(scores, rows(v, keys, valid, kv_head), precision)

    num_blocks = pl.cdiv(last - low[number], blocks.keys)
    softmax = lax.fori_loop(0, num_blocks, add, Softmax.start(blocks.queries, lanes))
    shape = (blocks.queries, lanes)
    cells = jnp.broadcast_to(token[:, None], shape), jnp.full(shape, head), jnp.broadcast_to(lane, shape)
    store(out, cells, softmax.finish(jnp.float32(1)), jnp.broadcast_to(is_token[:, None] & is_lane, shape))
