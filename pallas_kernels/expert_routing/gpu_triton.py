"""The backend for GPUs: choice, places and order of a step's tokens in one Pallas kernel by way of Triton.

XLA:GPU makes a chain of seven kernels of it, two sorts among them, each of which waits for the one before. Rows are
brought to their places by XLA: one program would read them too slowly.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from palladio.pallas_kernels.expert_routing.routing import Routed, Routing
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.triton import load, refusal, store

MAX_SHARES = 8192  # tokens x experts: all are in the registers of one program
MAX_CHOSEN = 16
_SHARES_OF_WARP = 1024
_FIRST_CHOICE = -1.0  # in place of the share of an expert that has been chosen; then -2 and so on
_NO_EXPERT = -100.0


def takes(x: jax.Array, num_experts: int, routing: Routing, target: Target) -> bool:
    """Whether all of it fits in one program. Args: see api.can_route_experts."""
    is_possible = refusal(target) is None and routing.num_chosen <= MAX_CHOSEN
    return is_possible and _up(x.shape[0]) * _up(num_experts) <= MAX_SHARES


def route(
    logits: jax.Array,
    x: jax.Array,
    num_tokens: jax.Array | int,
    first: jax.Array | int,
    routing: Routing,
    target: Target,
) -> Routed:
    """See api.route_experts.

    Raises:
        NotImplementedError: the target is no GPU of compute capability 8.0 or more.
    """
    if (reason := refusal(target)) is not None:
        raise NotImplementedError(reason)
    (T, E), C, here = logits.shape, routing.num_chosen, routing.num_here
    scalars = jnp.stack([jnp.asarray(num_tokens, jnp.int32), jnp.asarray(first, jnp.int32)])
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    weights, places, tokens, sizes = pl.pallas_call(
        functools.partial(_kernel, routing=routing),
        in_specs=[anywhere] * 2,
        out_specs=[anywhere] * 4,
        out_shape=[
            jax.ShapeDtypeStruct((T, C), jnp.float32),
            jax.ShapeDtypeStruct((T, C), jnp.int32),
            jax.ShapeDtypeStruct((T * C,), jnp.int32),
            jax.ShapeDtypeStruct((here,), jnp.int32),
        ],
        compiler_params=pltriton.CompilerParams(num_warps=max(4, _up(T) * _up(E) // _SHARES_OF_WARP), num_stages=1),
        interpret=target.interpret is not None,
        name="route_experts",
    )(scalars, logits)
    rows = x.at[tokens].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return Routed(weights, places, rows, sizes)


def _up(number: int) -> int:
    """The next power of two: Triton has no other sizes."""
    return 1 << (number - 1).bit_length()


def _kernel(
    scalars: jax.Array,
    logits: jax.Array,
    weights: jax.Array,
    places: jax.Array,
    tokens: jax.Array,
    sizes: jax.Array,
    *,
    routing: Routing,
) -> None:
    """Refs: i32[2], num_tokens and first; logits f32[T, E]; see Routed; i32[T·C], the token of each row, those that
    have no expert here come last."""
    (T, E), C, here = logits.shape, routing.num_chosen, routing.num_here
    num_tokens, first = scalars[0], scalars[1]
    token, expert = lax.iota(jnp.int32, _up(T)), lax.iota(jnp.int32, _up(E))
    is_token = token < T
    inside = jnp.broadcast_to(is_token[:, None] & (expert < E)[None, :], (_up(T), _up(E)))
    given = load(logits, (token[:, None], expert[None, :]), inside)
    shares, scores = _choose(given, inside, expert, routing)

    is_here = (expert >= first) & (expert < first + here)
    is_chosen = (scores <= _FIRST_CHOICE) & (scores > _NO_EXPERT)
    ones = (is_chosen & is_here[None, :] & (token < num_tokens)[:, None]).astype(jnp.int32)
    rows_of = jnp.sum(ones, axis=0)
    store(sizes, (expert - first,), rows_of, is_here)
    # An expert's rows begin after those of the experts before it; those of none come after all.
    ranks = lax.cumsum(ones, axis=0) - ones
    place = jnp.where(ones > 0, ranks + (lax.cumsum(rows_of, axis=0) - rows_of)[None, :], -1)
    elsewhere = jnp.where(is_token, C - jnp.sum(ones, axis=1), 0)
    next_place = jnp.sum(rows_of) + lax.cumsum(elsewhere, axis=0) - elsewhere
    for number, share in enumerate(shares):
        found = jnp.max(jnp.where(scores == _FIRST_CHOICE - number, place, -1), axis=1)
        has_row, column = found >= 0, jnp.full_like(token, number)
        store(weights, (token, column), jnp.where(has_row, share, 0.0), is_token)
        store(places, (token, column), found, is_token)
        store(tokens, (jnp.where(has_row, found, next_place),), token, is_token)
        next_place += jnp.where(has_row, 0, 1)


def _choose(
    logits: jax.Array, inside: jax.Array, expert: jax.Array, routing: Routing
) -> tuple[list[jax.Array], jax.Array]:
    """f32[T, E] → of each choice the tokens' shares f32[T]; and f32[T, E], in which choices stand as numbered above.

    Shares of a token that has NaN are NaN, and it goes to C experts all the same.
    """
    scores = jnp.where(inside, logits, -jnp.inf)
    scores = jnp.exp(scores - jnp.max(scores, axis=1)[:, None])
    if not routing.renormalize:
        scores /= jnp.sum(scores, axis=1)[:, None]
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    scores = jnp.where(inside, scores, _NO_EXPERT)
    shares = []
    for number in range(routing.num_chosen):
        best = jnp.max(scores, axis=1)
        at = jnp.min(jnp.where(scores == best[:, None], expert[None, :], scores.shape[1]), axis=1)
        scores = jnp.where(expert[None, :] == at[:, None], _FIRST_CHOICE - number, scores)
        shares.append(jnp.where(best == jnp.inf, jnp.nan, best))
    if routing.renormalize:
        total = functools.reduce(jnp.add, shares)
        shares = [share / total for share in shares]
    if routing.scale != 1.0:
        shares = [share * routing.scale for share in shares]
    return shares, scores
