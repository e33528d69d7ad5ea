"""The backend for CPUs: our own C++ finds both in one pass."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.cpu_native.calls import row_argmax as native_row_argmax
from palladio.pallas_kernels.target import Target


def row_argmax(values: jax.Array, target: Target, *, is_computed: bool = False) -> tuple[jax.Array, jax.Array]:
    """Find the largest values as api.row_argmax: [B, V] → i32[B], bool[B].

    Raises:
        NotImplementedError: the library is not loaded.
    """
    del is_computed  # a call's input is computed once in any case
    if not target.is_native:
        raise NotImplementedError("needs our C++ for CPUs, see --cpu-kernels")
    return native_row_argmax(values.astype(jnp.float32))
