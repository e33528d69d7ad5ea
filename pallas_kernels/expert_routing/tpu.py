"""The TPU backend: softmax, choice, places and rows of a step's tokens, in one kernel instead of eleven operations.

Experts lie along the sublanes and tokens along the lanes. So the largest share of a token is found by comparing
registers, and ranks and rows come from small products with zeros and ones, which are exact. XLA's operations for the
same are a sort of all shares, comparisons of each row with each, and what lies between them.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.expert_routing.routing import Routed, Routing
from palladio.pallas_kernels.target import Target
from palladio.pallas_kernels.tpu_mode import interpret_mode, require

LANES, SUBLANES = 128, 8
ROW_TILE = 16  # rows of a native tile of 16 bits
MAX_TOKENS = 256  # numbers of tokens are exact in bfloat16
MAX_EXPERTS = 256
MAX_CHOSEN = 16
CHUNK = 128  # rows that are made at once
_MIB = 2**20
_ROW_BYTES = {"v4": 2 * _MIB, "v5p": 8 * _MIB, "7x": 8 * _MIB}  # an eighth of the vector memory
_ROW_BYTES_ELSEWHERE = 8 * _MIB
_CHOSEN = -1.0  # in place of the share of an expert that has been chosen


def takes(x: jax.Array, num_experts: int, routing: Routing, target: Target) -> bool:
    """Whether all of it fits: see the limits above. Args: see api.can_route_experts."""
    (T, D), M = x.shape, x.shape[0] * routing.num_chosen
    return (
        x.dtype == jnp.bfloat16
        and T <= MAX_TOKENS
        and num_experts <= MAX_EXPERTS
        and routing.num_chosen <= MAX_CHOSEN
        and _chunk(M) > 0
        and M * D * x.dtype.itemsize <= _ROW_BYTES.get(target.kind, _ROW_BYTES_ELSEWHERE)
    )


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
        NotImplementedError: the target is no TPU.
    """
    require(target)
    (T, D), C, here = x.shape, routing.num_chosen, routing.num_here
    experts, lanes = _up(logits.shape[1], SUBLANES), _up(T, LANES)
    scalars = jnp.stack([jnp.asarray(num_tokens, jnp.int32), jnp.asarray(first, jnp.int32)])
    # Zero times NaN or infinity is NaN. So finite halves are multiplied with twos; twice the largest is infinity.
    halves = jnp.where(jnp.isfinite(x), x * 0.5, jnp.finfo(x.dtype).max)
    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    call = pl.pallas_call(
        functools.partial(_kernel, routing=routing),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), whole, whole],
        out_specs=[whole] * 4,
        out_shape=[
            jax.ShapeDtypeStruct((T, C), jnp.float32),
            jax.ShapeDtypeStruct((T, C), jnp.int32),
            jax.ShapeDtypeStruct((T * C, D), x.dtype),
            jax.ShapeDtypeStruct((1, here), jnp.int32),
        ],
        scratch_shapes=[
            pltpu.VMEM((lanes, experts), jnp.float32),
            pltpu.VMEM((experts + _up(here, SUBLANES), lanes), jnp.float32),
        ],
        interpret=interpret_mode(target),
        name=f"route_experts_{T}",
    )
    weights, places, rows, sizes = call(scalars, logits, halves)
    return Routed(weights, places, rows, sizes.reshape(here))


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _chunk(num_rows: int) -> int:
    """Rows of a chunk: whole tiles that divide all of them; 0: there are none."""
    if num_rows <= CHUNK:
        return num_rows
    return next((size for size in range(CHUNK, 0, -ROW_TILE) if num_rows % size == 0), 0)


def _kernel(
    scalars: jax.Array,
    logits: jax.Array,
    halves: jax.Array,
    weights: jax.Array,
    places: jax.Array,
    rows: jax.Array,
    sizes: jax.Array,
    by_token: jax.Array,
    marks: jax.Array,
    *,
    routing: Routing,
) -> None:
    """Refs: i32[2], num_tokens and first; then see api.route_experts and Routed.

    Args:
        by_token: f32[N, E], the logits; N lanes, in which tokens are padded, and E with padding.
        marks: f32[E + E_here, N], 1 where a token goes to an expert.
    """
    (T, num_experts), C, here = logits.shape, routing.num_chosen, routing.num_here
    N, E = by_token.shape
    if num_experts < E:
        by_token[...] = jnp.full((N, E), -jnp.inf, jnp.float32)
    by_token[:T, :num_experts] = logits[...]
    shares, chosen, is_chosen = _choose(by_token[...].T, routing)

    is_token = lax.broadcasted_iota(jnp.int32, (E, N), 1) < scalars[0]
    marks[:E] = jnp.where(is_chosen & is_token, 1.0, 0.0)
    marks[E:] = jnp.zeros((marks.shape[0] - E, N), jnp.float32)
    first = pl.multiple_of(scalars[1], SUBLANES) if here % SUBLANES == 0 else scalars[1]
    own = marks[pl.ds(first, marks.shape[0] - E), :]
    number = lax.broadcasted_iota(jnp.int32, own.shape, 0)
    if here % SUBLANES:
        own = jnp.where(number < here, own, 0.0)
    place, counts = _places(own)
    sizes[...] = counts[:, :here].astype(jnp.int32)

    number = (number + first).astype(jnp.float32)
    found = [jnp.sum(jnp.where(number == at, place, 0.0), axis=0, keepdims=True) - 1.0 for at in chosen]
    found_rows = _stacked(found)
    weights[...] = jnp.where(found_rows >= 0.0, shares, 0.0).T[:T, :C]
    places[...] = found_rows.T[:T, :C].astype(jnp.int32)

    size = _chunk(T * C)

    def make(chunk: jax.Array | int, _: None) -> None:
        begin = chunk * size
        row = (lax.broadcasted_iota(jnp.int32, (size, N), 0) + begin).astype(jnp.float32)
        twos = jnp.zeros((size, N), jnp.float32)
        for place in found:
            twos = jnp.where(row == place, 2.0, twos)
        made = _product(twos.astype(halves.dtype)[:, :T], halves[...])
        rows[pl.ds(begin, size), :] = made.astype(rows.dtype)

    if size == T * C:
        make(0, None)
    else:  # the others are of no expert here
        lax.fori_loop(0, pl.cdiv(jnp.sum(own).astype(jnp.int32), size), make, None)


def _choose(logits: jax.Array, routing: Routing) -> tuple[jax.Array, list[jax.Array], jax.Array]:
    """f32[E, N] → shares f32[C padded to 8, N], of each choice the expert's number f32[1, N], and chosen ones [E, N].

    Shares of a token that has NaN are NaN, and it goes to C experts all the same.
    """
    scores = jnp.exp(logits - jnp.max(logits, axis=0, keepdims=True))
    if not routing.renormalize:
        scores /= jnp.sum(scores, axis=0, keepdims=True)
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    number = lax.broadcasted_iota(jnp.int32, scores.shape, 0).astype(jnp.float32)
    shares, chosen = [], []
    for _ in range(routing.num_chosen):
        best = jnp.max(scores, axis=0, keepdims=True)
        at = jnp.min(jnp.where(scores == best, number, float(scores.shape[0])), axis=0, keepdims=True)
        scores = jnp.where(number == at, _CHOSEN, scores)
        shares.append(jnp.where(best == jnp.inf, jnp.nan, best))
        chosen.append(at)
    weights = _stacked(shares)
    if routing.renormalize:
        weights /= functools.reduce(jnp.add, shares)
    if routing.scale != 1.0:
        weights *= routing.scale
    return weights, chosen, scores == _CHOSEN


def _places(marks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """f32[E_here, N] → places, counted from 1, of each token among the rows of all experts, 0 where it does not go, and
    each expert's number of tokens f32[1, E_here]. All sums are exact: of zeros and ones, or of numbers up to C."""
    E, N = marks.shape
    ones = marks.astype(jnp.bfloat16)
    contract_tokens = (((1,), (1,)), ((), ()))
    counts = lax.dot_general(
        jnp.ones((SUBLANES, N), jnp.bfloat16), ones, contract_tokens, preferred_element_type=jnp.float32
    )
    ranks = _product(ones, _ones_where(N, jnp.less))  # tokens before it of the same expert
    of_others = _product(_ones_where(E, jnp.greater), ones)  # each token's experts before that one
    starts = jnp.sum(of_others, axis=1, keepdims=True)
    return jnp.where(marks > 0.0, ranks + starts + 1.0, 0.0), counts[:1]


def _ones_where(size: int, compare: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """[size, size], 1 where the row's number compares so with the column's."""
    row, column = (lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    return jnp.where(compare(row, column), 1.0, 0.0).astype(jnp.bfloat16)


def _stacked(rows: list[jax.Array]) -> jax.Array:
    """f32[1, N] each → f32[padded to 8, N]."""
    shape = (_up(len(rows), SUBLANES), rows[0].shape[1])
    slot, out = lax.broadcasted_iota(jnp.int32, shape, 0), jnp.zeros(shape, jnp.float32)
    for number, row in enumerate(rows):
        out = jnp.where(slot == number, row, out)
    return out


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)
