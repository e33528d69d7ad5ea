"""The portable backend: jax.lax.ragged_dot. XLA:TPU has kernels for it, which need no scratch memory.

XLA:GPU expands it: 1.07 GB of scratch for M=4096, D=2048, F=768, E=64 in bfloat16 (JAX 0.10.2). Matrices with scales
are widened before the product, which takes memory. On a CPU, float32 matrices are multiplied block by block.
"""

import jax
import jax.numpy as jnp
from jax import lax

from palladio.pallas_kernels.grouped_matmul.blocks import in_blocks
from palladio.pallas_kernels.grouped_matmul.scales import Scales
from palladio.pallas_kernels.target import Target


def matmul(
    rows: jax.Array, matrices: jax.Array, group_sizes: jax.Array, target: Target, scales: Scales | None = None
) -> jax.Array:
    """Multiply rows [M, D], matrices [E, D, F], group_sizes i32[E] → [M, F]."""
    if scales is not None:
        matrices = scales.widened(matrices, rows.dtype)
    if matrices.shape[0] == 1 and scales is not None:
        out = lax.dot_general(rows, matrices[0], (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        out = jnp.where(jnp.arange(rows.shape[0])[:, None] < group_sizes, out, 0.0)
    elif target.platform == "cpu" and rows.dtype == jnp.float32:
        out = in_blocks(rows, matrices, group_sizes, matrices.shape[2], jnp.matmul)
    else:
        out = lax.ragged_dot(rows, matrices, group_sizes, preferred_element_type=jnp.float32)
    return out.astype(rows.dtype)
