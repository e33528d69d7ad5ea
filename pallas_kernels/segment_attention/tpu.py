"""The TPU backend: one kernel, which holds all keys and values of a head in vector memory.

A program has a block of queries of one head. It walks over the blocks of keys from the first that one of its queries
sees to the last, so work grows with the segments. Keys and values come in once a head, while the one before computes.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.segment_attention.segments import LOWEST, SegmentOptions, Segments, block_ranges
from palladio.pallas_kernels.tpu_mode import interpret_mode, require

LANES = 128
BLOCK = 256  # tokens, of queries and of keys
SMALL_BLOCK = 128  # of steps of fewer tokens
DTYPES = ("bfloat16", "float32")
MIB = 2**20
VMEM = {"v4": 16 * MIB, "v5e": 128 * MIB, "v5p": 64 * MIB, "v6e": 128 * MIB, "7x": 64 * MIB}
WORKING = 8 * MIB  # of a program: scores, weights, and what spills
LOG2E = math.log2(math.e)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, options: SegmentOptions) -> jax.Array:
    """Attend: q [T, N, H], k and v [T, K, H] → [T, N, H]; 0 for padding.

    Raises:
        NotImplementedError: the target is no TPU, scores have a bias, or keys do not fit vector memory.
    """
    require(options.target)
    if options.bias is not None:
        raise NotImplementedError("it adds no bias to scores")
    if q.dtype.name not in DTYPES:
        raise NotImplementedError(f"it computes in {', '.join(DTYPES)}, not {q.dtype}")
    T, N, H = q.shape
    K, width = k.shape[1], -(-H // LANES) * LANES
    block = BLOCK if T >= BLOCK else SMALL_BLOCK
    extra = -T % block
    vmem = _vector_memory(T + extra, width, block, q.dtype.itemsize, options)
    rows, keys, values = (
        jnp.pad(x, ((0, extra), (0, 0), (0, width - H))).transpose(1, 0, 2) for x in (q, k, v)
    )  # [heads, T, lanes]
    first, end = (jnp.pad(bound, (0, extra)) for bound in segments.seen(options.window))
    low, high = block_ranges(first, end, block)
    of_queries = pl.BlockSpec((1, block, width), lambda head, number, *_: (head, number, 0))
    of_keys = pl.BlockSpec((1, T + extra, width), lambda head, number, *_: (head // (N // K), 0, 0))
    bounds = pl.BlockSpec((block, 2), lambda head, number, *_: (number, 0))
    out: jax.Array = pl.pallas_call(
        functools.partial(_kernel, scale=options.scale * LOG2E),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(N, (T + extra) // block),
            in_specs=[bounds, of_queries, of_keys, of_keys],
            out_specs=of_queries,
        ),
        out_shape=jax.ShapeDtypeStruct(rows.shape, q.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=vmem, disable_bounds_checks=True
        ),
        interpret=interpret_mode(options.target),
        name="segment_attention",
    )(low // block, -(-high // block), jnp.stack([first, end], axis=1), rows, keys, values)
    return out[:, :T, :H].transpose(1, 0, 2)


def _vector_memory(num_tokens: int, width: int, block: int, itemsize: int, options: SegmentOptions) -> int:
    """Return the bytes of vector memory that the kernel needs: two buffers of each operand, and what it works with.

    Raises:
        NotImplementedError: a device has less.
    """
    needed = 2 * itemsize * width * (2 * num_tokens + 2 * block) + 2 * block * LANES * 4 + WORKING
    most = int(VMEM.get(options.target.kind, min(VMEM.values())) * 0.9)
    if needed > most and options.target.interpret is None:
        raise NotImplementedError(
            f"{num_tokens} tokens: keys and values of a head take {needed // MIB} MiB of {most // MIB} of vector memory"
        )
    return max(needed, min(most, 32 * MIB))


def _kernel(
    low: jax.Array,
    high: jax.Array,
    bounds: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    out: jax.Array,
    *,
    scale: float,
) -> None:
    """Compute a block of one head.

    Args:
        low, high: i32[blocks], first block of keys of each block of queries, and the one after its last.
        bounds: i32[block, 2], first token that each query sees, and the one after the last.
        q: [1, block, W]; k and v: [1, T, W].
        scale: factor on scores, in units of log2.
    """
    number, (_, block, width) = pl.program_id(1), q.shape
    rows, begin, end = q[0], bounds[:, 0:1], bounds[:, 1:2]
    precision = lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    dot = functools.partial(lax.dot_general, precision=precision, preferred_element_type=jnp.float32)

    def add(index: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        peak, total, output = state
        at = pl.multiple_of(index * block, block)
        scores = dot(rows, k[0, pl.ds(at, block), :], (((1,), (1,)), ((), ()))) * scale
        token = at + lax.broadcasted_iota(jnp.int32, (block, block), 1)
        scores = jnp.where((token >= begin) & (token < end), scores, LOWEST)
        highest = jnp.maximum(peak, scores.max(axis=1, keepdims=True))
        weights = jnp.exp2(scores - highest)
        decay = jnp.exp2(peak - highest)
        sums = dot(weights.astype(v.dtype), v[0, pl.ds(at, block), :], (((1,), (0,)), ((), ())))
        return highest, total * decay + weights.sum(axis=1, keepdims=True), output * decay + sums

    # Masked scores are far below the first peak, so that a row which has seen no key yet has no weights.
    start = (
        jnp.full((block, 1), LOWEST / 2, jnp.float32),
        jnp.zeros((block, 1), jnp.float32),
        jnp.zeros((block, width), jnp.float32),
    )
    _, total, output = lax.fori_loop(low[number], high[number], add, start)
    out[0] = (output / jnp.maximum(total, jnp.finfo(jnp.float32).tiny)).astype(out.dtype)
