"""What a router does with its logits, and what comes of it."""

import dataclasses
from typing import NamedTuple

import jax


@dataclasses.dataclass(frozen=True, slots=True)
class Routing:
    """A softmax over all experts; those with the largest shares are chosen, among equals the first.

    Attributes:
        num_chosen: C, experts of a token.
        num_here: E_here, experts of this device, which follow each other.
        renormalize: a token's shares are divided by their sum.
        scale: factor on them, at last.
    """

    num_chosen: int
    num_here: int
    renormalize: bool
    scale: float = 1.0


class Routed(NamedTuple):
    """Rows in the order of this device's experts, and the way back. R of them have an expert here.

    Attributes:
        weights: f32[T, C], of the chosen experts, the first choice first; 0 for those of other devices.
        places: i32[T, C], in which row each is; -1 for those of other devices. Padding has no expert.
        rows: [T·C, D], of each expert its tokens in their order. From row R on anything, also NaN.
        sizes: i32[E_here], rows of each expert.
    """

    weights: jax.Array
    places: jax.Array
    rows: jax.Array
    sizes: jax.Array
