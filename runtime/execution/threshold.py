"""The threshold that top_k and top_p keep, without a sort, and the integer image of float32 that it is found in."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

_IMAGE_BITS = 32
_MAX_PARTS = 64  # of a vocabulary: a multiple of the devices that share one
_SIGN = 1 << 31  # turns an i32 into a u32 of the same order, and back


def ordered_image(values: jax.Array) -> jax.Array:
    """Integers in the order of the floats, equal where they are equal (so for -0 and 0). f32[B, V] → i32[B, V]"""
    bits = lax.bitcast_convert_type(jnp.where(values == 0, 0.0, values), jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def largest_threshold(
    image: jax.Array, masses: jax.Array, enough: jax.Array, low: jax.Array, used: jax.Array
) -> jax.Array:
    """The largest t with Σ masses[image ≥ t] ≥ enough, for used rows; low for others.

    Every form below finds the same t: they differ in how many bits of it a pass over the vocabulary finds. A CPU sums
    one threshold at a time fastest. A TPU's passes wait for memory, or for the other devices: so they are fewer. On a
    GPU a pass takes longer to start than to run, and a loop is no part of a CUDA graph.

    Args:
        image: i32[B, V].
        masses: i32[B, V], ≥ 0.
        enough: i32[B], at least 1.
        low: i32[B], a t that is low enough.
        used: bool[B].

    Returns:
        i32[B].
    """
    found: jax.Array = lax.platform_dependent(
        image,
        masses,
        enough,
        used,
        cpu=functools.partial(search, digit_bits=1),
        tpu=functools.partial(search, digit_bits=3),
        cuda=functools.partial(search, digit_bits=4, unrolled=True),
    )
    return jnp.where(used, found, low)


def search(
    image: jax.Array, masses: jax.Array, enough: jax.Array, used: jax.Array, *, digit_bits: int, unrolled: bool = False
) -> jax.Array:
    """See `largest_threshold`: a digit a pass, the highest first. Of rows that are not used anything.

    Args:
        digit_bits: of t, that a pass finds; it compares with 2**digit_bits - 1 thresholds.
        unrolled: passes one after the other, also where no row is used; else a loop, which then makes no turn.
    """
    sum_up = _joint_sums if unrolled else _separate_sums
    num_passes = -(-_IMAGE_BITS // digit_bits)

    def add_digit(number: int | jax.Array, found: jax.Array) -> jax.Array:
        """u32[B] → u32[B]. The last digit may overlap the one before: then it is less than it could be."""
        shift = jnp.maximum(_IMAGE_BITS - digit_bits * (number + 1), 0).astype(jnp.uint32)
        candidates = [_signed(found + (jnp.uint32(digit) << shift)) for digit in range(1, 1 << digit_bits)]
        sums = sum_up([jnp.where(image >= candidate[:, None], masses, 0) for candidate in candidates])
        digits = (sums >= enough).astype(jnp.uint32).sum(axis=0)
        return found + (digits << shift)

    found = jnp.zeros(image.shape[0], jnp.uint32)
    if unrolled:
        return _signed(functools.reduce(lambda found, number: add_digit(number, found), range(num_passes), found))
    num_turns = jnp.where(used.any(), num_passes, 0)
    return _signed(lax.fori_loop(0, num_turns, add_digit, found))


def _separate_sums(columns: list[jax.Array]) -> jax.Array:
    """The sum of each row of each array. XLA:TPU fuses them into one pass over memory. [i32[B, V]] · n → i32[n, B]"""
    return jnp.stack([values.sum(axis=-1) for values in columns])


def _joint_sums(columns: list[jax.Array]) -> jax.Array:
    """The same as one reduction, without which XLA:GPU makes a kernel for each.

    Where devices hold parts of the vocabulary, a reduction of many values over all of it would gather the parts' sums
    of each array by itself: so the last sum is another one.
    """
    num_parts = math.gcd(columns[0].shape[1], _MAX_PARTS)
    parts = tuple(values.reshape(values.shape[0], num_parts, -1) for values in columns)
    zeros = tuple(jnp.int32(0) for _ in parts)
    sums = lax.reduce(parts, zeros, lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)), (2,))
    return jnp.stack(sums).sum(axis=-1)


def _signed(values: jax.Array) -> jax.Array:
    """u32[B] → i32[B]"""
    signed: jax.Array = lax.bitcast_convert_type(values ^ jnp.uint32(_SIGN), jnp.int32)
    return signed
