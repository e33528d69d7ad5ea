"""Products of int8 weights on a CPU, whose fastest product is int8 times int8 with sums of int32.

XLA:CPU's library takes it from two rows on; one row, or a product in another dtype, has the whole weight widened first,
which costs 10 to 50 times the product.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from palladio.pallas_kernels.cpu_native.calls import rows_times_int8
from palladio.pallas_kernels.target import Target

_MIN_ROWS = 2


def multiplies_bytes(target: Target, mesh: Mesh) -> bool:
    """Of a CPU without known features nothing says that this is fast; several devices of a CPU serve tests alone."""
    return target.platform == "cpu" and bool(target.kind) and mesh.size == 1


def byte_product(
    x: jax.Array, values: jax.Array, zeros: jax.Array | None, inputs: int, activation_bits: int, native_rows: int = 0
) -> jax.Array:
    """x [T, in] times int8 values without their scales → f32[T, out…].

    Args:
        zeros: int8[out…], subtracted from the values; None: all are 0.
        inputs: the dimension of `values` that is summed over.
        activation_bits: each row of x is rounded to so many bits, by its largest number. 8: one row of int8; 16: two,
            high and low, which one product multiplies.
        native_rows: of so many rows or fewer, activations of 16 bits are not rounded, see NarrowProducts.
    """
    T = x.shape[0]
    if native_rows >= T and activation_bits == 16 and inputs == 0:
        return _native_product(x.astype(jnp.float32), values, zeros)
    rows, factors = _bytes(x) if activation_bits == 8 else _pairs_of_bytes(x)
    rows = jnp.pad(rows, ((0, max(0, _MIN_ROWS - rows.shape[0])), (0, 0)))
    sums = lax.dot_general(rows, values, (((1,), (inputs,)), ((), ())), preferred_element_type=jnp.int32)
    ones = (1,) * (values.ndim - 1)
    if zeros is not None:
        sums -= zeros.astype(jnp.int32) * jnp.sum(rows.astype(jnp.int32), axis=1).reshape(-1, *ones)
    wide = sums.astype(jnp.float32)
    out = wide[:T] if activation_bits == 8 else 256 * wide[:T] + wide[T : 2 * T]
    return out * factors.reshape(-1, *ones)


def _native_product(x: jax.Array, values: jax.Array, zeros: jax.Array | None) -> jax.Array:
    outputs = values.shape[1:]
    out = rows_times_int8(x, values.reshape(values.shape[0], -1)).reshape(-1, *outputs)
    if zeros is None:
        return out
    return out - zeros.astype(jnp.float32) * jnp.sum(x, axis=1).reshape(-1, *(1 for _ in outputs))


def _bytes(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int8[T, in], and f32[T] to multiply it with."""
    numbers, factors = _whole_numbers(x, 127)
    return numbers.astype(jnp.int8), factors


def _pairs_of_bytes(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int8[2 · T, in], the high ones first, and f32[T] to multiply 256 · high + low with."""
    numbers, factors = _whole_numbers(x, 127 * 256)
    high = jnp.floor((numbers + 128) / 256)
    return jnp.concatenate([high, numbers - 256 * high]).astype(jnp.int8), factors


def _whole_numbers(x: jax.Array, largest: int) -> tuple[jax.Array, jax.Array]:
    wide = x.astype(jnp.float32)
    factors = jnp.max(jnp.abs(wide), axis=1) / largest
    numbers = jnp.round(wide / jnp.where(factors == 0, 1.0, factors)[:, None])
    return jnp.clip(numbers, -largest, largest), factors
