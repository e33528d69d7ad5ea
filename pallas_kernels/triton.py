"""Shared parts of Pallas kernels that use Triton: supported devices, precision of products, loads and stores."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton as pltriton

from palladio.pallas_kernels.target import Target

MIN_CAPABILITY = 8.0
DTYPES = ("bfloat16", "float16", "float32")

Precision = lax.Precision | lax.DotAlgorithmPreset | None


def product_precision(dtype: jnp.dtype, target: Target) -> Precision:
    """Return the precision of products that is closest to a dtype's own on the tensor cores.

    float32 is split into three products of TensorFloat. Its exact products do not use the tensor cores: they are far
    slower and need more registers than there are. Interpreted kernels have only these.
    """
    if dtype != jnp.float32:
        return None
    return lax.DotAlgorithmPreset.TF32_TF32_F32_X3 if target.interpret is None else lax.Precision.HIGHEST


def matmul(a: jax.Array, b: jax.Array, precision: Precision, *, transpose: bool = False) -> jax.Array:
    """Multiply [M, C] and [C, N] ([N, C] with `transpose`) → f32[M, N]."""
    dimensions = (((1,), (1 if transpose else 0,)), ((), ()))
    return lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=jnp.float32)


def refusal(target: Target) -> str | None:
    """Return why no such kernel can be compiled for a target; None: it can, or it is interpreted."""
    if target.interpret is not None:
        return None
    if target.platform != "gpu":
        return f"Triton compiles for GPUs, not for {target.platform}"
    if target.kind and float(target.kind) < MIN_CAPABILITY:
        return f"it needs compute capability {MIN_CAPABILITY} or more, this GPU has {target.kind}"
    return None


def load(ref: jax.Array, index: tuple[jax.Array, ...], mask: jax.Array | None) -> jax.Array:
    """Load elements of ref at arrays of indices. Where the mask is False, the result is 0 and ref is not read."""
    other = None if mask is None else jnp.zeros((), ref.dtype)
    loaded: jax.Array = pltriton.load(_at(ref, index), mask=mask, other=other)
    return loaded


def store(ref: jax.Array, index: tuple[jax.Array, ...], values: jax.Array, mask: jax.Array) -> None:
    """Store into ref at arrays of indices, where the mask is True."""
    pltriton.store(_at(ref, index), values.astype(ref.dtype), mask=mask)


def _at(ref: jax.Array, index: tuple[jax.Array, ...]) -> Any:
    # The interpreter takes no mixture of scalars and arrays.
    return ref.at[tuple(jnp.broadcast_arrays(*index))]
