"""Shared parts of the TPU kernels for one token and for chunks: sizes, and arithmetic on tiles."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import LANES

LOWEST = -0.7 * float(jnp.finfo(jnp.float32).max)  # differences of two stay finite
LOG2E = math.log2(math.e)


@dataclasses.dataclass(frozen=True, slots=True)
class KernelSizes:
    """Sizes that are fixed when the kernel is compiled.

    Attributes:
        queries: tokens a block; 1: requests of one token each.
        keys: keys a block.
        page: tokens of a page.
        value_lane: first lane of values in a row; 0: keys and values share its lanes.
        window: see AttentionOptions.sliding_window.
        soft_cap: see AttentionOptions.
        sinks: whether there are some.
        scaled: whether rows have scales of their own.
        widths: numbers of keys with which a request's last block may be computed, ascending; the last is all of a
            block.
        key_chunk: for requests of one token: keys of one product.
        row_chunk, heads: for chunks of prompts: rows of one product, and kv heads of one iteration of the loop over
            them.
        multiplies_ones: weights are summed by a product with ones, together with the values, and not lane by lane. Free
            where the matrix unit is 256 wide and a head is 128.
        together, longest, rows, halves: see TpuBlocks.
    """

    queries: int
    keys: int
    page: int
    value_lane: int
    window: int | None
    soft_cap: float | None
    sinks: bool
    widths: tuple[int, ...]
    key_chunk: int
    row_chunk: int
    heads: int
    multiplies_ones: bool
    scaled: bool = False
    together: int = 1
    longest: int = 0
    rows: int = 1
    halves: bool = False

    @property
    def pages(self) -> int:
        """Pages of a block of keys."""
        return self.keys // self.page

    @property
    def places(self) -> range:
        """Keys reserved for each request of a shared grid step, by the kind of step."""
        return range(LANES, self.longest + 1, LANES)


def lanes(x: jax.Array, width: int) -> jax.Array:
    """Widen x [R, 128], all lanes equal → [R, width]."""
    return x if width == LANES else jnp.concatenate([x] * (width // LANES), axis=1)


def as_dtype(x: jax.Array, dtype: Any) -> jax.Array:
    """Convert; integers by way of float32, as TPUs have no direct way."""
    if x.dtype == dtype:
        return x
    return x.astype(jnp.float32).astype(dtype) if x.dtype == jnp.int8 else x.astype(dtype)


def product(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """Multiply a · b over one axis of each, in float32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(
        a, b, (((contract[0],), (contract[1],)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )
