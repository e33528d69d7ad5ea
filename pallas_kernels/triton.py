"""What Pallas kernels by way of Triton share: what they run on, in what precision they multiply, loads and stores."""

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
    """For operands of that dtype: what comes closest to their own precision on the tensor cores.

    float32 is split into three products of TensorFloat. Its exact products run beside the tensor cores, far slower and
    with more registers than there are; interpreted, they are all there is.
    """
    if dtype != jnp.float32:
        return None
    return lax.DotAlgorithmPreset.TF32_TF32_F32_X3 if target.interpret is None else lax.Precision.HIGHEST


def matmul(a: jax.Array, b: jax.Array, precision: Precision, *, transpose: bool = False) -> jax.Array:
    """[M, C] and [C, N] ([N, C] with `transpose`) → f32[M, N]."""
    dimensions = (((1,), (1 if transpose else 0,)), ((), ()))
    return lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=jnp.float32)


def refusal(target: Target) -> str | None:
    """Why no such kernel can be compiled for a target; None: it can, or it is interpreted."""
    if target.interpret is not None:
        return None
    if target.platform != "gpu":
        return f"Triton compiles for GPUs, not for {target.platform}"
    if target.kind and float(target.kind) < MIN_CAPABILITY:
        return f"it needs compute capability {MIN_CAPABILITY} or more, this GPU has {target.kind}"
    return None


def load(ref: jax.Array, index: tuple[jax.Array, ...], mask: jax.Array | None) -> jax.Array:
    """Elements of ref at arrays of indices, 0 where the mask is False; those are not touched."""
    other = None if mask is None else jnp.zeros((), ref.dtype)
    loaded: jax.Array = pltriton.load(_at(ref, index), mask=mask, other=other)
    return loaded


def store(ref: jax.Array, index: tuple[jax.Array, ...], values: jax.Array, mask: jax.Array) -> None:
    """Writes into ref at arrays of indices, where the mask is True."""
    pltriton.store(_at(ref, index), values.astype(ref.dtype), mask=mask)


def _at(ref: jax.Array, index: tuple[jax.Array, ...]) -> Any:
    # The interpreter takes no mixture of scalars and arrays.
    return ref.at[tuple(jnp.broadcast_arrays(*index))]
