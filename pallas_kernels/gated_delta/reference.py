"""The definition in float32: one token after the other."""

import jax
import jax.numpy as jnp
from jax import lax


def delta_rule(
    q: jax.Array, k: jax.Array, v: jax.Array, decay: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Apply the rule with a state S [dk, dv] for each value head: S decays, then its value for the key moves towards
    the token's value by the share beta; the result is S's value for the query.

    Args:
        q, k: f32[T, K, dk].
        v: f32[T, K, R, dv].
        decay, beta: f32[T, K, R].
        state: f32[K, R, dk, dv], before the first token.

    Returns:
        f32[T, K, R, dv], and the state after the last token.
    """

    def step(state: jax.Array, token: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, decay, beta = token
        state = state * jnp.exp(decay)[..., None, None]
        known = jnp.einsum("krde,kd->kre", state, k, precision=lax.Precision.HIGHEST)
        change = beta[..., None] * (v - known)
        state += k[:, None, :, None] * change[:, :, None]
        return state, jnp.einsum("krde,kd->kre", state, q, precision=lax.Precision.HIGHEST)

    state, out = lax.scan(step, state, (q, k, v, decay, beta))
    return out, state
