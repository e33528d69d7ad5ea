"""The operands that all backends share: the segment of each token, and the options of a layer."""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.target import Target

LOWEST = -1e30  # not -inf: the difference of two of them must be a number


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments:
    """The segment of each token: a text, or a picture's patches. Segments are packed one after another along T.

    Attributes:
        starts: i32[T], first token of the token's segment; 0 for padding.
        stops: i32[T], token after the segment's last one; 0 for padding, which sees no token.
    """

    starts: jax.Array
    stops: jax.Array

    @classmethod
    def of_ends(cls, ends: jax.Array, num_tokens: int) -> Self:
        """Compute the segments of a pack.

        Args:
            ends: i32[B], token after the last one of each segment, in order; empty segments repeat an end. Tokens from
                the last end on are padding.
            num_tokens: T.
        """
        token = jnp.arange(num_tokens, dtype=jnp.int32)
        # compare_all: the other ways are loops of tiny kernels, which break a GPU's CUDA graph.
        number = jnp.searchsorted(ends, token, side="right", method="compare_all")
        bounds = jnp.concatenate([jnp.zeros(1, jnp.int32), ends.astype(jnp.int32)])
        number = jnp.minimum(number, ends.shape[0] - 1)
        is_real = token < ends[-1]
        return cls(jnp.where(is_real, bounds[number], 0), jnp.where(is_real, bounds[number + 1], 0))

    def seen(self, window: int | None) -> tuple[jax.Array, jax.Array]:
        """Return the first token that each token sees, and the one after the last: i32[T] each, both 0 for padding."""
        if window is None:
            return self.starts, self.stops
        token = jnp.arange(self.starts.shape[0], dtype=jnp.int32)
        first = jnp.maximum(self.starts, token - window)
        is_real = self.stops > 0
        return jnp.where(is_real, first, 0), jnp.minimum(self.stops, token + window + 1)


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentOptions:
    """Options of a layer.

    Attributes:
        scale: factor on q·k.
        window: a token sees this many tokens on each side, and itself; None: its whole segment.
        bias: f32[N, 2·M+1], added to scores by distance: column M + d for a key d tokens after the query; distances
            beyond M are those at M. None: there is none.
        target: the device that kernels are compiled for.
    """

    scale: float
    window: int | None
    bias: jax.Array | None
    target: Target


def block_ranges(first: jax.Array, end: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """Return the tokens that a block of queries sees together: i32[T / block] each, from the first one to before the
    last; 0 and 0 for blocks of padding.

    Args:
        first, end: results of `Segments.seen`; T is a multiple of the block.
        block: tokens of a block.
    """
    first, end = first.reshape(-1, block), end.reshape(-1, block)
    low = jnp.where(end > 0, first, jnp.iinfo(jnp.int32).max).min(axis=1)
    high = end.max(axis=1)
    return jnp.where(high > 0, low, 0), high
