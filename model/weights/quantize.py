"""Quantization to 8 and 4 bits: on the host, while a checkpoint loads, and on the device."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from palladio.model.weights.file_matrix import FLOAT4, HostArray
from palladio.model.weights.kinds import WeightKind

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "int4": 7.0, "float4_e2m1fn": 6.0}
_CHUNK = 1 << 18  # numbers that are quantized at a time, in float32
_BETWEEN = tuple(((FLOAT4[1:8] + FLOAT4[:7]) / 2).tolist())  # halfway between a float of 4 bits and the next


def quantized_rows(values: HostArray, kind: WeightKind, group: int | None) -> tuple[HostArray, ...]:
    """Quantize to 8 or 4 bits [out, in] or [E, out, in], with a scale for each row or for each group of its inputs: the
    largest absolute value over the largest of the numbers. It is NaN or infinite if one of the values is.

    Args:
        kind: a kind with whole numbers without zero points, or with 8-bit floats.
        group: inputs that share a scale; None: all of a row.
    """
    rows = values.reshape(-1, values.shape[-1])
    size = rows.shape[1]
    width = size if group is None else group
    num_groups = -(-size // width)
    made = np.empty(rows.shape, np.dtype(kind.dtype))
    scales = np.empty((len(rows), num_groups), np.float32)
    step = max(1, _CHUNK // size)
    for start in range(0, len(rows), step):
        band = slice(start, min(start + step, len(rows)))
        padded = np.zeros((band.stop - start, num_groups * width), np.float32)
        padded[:, :size] = rows[band]
        numbers = padded.reshape(-1, num_groups, width)  # a view
        scales[band] = np.abs(numbers).max(axis=2) / np.float32(LARGEST[kind.storage])
        with np.errstate(invalid="ignore"):  # who loads says which tensor has such numbers
            numbers /= np.where(scales[band] == 0, 1, scales[band])[:, :, None]
            if not kind.storage.startswith("float"):
                np.rint(numbers, out=numbers)
            made[band] = padded[:, :size]
    shape = values.shape[:-1] if group is None else (*values.shape[:-1], num_groups)
    return made.reshape(values.shape), scales.reshape(shape)


def quantized(numbers: jax.Array, kind: WeightKind, group: int, inputs: int) -> tuple[jax.Array, ...]:
    """Return values, scales and, if the kind has them, zeros; scales and zeros have groups instead of inputs.

    Args:
        group: inputs that share a scale.
        inputs: the dimension of the inputs.
    """
    size = numbers.shape[inputs]
    widths = [(0, 0)] * numbers.ndim
    widths[inputs] = (0, -size % group)
    padded = jnp.pad(numbers, widths)
    split = padded.reshape(*padded.shape[:inputs], -1, group, *padded.shape[inputs + 1 :])

    def of_inputs(array: jax.Array) -> jax.Array:
        return lax.slice_in_dim(jnp.repeat(array, group, axis=inputs), 0, size, axis=inputs)

    if kind.has_zeros:
        low, num_values = jnp.minimum(split.min(inputs + 1), 0), 1 << kind.bits
        scales = (jnp.maximum(split.max(inputs + 1), 0) - low) / (num_values - 1)
        zeros = jnp.round(-low / jnp.where(scales == 0, 1.0, scales)) - num_values // 2
        values = jnp.round(numbers / of_inputs(jnp.where(scales == 0, 1.0, scales))) + of_inputs(zeros)
        made = jnp.clip(values, -num_values // 2, num_values // 2 - 1).astype(kind.dtype)
        return made, scales, zeros.astype(kind.zeros_dtype)
    largest = LARGEST[kind.storage]
    scales = jnp.max(jnp.abs(split), axis=inputs + 1) / largest
    if kind.is_float4:
        scales = jnp.exp2(jnp.ceil(jnp.log2(jnp.where(scales == 0, 1.0, scales))))
    values = numbers / of_inputs(jnp.where(scales == 0, 1.0, scales))
    if kind.is_float4:
        return float4_steps(values), scales
    values = values if kind.storage.startswith("float") else jnp.round(values)
    return jnp.clip(values, -largest, largest).astype(kind.dtype), scales


def float4_steps(numbers: jax.Array) -> jax.Array:
    """Return the nearest 4-bit floats as i4, see FLOAT4."""
    size = sum((jnp.abs(numbers) > bound).astype(jnp.int32) for bound in _BETWEEN)
    return jnp.where(numbers < 0, -size, size).astype(jnp.int4)
