"""Products of int8 weights on a CPU, whose fastest product is int8 times int8 with sums of int32.

XLA:CPU's library computes it from two rows on. For one row, or in another dtype, XLA first widens the whole weight,
which costs 10 to 50 times the product.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from palladio.pallas_kernels.cpu_native.calls import rows_times_int8
from palladio.pallas_kernels.narrow_matmul import NarrowProducts
from palladio.pallas_kernels.target import Target

_MIN_ROWS = 2


def multiplies_bytes(target: Target, mesh: Mesh) -> bool:
    """Return whether int8 products are known to be fast: on one CPU whose features are known. Several devices of a CPU
    serve only tests."""
    return target.platform == "cpu" and bool(target.kind) and mesh.size == 1


def byte_product(
    x: jax.Array,
    values: jax.Array,
    scales: jax.Array,
    zeros: jax.Array | None,
    activation_bits: Literal[8, 16],
    products: NarrowProducts,
) -> jax.Array:
    """Multiply x [T, in] by int8[out…, in] → f32[T, out…].

    Args:
        scales: f32[out…], factors on outputs.
        zeros: int8[out…], subtracted from the values; None: all are 0.
        activation_bits: bits that each row of x is rounded to, relative to its largest number. 8: one row of int8; 16:
            two rows, high and low, which one product multiplies.
        products: how this kind of CPU multiplies.
    """
    T, outputs = x.shape[0], values.shape[:-1]
    flat, wide = values.reshape(-1, values.shape[-1]), x.astype(jnp.float32)
    if products.native_int8_rows >= T:
        of_zeros = None if zeros is None else zeros.astype(jnp.float32).reshape(-1)
        out = rows_times_int8(wide, flat, scales.reshape(-1), of_zeros, bits=activation_bits)
        return out.reshape(T, *outputs)
    rows, factors = _bytes(wide) if activation_bits == 8 else _pairs_of_bytes(wide)
    rows = jnp.pad(rows, ((0, max(0, _MIN_ROWS - rows.shape[0])), (0, 0)))
    sums = lax.dot_general(rows, flat, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
    if zeros is not None:
        sums -= zeros.astype(jnp.int32).reshape(-1) * jnp.sum(rows.astype(jnp.int32), axis=1)[:, None]
    whole = sums.astype(jnp.float32)
    out = whole[:T] if activation_bits == 8 else 256 * whole[:T] + whole[T : 2 * T]
    return (out * factors[:, None] * scales.reshape(-1)).reshape(T, *outputs)


def _bytes(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Round x to int8[T, in], with factors f32[T]."""
    numbers, factors = _whole_numbers(x, 127)
    return numbers.astype(jnp.int8), factors


def _pairs_of_bytes(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Round x to int8[2 · T, in], the high bytes first, with factors f32[T] of 256 · high + low."""
    numbers, factors = _whole_numbers(x, 127 * 256)
    high = jnp.floor((numbers + 128) / 256)
    return jnp.concatenate([high, numbers - 256 * high]).astype(jnp.int8), factors


def _whole_numbers(x: jax.Array, largest: int) -> tuple[jax.Array, jax.Array]:
    wide = x.astype(jnp.float32)
    factors = jnp.max(jnp.abs(wide), axis=1) / largest
    numbers = jnp.round(wide / jnp.where(factors == 0, 1.0, factors)[:, None])
    return jnp.clip(numbers, -largest, largest), factors
