"""The plain definition of expert routing and of the experts' sum."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from palladio.pallas_kernels.expert_routing.routing import Routed, Routing, choose
from palladio.pallas_kernels.target import Target


def route(
    logits: jax.Array,
    x: jax.Array,
    num_tokens: jax.Array | int,
    first: jax.Array | int,
    routing: Routing,
    bias: jax.Array | None = None,
    target: Target = Target(),
) -> Routed:
    """Route as api.route_experts. Rows of no expert are 0."""
    T, C, here = logits.shape[0], routing.num_chosen, routing.num_here
    weights, chosen = choose(logits, routing, bias)
    own = chosen - first
    is_here = (own >= 0) & (own < here) & (jnp.arange(T)[:, None] < num_tokens)
    own = jnp.where(is_here, own, here).reshape(T * C)
    order = jnp.argsort(own)
    places = jnp.where(is_here, jnp.argsort(order).astype(jnp.int32).reshape(T, C), -1)
    sizes = jnp.sum(own[:, None] == jnp.arange(here), axis=0, dtype=jnp.int32)
    rows = jnp.where(jnp.arange(T * C)[:, None] < jnp.sum(sizes), x[order // C], 0)
    return Routed(jnp.where(is_here, weights, 0.0), places, rows, sizes)


def weighted_sum(
    products: jax.Array, weights: jax.Array, places: jax.Array, dtype: DTypeLike, target: Target = Target()
) -> jax.Array:
    """Sum as api.sum_experts."""
    rows = jnp.where(places[:, :, None] >= 0, products[jnp.maximum(places, 0)].astype(jnp.float32), 0.0)
    return jnp.sum(weights[:, :, None] * rows, axis=1).astype(dtype)
