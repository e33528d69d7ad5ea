"""The rules of a router, and its result."""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Score = Literal["softmax", "sigmoid"]
LEAST_SUM = 1e-20  # is added to a token's sum of weights where all may be 0


@dataclasses.dataclass(frozen=True, slots=True)
class Groups:
    """Groups with the same number of experts each; a token goes to experts of the best groups.

    Attributes:
        number: number of groups.
        kept: number of groups whose experts a token may choose.
        best_two: a group's score is the sum of its two best experts; else that of the best one.
    """

    number: int
    kept: int
    best_two: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Routing:
    """The rules of the choice: experts with the largest scores win, among equals the first.

    Attributes:
        num_chosen: C, experts of a token.
        num_here: E_here, experts of this device, which follow each other.
        renormalize: a token's scores are divided by their sum.
        scale: final factor on them.
        score: a softmax over all experts, or a sigmoid of each.
        has_bias: a bias of each expert is added to the scores that choose experts, and not to the weights.
        groups: experts are chosen from the best groups alone; None: from all.
    """

    num_chosen: int
    num_here: int
    renormalize: bool
    scale: float = 1.0
    score: Score = "softmax"
    has_bias: bool = False
    groups: Groups | None = None

    @property
    def chooses_by_scores(self) -> bool:
        """Whether the scores that choose experts are their weights."""
        return not self.has_bias and self.groups is None

    @property
    def is_divided(self) -> bool:
        """Whether a softmax is divided by its sum, which cancels out if the chosen scores are divided by theirs."""
        return not (self.renormalize and self.chooses_by_scores)

    @property
    def least_sum(self) -> float:
        """What is added to the sum of a token's weights. The largest of a softmax is in no sum that leaves it out."""
        return 0.0 if self.score == "softmax" and self.chooses_by_scores else LEAST_SUM


class Routed(NamedTuple):
    """Rows in the order of this device's experts, and the way back. R of them have an expert here.

    Attributes:
        weights: f32[T, C], weights of the chosen experts, the first choice first; 0 for experts of other devices.
        places: i32[T, C], the row of each; -1 for experts of other devices. Padding has no expert.
        rows: [T·C, D], of each expert its tokens in their order. From row R on anything, also NaN.
        sizes: i32[E_here], rows of each expert.
    """

    weights: jax.Array
    places: jax.Array
    rows: jax.Array
    sizes: jax.Array


def choose(logits: jax.Array, routing: Routing, bias: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Choose experts.

    Args:
        logits: f32[T, E].
        bias: f32[E], of a router that has one for the choice.

    Returns:
        f32[T, C], weights of the chosen experts, the first choice first, and i32[T, C], their numbers.
    """
    if routing.score == "softmax":
        scores = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
        if routing.is_divided:
            scores /= jnp.sum(scores, axis=-1, keepdims=True)
    else:
        scores = jax.nn.sigmoid(logits)
    choice = scores if bias is None else scores + bias
    if routing.groups is not None:
        choice = _of_best_groups(choice, routing.groups)
    weights, chosen = lax.top_k(choice, routing.num_chosen)
    if choice is not scores:
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
    if routing.renormalize:
        total = jnp.sum(weights, axis=-1, keepdims=True)
        weights /= total + routing.least_sum
    if routing.scale != 1.0:
        weights *= routing.scale
    return weights, chosen.astype(jnp.int32)


def _of_best_groups(choice: jax.Array, groups: Groups) -> jax.Array:
    """Replace the scores f32[T, E] of experts in groups that a token does not go to by -inf."""
    T, E = choice.shape
    grouped = choice.reshape(T, groups.number, E // groups.number)
    scores = jnp.sum(lax.top_k(grouped, 2 if groups.best_two else 1)[0], axis=-1)
    _, kept = lax.top_k(scores, groups.kept)
    is_kept = jnp.any(kept[:, :, None] == jnp.arange(groups.number), axis=1)
    return jnp.where(is_kept[:, :, None], grouped, -jnp.inf).reshape(T, E)
