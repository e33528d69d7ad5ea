"""A causal convolution over few tokens, channel by channel, for rows that follow each other."""

import jax
import jax.numpy as jnp


def convolve_singles(x: jax.Array, weight: jax.Array, history: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Convolve rows of one token: x [B, K, C], weight [K, C, W], history [B, K, W-1, C] → [B, K, C], and the history
    after it."""
    window = jnp.concatenate([history, x[:, :, None]], axis=2)
    return jnp.sum(window * jnp.swapaxes(weight, 1, 2), axis=2), window[:, :, 1:]


def convolve_ragged(
    x: jax.Array, weight: jax.Array, history: jax.Array, query_start: jax.Array, offsets: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Convolve rows of any number of tokens.

    Args:
        x: [T, K, C].
        weight: [K, C, W].
        history: [B, K, W-1, C], the tokens before each row.
        query_start: i32[B+1].
        offsets: i32[T], position of each token in its row.

    Returns:
        [T, K, C], and the history after each row, unchanged for rows without tokens.
    """
    T, num_before = x.shape[0], weight.shape[-1] - 1
    out = x * weight[..., num_before]
    for back in range(1, num_before + 1):
        earlier = jnp.pad(x, ((back, 0), (0, 0), (0, 0)))[:T]
        out += jnp.where((offsets >= back)[:, None, None], earlier, 0.0) * weight[..., num_before - back]
    # What the first tokens of a row see of the history: few rows, not a window for each token.
    starts, counts = query_start[:-1], query_start[1:] - query_start[:-1]
    for offset in range(num_before):
        seen = history[:, :, offset:] * jnp.swapaxes(weight, 1, 2)[:, : num_before - offset]
        token = jnp.where(offset < counts, starts + offset, T)
        out = out.at[token].add(jnp.sum(seen, axis=2), mode="drop")
    place = counts[:, None] + jnp.arange(num_before)  # [B, W-1], of what is kept, in history and row together
    kept = jnp.take_along_axis(history, jnp.minimum(place, num_before - 1)[:, None, :, None], axis=2)
    token = jnp.clip(starts[:, None] + place - num_before, 0, T - 1)
    own = jnp.swapaxes(x[token], 1, 2)
    return out, jnp.where((place < num_before)[:, None, :, None], kept, own)
