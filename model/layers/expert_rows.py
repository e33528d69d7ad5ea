"""A mixture's rows in the order of their experts, and back: a token has one row for each of its experts."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from palladio.pallas_kernels.expert_routing import can_sum_experts, sum_experts
from palladio.pallas_kernels.target import Target

COMPARED: Final = 1024  # rows: up to here a TPU compares each with each, in fewer operations than sorting

# Rows of an array out of which others are taken by products with zeros and ones, by the kind of TPU. By their numbers
# they are taken one by one, some 14 cycles for 2,048 columns; see benchmarks/results/notes/2026-11-25.md.
_MULTIPLIED: Mapping[str, int] = MappingProxyType({"v6e": 1024, "7x": 1024})
_MULTIPLIED_ELSEWHERE: Final = 256


@dataclasses.dataclass(frozen=True, slots=True)
class RowOrder:
    """The order of rows by expert. Before ordering, the C rows of a token follow each other.

    Attributes:
        order: i32[T·C], the original row at each place: rows of the first expert, then of the second …, then of none.
        tokens: i32[T·C], the token of the row at each place.
        places: i32[T·C], the place of each original row.
        sizes: i32[E], rows of each expert.
        target: the device that moves rows.
    """

    order: jax.Array
    tokens: jax.Array
    places: jax.Array
    sizes: jax.Array
    target: Target

    @classmethod
    def of(cls, experts: jax.Array, num_experts: int, target: Target) -> Self:
        """Order rows by expert; rows of one expert keep their order.

        Args:
            experts: i32[T, C], from 0 to num_experts, which means none.
        """
        M, C, numbers = experts.size, experts.shape[1], jnp.arange(num_experts)
        if target.platform != "tpu" or M > COMPARED:
            flat = experts.reshape(M)
            order = jnp.argsort(flat)
            sizes = jnp.sum(flat[:, None] == numbers, axis=0, dtype=jnp.int32)
            return cls(order, order // C, jnp.argsort(order), sizes, target)
        row = jnp.arange(M)
        keys = (experts * M + row.reshape(experts.shape)).reshape(M)  # of expert e: from e·M on, all different
        places = jnp.sum(keys < keys[:, None], axis=1, dtype=jnp.int32)
        order, tokens = (
            jnp.sum(jnp.where(places == row[:, None], each, 0), axis=1, dtype=jnp.int32) for each in (row, row // C)
        )
        first = numbers[:, None] * M
        sizes = jnp.sum((keys >= first) & (keys < first + M), axis=1, dtype=jnp.int32)
        return cls(order, tokens, places, sizes, target)

    def take(self, x: jax.Array, numbers: jax.Array) -> jax.Array:
        """Take rows of x; all numbers must be in range."""
        return take_by_product(x, numbers) if _are_multiplied(x, self.target) else take_rows(x, numbers)


def _are_multiplied(x: jax.Array, target: Target) -> bool:
    most = _MULTIPLIED.get(target.kind, _MULTIPLIED_ELSEWHERE) if target.platform == "tpu" else 0
    return x.shape[0] <= most and x.dtype == jnp.bfloat16


def sum_of_placed(
    products: jax.Array,
    weights: jax.Array,
    places: jax.Array,
    rows_here: int,
    target: Target,
    *,
    dtype: DTypeLike,
) -> jax.Array:
    """Sum the weighted products of each token, [T, D]; see sum_experts and can_sum_experts of
    pallas_kernels.expert_routing."""
    (T, C), D = places.shape, products.shape[1]
    if _are_multiplied(products, target):  # nothing is multiplied with a two where a place is -1
        rows = take_by_product(products, places.reshape(T * C)).reshape(T, C, D)
    elif can_sum_experts(products, places, rows_here, target=target):
        return sum_experts(products, weights, places, dtype=dtype, target=target)
    else:
        rows = take_rows(products, jnp.maximum(places, 0).reshape(T * C)).reshape(T, C, D)
        rows = jnp.where(places[:, :, None] >= 0, rows, 0)
    return jnp.sum(weights[:, :, None] * rows.astype(jnp.float32), axis=1).astype(dtype)


def experts_of_rows(sizes: jax.Array, num_rows: int) -> jax.Array:
    """Return the expert of each row, i32[M], from the rows of each expert; the last expert for rows of none."""
    ends = jnp.cumsum(sizes)[:-1]
    return jnp.sum(jnp.arange(num_rows)[:, None] >= ends, axis=1, dtype=jnp.int32)


def take_rows(x: jax.Array, numbers: jax.Array) -> jax.Array:
    """Take rows of x whose numbers are in range: nothing has to be clipped or filled."""
    return x.at[numbers].get(mode="promise_in_bounds", wrap_negative_indices=False)


def take_by_product(x: jax.Array, numbers: jax.Array) -> jax.Array:
    """Take rows by a product, with the same bits. A number that is not finite becomes infinity, and stays in its row.

    Zero times NaN or infinity is NaN. So such numbers become the largest finite one, and the product multiplies halves
    by twos: twice the largest is infinity.
    """
    halves = jnp.where(jnp.isfinite(x), x * 0.5, jnp.finfo(x.dtype).max)
    chosen = jnp.where(numbers[:, None] == jnp.arange(x.shape[0]), 2.0, 0.0).astype(x.dtype)
    out = lax.dot_general(chosen, halves, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    return out.astype(x.dtype)
