"""The backend for GPUs: choice, places and order of a step's tokens in one Pallas kernel by way of Triton.

XLA:GPU makes a chain of seven kernels of it, two sorts among them, each of which waits for the one before. XLA moves
rows to their places: one program would read them too slowly.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from palladio.pallas_kernels.expert_routing.routing import Groups, Routed, Routing
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.triton import load, refusal, store

MAX_SHARES = 8192  # tokens x experts: all are in the registers of one program
MAX_CHOICES = 4096  # the same, where biased scores are kept in addition to the plain ones
MAX_CHOSEN = 16
_MOST_WARPS = 8
# In place of scores, and less than any of them: of an expert that a token does not go to; of one that has been chosen,
# and as much less for each choice after it; and of none.
_ELSEWHERE = -1e30
_FIRST_CHOICE, _BETWEEN = -2e30, 1e29
_NO_EXPERT = -1e32


def takes(x: jax.Array, num_experts: int, routing: Routing, target: Target) -> bool:
    """Return whether all of it fits in one program.

    Args:
        x, num_experts, routing, target: see api.can_route_experts.
    """
    groups = routing.groups
    is_possible = refusal(target) is None and routing.num_chosen <= MAX_CHOSEN
    if groups is not None:  # Triton has no other shapes
        is_possible &= num_experts == _up(num_experts) and groups.number == _up(groups.number)
    return is_possible and _up(x.shape[0]) * _up(num_experts) <= _most_shares(routing)


def route(
    logits: jax.Array,
    x: jax.Array,
    num_tokens: jax.Array | int,
    first: jax.Array | int,
    routing: Routing,
    bias: jax.Array | None,
    target: Target,
) -> Routed:
    """Route as api.route_experts.

    Raises:
        NotImplementedError: the target is no GPU of compute capability 8.0 or more.
    """
    if (reason := refusal(target)) is not None:
        raise NotImplementedError(reason)
    (T, E), C, here = logits.shape, routing.num_chosen, routing.num_here
    scalars = jnp.stack([jnp.asarray(num_tokens, jnp.int32), jnp.asarray(first, jnp.int32)])
    anywhere, of_warp = pl.BlockSpec(memory_space=pl.ANY), _most_shares(routing) // _MOST_WARPS
    weights, places, tokens, sizes = pl.pallas_call(
        functools.partial(_kernel, routing=routing),
        in_specs=[anywhere] * (2 if bias is None else 3),
        out_specs=[anywhere] * 4,
        out_shape=[
            jax.ShapeDtypeStruct((T, C), jnp.float32),
            jax.ShapeDtypeStruct((T, C), jnp.int32),
            jax.ShapeDtypeStruct((T * C,), jnp.int32),
            jax.ShapeDtypeStruct((here,), jnp.int32),
        ],
        compiler_params=pltriton.CompilerParams(num_warps=max(4, _up(T) * _up(E) // of_warp), num_stages=1),
        interpret=target.interpret is not None,
        name="route_experts",
    )(scalars, logits, *(() if bias is None else (bias,)))
    rows = x.at[tokens].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return Routed(weights, places, rows, sizes)


def _most_shares(routing: Routing) -> int:
    return MAX_SHARES if routing.chooses_by_scores else MAX_CHOICES


def _up(number: int) -> int:
    """Return the next power of two: Triton has no other sizes."""
    return 1 << (number - 1).bit_length()


def _kernel(
    scalars: jax.Array,
    logits: jax.Array,
    *refs: jax.Array,
    routing: Routing,
) -> None:
    """Run the program. Refs: i32[2], num_tokens and first; logits f32[T, E]; the bias f32[E], if there is one; see
    Routed; i32[T·C], the token of each row, rows without an expert here last."""
    weights, places, tokens, sizes = refs[routing.has_bias :]
    (T, E), C, here = logits.shape, routing.num_chosen, routing.num_here
    num_tokens, first = scalars[0], scalars[1]
    token, expert = lax.iota(jnp.int32, _up(T)), lax.iota(jnp.int32, _up(E))
    is_token = token < T
    inside = jnp.broadcast_to(is_token[:, None] & (expert < E)[None, :], (_up(T), _up(E)))
    given = load(logits, (token[:, None], expert[None, :]), inside)
    bias = load(refs[0], (expert,), expert < E) if routing.has_bias else None
    shares, scores = _choose(given, inside, expert, routing, bias)

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
        found = jnp.max(jnp.where(scores == _mark(number), place, -1), axis=1)
        has_row, column = found >= 0, jnp.full_like(token, number)
        store(weights, (token, column), jnp.where(has_row, share, 0.0), is_token)
        store(places, (token, column), found, is_token)
        store(tokens, (jnp.where(has_row, found, next_place),), token, is_token)
        next_place += jnp.where(has_row, 0, 1)


def _mark(number: int) -> float:
    """Return the number of float32 that replaces the score of a choice."""
    return float(np.float32(_FIRST_CHOICE - number * _BETWEEN))


def _choose(
    logits: jax.Array, inside: jax.Array, expert: jax.Array, routing: Routing, bias: jax.Array | None
) -> tuple[list[jax.Array], jax.Array]:
    """Choose experts: f32[T, E] → for each choice the tokens' shares f32[T]; and f32[T, E], in which choices are
    replaced by their marks.

    Shares of a token that has NaN are NaN, and it still goes to C experts.

    Args:
        bias: f32[E].
    """
    if routing.score == "softmax":
        scores = jnp.where(inside, logits, -jnp.inf)
        scores = jnp.exp(scores - jnp.max(scores, axis=1)[:, None])
        if routing.is_divided:
            scores /= jnp.sum(scores, axis=1)[:, None]
    else:
        scores = 1.0 / (1.0 + jnp.exp(-logits))
    choice = scores if bias is None else scores + bias[None, :]
    choice = jnp.where(jnp.isnan(choice), jnp.inf, choice)
    if routing.groups is not None:
        choice = _of_best_groups(choice, routing.groups)
    choice = jnp.where(inside, choice, _NO_EXPERT)
    shares = []
    for number in range(routing.num_chosen):
        best = jnp.max(choice, axis=1)
        at = jnp.min(jnp.where(choice == best[:, None], expert[None, :], choice.shape[1]), axis=1)
        is_best = expert[None, :] == at[:, None]
        choice = jnp.where(is_best, _mark(number), choice)
        if routing.chooses_by_scores:
            shares.append(jnp.where(best == jnp.inf, jnp.nan, best))
        else:
            shares.append(jnp.sum(jnp.where(is_best, scores, 0.0), axis=1))
    if routing.renormalize:
        total = functools.reduce(jnp.add, shares)
        total = total + routing.least_sum
        shares = [share / total for share in shares]
    if routing.scale != 1.0:
        shares = [share * routing.scale for share in shares]
    return shares, choice


def _of_best_groups(choice: jax.Array, groups: Groups) -> jax.Array:
    """Lower the scores f32[T, E] of experts in groups that a token does not go to below any real score."""
    (T, E), G = choice.shape, groups.number
    parts = choice.reshape(T, G, E // G)
    scores = jnp.max(parts, axis=2)
    if groups.best_two:
        number = lax.broadcasted_iota(jnp.int32, parts.shape, 2)
        at = jnp.min(jnp.where(parts == scores[:, :, None], number, E), axis=2)
        scores += jnp.max(jnp.where(number == at[:, :, None], _NO_EXPERT, parts), axis=2)
    group, kept = lax.broadcasted_iota(jnp.int32, scores.shape, 1), jnp.zeros(scores.shape, jnp.int32)
    for _ in range(groups.kept):
        best = jnp.max(scores, axis=1)
        at = jnp.min(jnp.where(scores == best[:, None], group, G), axis=1)
        is_best = group == at[:, None]
        scores, kept = jnp.where(is_best, _NO_EXPERT, scores), jnp.where(is_best, 1, kept)
    return jnp.where(kept[:, :, None] > 0, parts, _ELSEWHERE).reshape(T, E)
