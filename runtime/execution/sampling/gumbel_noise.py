"""The noise of a draw: a function of (seed, position, token id) alone."""

import jax
import jax.numpy as jnp
from jax import lax

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
