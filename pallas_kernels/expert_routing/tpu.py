"""The TPU backend: scores, choice, places and rows of a step's tokens, in one kernel instead of eleven operations.

Experts are along the sublanes and tokens along the lanes. So comparing registers finds the largest share of a token,
and ranks and rows come from small products with zeros and ones, which are exact. XLA's operations for the same are a
sort of all shares, comparisons of each row with each, and operations between them.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from palladio.pallas_kernels.expert_routing.routing import Groups, Routed, Routing
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
# In place of scores, and less than any: of an expert that a token does not go to, and of one that has been chosen.
_ELSEWHERE, _CHOSEN = -1e30, -2e30


def takes(x: jax.Array, num_experts: int, routing: Routing, target: Target) -> bool:
    """Return whether all of it fits the limits above.

    Args:
        x, num_experts, routing, target: see api.can_route_experts.
    """
    (T, D), M = x.shape, x.shape[0] * routing.num_chosen
    # Padding must not be chosen, and groups are whole registers.
    unit = SUBLANES * (1 if routing.groups is None else routing.groups.number)
    return (
        (routing.chooses_by_scores or num_experts % unit == 0)
        and x.dtype == jnp.bfloat16
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
    bias: jax.Array | None,
    target: Target,
) -> Routed:
    """Route as api.route_experts.

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
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), *[whole] * (2 if bias is None else 3)],
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
    own = () if bias is None else (bias.reshape(1, -1),)
    weights, places, rows, sizes = call(scalars, logits, halves, *own)
    return Routed(weights, places, rows, sizes.reshape(here))


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _chunk(num_rows: int) -> int:
    """Return the rows of a chunk: whole tiles that divide all of them; 0: there are none."""
    if num_rows <= CHUNK:
        return num_rows
    return next((size for size in range(CHUNK, 0, -ROW_TILE) if num_rows % size == 0), 0)


def _kernel(
    scalars: jax.Array,
    logits: jax.Array,
    halves: jax.Array,
    *refs: jax.Array,
    routing: Routing,
) -> None:
    """Run the kernel. Refs: i32[2], num_tokens and first; then see api.route_experts, the bias f32[1, E] if there is
    one, and Routed; and two of the kernel's own:

        by_token: f32[N, E], the logits; N lanes, in which tokens are padded, and E with padding.
        marks: f32[E + E_here, N], 1 where a token goes to an expert.
    """
    bias = refs[0] if routing.has_bias else None
    weights, places, rows, sizes, by_token, marks = refs[routing.has_bias :]
    (T, num_experts), C, here = logits.shape, routing.num_chosen, routing.num_here
    N, E = by_token.shape
    if num_experts < E:
        by_token[...] = jnp.full((N, E), -jnp.inf, jnp.float32)
    by_token[:T, :num_experts] = logits[...]
    added = None if bias is None else jnp.broadcast_to(bias[...], (LANES, E)).T[:, :1]
    shares, chosen, is_chosen = _choose(by_token[...].T, routing, added)

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


def _choose(
    logits: jax.Array, routing: Routing, bias: jax.Array | None
) -> tuple[jax.Array, list[jax.Array], jax.Array]:
    """Choose experts: f32[E, N] → shares f32[C padded to 8, N], the expert's number of each choice f32[1, N], and
    chosen ones [E, N].

    Shares of a token that has NaN are NaN, and it still goes to C experts.

    Args:
        bias: f32[E, 1].
    """
    if routing.score == "softmax":
        scores = jnp.exp(logits - jnp.max(logits, axis=0, keepdims=True))
        if routing.is_divided:
            scores /= jnp.sum(scores, axis=0, keepdims=True)
    else:
        scores = jax.nn.sigmoid(logits)
    choice = scores if bias is None else scores + bias
    choice = jnp.where(jnp.isnan(choice), jnp.inf, choice)
    if routing.groups is not None:
        choice = _of_best_groups(choice, routing.groups)
    number = lax.broadcasted_iota(jnp.int32, scores.shape, 0).astype(jnp.float32)
    shares, chosen = [], []
    for _ in range(routing.num_chosen):
        best, at = _best(choice, number)
        is_best = number == at
        choice = jnp.where(is_best, _CHOSEN, choice)
        if routing.chooses_by_scores:
            shares.append(jnp.where(best == jnp.inf, jnp.nan, best))
        else:
            shares.append(jnp.sum(jnp.where(is_best, scores, 0.0), axis=0, keepdims=True))
        chosen.append(at)
    weights = _stacked(shares)
    if routing.renormalize:
        total = functools.reduce(jnp.add, shares)
        weights /= total + routing.least_sum
    if routing.scale != 1.0:
        weights *= routing.scale
    return weights, chosen, choice == _CHOSEN


def _best(choice: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the largest number of each column, and its first place; f32[1, N] each.

    Args:
        number: number of each row.
    """
    best = jnp.max(choice, axis=0, keepdims=True)
    return best, jnp.min(jnp.where(choice == best, number, float(choice.shape[0])), axis=0, keepdims=True)


def _of_best_groups(choice: jax.Array, groups: Groups) -> jax.Array:
    """Lower the scores f32[E, N] of experts in groups that a token does not go to below any real score."""
    size = choice.shape[0] // groups.number
    parts = [choice[begin : begin + size] for begin in range(0, choice.shape[0], size)]
    number = lax.broadcasted_iota(jnp.int32, parts[0].shape, 0).astype(jnp.float32)
    scores = []
    for part in parts:
        best, at = _best(part, number)
        if groups.best_two:
            best += jnp.max(jnp.where(number == at, _CHOSEN, part), axis=0, keepdims=True)
        scores.append(best)
    left = _stacked(scores, _CHOSEN)
    group = lax.broadcasted_iota(jnp.int32, left.shape, 0).astype(jnp.float32)
    kept = jnp.zeros(left.shape, jnp.bool_)
    for _ in range(groups.kept):
        is_best = group == _best(left, group)[1]
        left, kept = jnp.where(is_best, _CHOSEN, left), kept | is_best
    is_kept = jnp.where(kept, 1.0, 0.0)
    return jnp.concatenate(
        [jnp.where(is_kept[place : place + 1] > 0.0, part, _ELSEWHERE) for place, part in enumerate(parts)]
    )


def _places(marks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return places f32[E_here, N], counted from 1, of each token among the rows of all experts, 0 where it does not
    go, and each expert's number of tokens f32[1, E_here]. All sums are exact: of zeros and ones, or of numbers up to C.
    """
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
    """Return [size, size], 1 where `compare(row number, column number)` holds."""
    row, column = (lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    return jnp.where(compare(row, column), 1.0, 0.0).astype(jnp.bfloat16)


def _stacked(rows: list[jax.Array], padding: float = 0.0) -> jax.Array:
    """Stack rows f32[1, N] → f32[padded to 8, N]."""
    shape = (_up(len(rows), SUBLANES), rows[0].shape[1])
    slot, out = lax.broadcasted_iota(jnp.int32, shape, 0), jnp.full(shape, padding, jnp.float32)
    for number, row in enumerate(rows):
        out = jnp.where(slot == number, row, out)
    return out


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)
