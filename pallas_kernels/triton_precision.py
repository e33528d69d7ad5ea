"""In what precision a Triton kernel multiplies."""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.target import Target

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
