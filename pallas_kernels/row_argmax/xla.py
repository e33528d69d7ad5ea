"""The portable backend: plain operations on an accelerator, and on a CPU those that XLA:CPU vectorizes."""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.target import Target

_BLOCK_SIZES = range(16, 513)  # columns of a block: the largest of these that divides the vocabulary
_PADDED_BLOCK = 128  # columns of a block where none does: the values are copied to pad them
_SHRINK = 2.0**-20  # times any float32, and summed over 2**20 columns: no overflow


def row_argmax(values: jax.Array, target: Target, *, is_computed: bool = False) -> tuple[jax.Array, jax.Array]:
    """Find the largest values as api.row_argmax: [B, V] → i32[B], bool[B]. A program that uses one of the two results
    computes only that one."""
    del target  # the platform that the program is lowered for decides
    return (argmax_of_computed if is_computed else argmax)(values), rows_are_finite(values)


def argmax(values: jax.Array) -> jax.Array:
    """Compute `jnp.argmax` of each row: [B, V] → i32[B], of equals the lowest id; NaN is larger than all."""
    token_ids: jax.Array = lax.platform_dependent(values, cpu=_argmax_on_cpu, default=_plain_argmax)
    return token_ids


def argmax_of_computed(values: jax.Array) -> jax.Array:
    """Compute `argmax` of values that the same program computes: [B, V] → i32[B]; any id for a row with NaN.

    XLA:CPU would compute the values of the chosen block a second time, perhaps with another rounding. XLA:TPU fuses
    the computation into the argmax, and then compiles for minutes (64 rows of 151,936: 108 s, with the barrier 14 s).
    """
    token_ids: jax.Array = lax.platform_dependent(
        values,
        cpu=lambda x: _argmax_by_blocks(lax.optimization_barrier(x)),
        tpu=lambda x: _plain_argmax(lax.optimization_barrier(x)),
        default=_plain_argmax,
    )
    return token_ids


def rows_are_finite(values: jax.Array) -> jax.Array:
    """Return whether the largest value of a row is finite: [B, V] → bool[B]; no NaN, no +inf, not all -inf."""
    are_finite: jax.Array = lax.platform_dependent(
        values,
        cpu=lambda x: jnp.isfinite(x.max(axis=-1)) & ~_may_hold_nan(x),
        default=lambda x: jnp.isfinite(x.max(axis=-1)),
    )
    return are_finite


def _argmax_on_cpu(values: jax.Array) -> jax.Array:
    """Compute `argmax` by maxima: XLA:CPU compares one value at a time in an argmax, and many at once in a maximum.

    But its maximum of many values ignores NaN: if a row may hold one, all rows take the plain argmax.
    """
    token_ids: jax.Array = lax.cond(_may_hold_nan(values).any(), _plain_argmax, _argmax_by_blocks, values)
    return token_ids


def _argmax_by_blocks(values: jax.Array) -> jax.Array:
    """Compute `argmax` of values without NaN: the first value that is the maximum of the first block that has it.

    Both levels compare floats as jnp.argmax does (-0 equals 0).
    """
    size = max((size for size in _BLOCK_SIZES if values.shape[1] % size == 0), default=_PADDED_BLOCK)
    padding = -values.shape[1] % size  # at the end, where of equals it is never the first
    blocks = jnp.pad(values, ((0, 0), (0, padding)), constant_values=-jnp.inf).reshape(values.shape[0], -1, size)
    block_ids = _plain_argmax(blocks.max(axis=-1))
    chosen = jnp.take_along_axis(blocks, block_ids[:, None, None], axis=1)[:, 0]
    return block_ids * size + _plain_argmax(chosen)


def _may_hold_nan(values: jax.Array) -> jax.Array:
    """Return bool[B]: True for rows with NaN, or with infinities of both signs; other sums are never NaN."""
    return jnp.isnan((values * _SHRINK).sum(axis=-1))


def _plain_argmax(values: jax.Array) -> jax.Array:
    return jnp.argmax(values, axis=-1).astype(jnp.int32)
