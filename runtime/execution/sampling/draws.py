"""Inputs of a draw besides the logits: the threshold that top_k and top_p keep, found without a sort, and noise."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

_IMAGE_BITS = 32
_SIGN = 1 << 31  # makes an i32 a u32 of the same order, and back


def ordered_image(values: jax.Array) -> jax.Array:
    """Integers in the order of the floats, equal where they are equal (so for -0 and 0). f32[…] → i32[…]"""
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
        image: i32[P·B, V / P], see `sum_rows`.
        masses: i32[P·B, V / P], ≥ 0.
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
    """Find `largest_threshold` digit by digit, the highest first. Results of unused rows are arbitrary.

    Args:
        digit_bits: bits of the threshold that a pass finds; it compares with 2**digit_bits - 1 candidates.
        unrolled: passes one after the other, also where no row is used; else a loop, which then runs zero iterations.
    """
    sum_up = _joint_sums if unrolled else _separate_sums
    num_passes, num_rows = -(-_IMAGE_BITS // digit_bits), enough.shape[0]

    def add_digit(number: int | jax.Array, found: jax.Array) -> jax.Array:
        """u32[B] → u32[B]. The last digit may overlap the one before: then it is less than it could be."""
        shift = jnp.maximum(_IMAGE_BITS - digit_bits * (number + 1), 0).astype(jnp.uint32)
        low = along(found, image)
        if not unrolled and image.shape[0] > num_rows:  # XLA:TPU would repeat each candidate, not the one number
            low = lax.optimization_barrier(low)
        candidates = [_signed(low + (jnp.uint32(digit) << shift)) for digit in range(1, 1 << digit_bits)]
        sums = _of_rows(sum_up([jnp.where(image >= candidate, masses, 0) for candidate in candidates]), num_rows)
        digits = (sums >= enough).astype(jnp.uint32).sum(axis=0)
        return found + (digits << shift)

    found = jnp.zeros(num_rows, jnp.uint32)
    if unrolled:
        return _signed(functools.reduce(lambda found, number: add_digit(number, found), range(num_passes), found))
    num_iterations = jnp.where(used.any(), num_passes, 0)
    return _signed(lax.fori_loop(0, num_iterations, add_digit, found))


def along(column: jax.Array, parts: jax.Array) -> jax.Array:
    """Repeat a number of each row for all parts of the row. [B], [P·B, V / P] → [P·B, 1]"""
    return jnp.tile(column, parts.shape[0] // column.shape[0])[:, None]


def sum_rows(parts: jax.Array, num_rows: int) -> jax.Array:
    """Sums of rows in P parts, the first parts of all rows first: [P·B, V / P] → [B]"""
    return _of_rows(parts.sum(axis=-1), num_rows)


def _of_rows(sums: jax.Array, num_rows: int) -> jax.Array:
    """[…, P·B] → […, B]. By slices: XLA:TPU takes longer to reshape the sums than to make them."""
    slices = (sums[..., first : first + num_rows] for first in range(0, sums.shape[-1], num_rows))
    return functools.reduce(jnp.add, slices)


def _separate_sums(columns: list[jax.Array]) -> jax.Array:
    """The sum of each row of each array. XLA:TPU fuses them into one pass over memory. [i32[B, V]] · n → i32[n, B]"""
    return jnp.stack([values.sum(axis=-1) for values in columns])


def _joint_sums(columns: list[jax.Array]) -> jax.Array:
    """The same as one reduction, without which XLA:GPU makes a kernel for each."""
    zeros = tuple(jnp.int32(0) for _ in columns)
    sums = lax.reduce(tuple(columns), zeros, lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)), (1,))
    return jnp.stack(sums)


def _signed(values: jax.Array) -> jax.Array:
    """u32[B] → i32[B]"""
    signed: jax.Array = lax.bitcast_convert_type(values ^ jnp.uint32(_SIGN), jnp.int32)
    return signed


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_NUM_GROUPS = 5  # of four rounds each

Words = tuple[jax.Array, jax.Array]


def gumbel_noise(seeds: jax.Array, positions: jax.Array, vocab_size: int) -> jax.Array:
    """Standard Gumbel noise, a function of (seed, position, token id) alone: not of row, batch size or vocabulary.

    `jax.random.gumbel` has 23 random bits, which bends the odds of tokens rarer than 1e-6; here the
    rate of the race, -log(1 - u), keeps 32 bits near 0, where it is decided.

    Args:
        seeds: u32[B, 2], low and high words.
        positions: i32[B].
        vocab_size: static, V.

    Returns:
        f32[B, V], finite.
    """
    uniform = (random_bits(seeds, positions, vocab_size).astype(jnp.float32) + 0.5) * 2.0**-32
    return -jnp.log(-jnp.log1p(-jnp.minimum(uniform, 1 - 2.0**-24)))


def random_bits(seeds: jax.Array, positions: jax.Array, vocab_size: int) -> jax.Array:
    """The bits of `jax.random.bits(fold_in(key(seed), position), (vocab_size,))` for each row. → u32[B, V]

    Written out, since XLA:CPU runs jax's own as a loop over whole arrays, and CUDA as a kernel that writes the bits to
    memory; this is fused into what takes them.
    """
    key = _threefry((seeds[:, 1], seeds[:, 0]), (jnp.zeros_like(seeds[:, 0]), positions.astype(jnp.uint32)))
    token_ids = lax.broadcasted_iota(jnp.uint32, (seeds.shape[0], vocab_size), 1)
    high, low = _threefry((key[0][:, None], key[1][:, None]), (jnp.zeros_like(token_ids), token_ids))
    return high ^ low


def _threefry(key: Words, counter: Words) -> Words:
    """Threefry-2x32 of 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3; 2011)."""
    keys = (*key, key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(1, _NUM_GROUPS + 1):
        for distance in _ROTATIONS[(group - 1) % 2]:
            x = x + y
            y = x ^ ((y << jnp.uint32(distance)) | (y >> jnp.uint32(32 - distance)))
        x, y = x + keys[group % 3], y + keys[(group + 1) % 3] + jnp.uint32(group)
    return x, y
