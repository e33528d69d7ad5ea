"""The plain definition, in float32: every row times every matrix, of which one result is kept. The oracle of the
others."""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.grouped_matmul.scales import Scales
from palladio.pallas_kernels.target import Target


def matmul(
    rows: jax.Array, matrices: jax.Array, group_sizes: jax.Array, target: Target, scales: Scales | None = None
) -> jax.Array:
    """Multiply rows [M, D], matrices [E, D, F], group_sizes i32[E] → [M, F]."""
    del target
    ends = jnp.cumsum(group_sizes)
    row = jnp.arange(rows.shape[0])[:, None]
    mine = (row >= ends - group_sizes) & (row < ends)  # [M, E]
    wide = matrices.astype(jnp.float32) if scales is None else scales.widened(matrices, jnp.dtype(jnp.float32))
    products = jnp.einsum("md,edf->mef", rows.astype(jnp.float32), wide, precision="highest")
    return jnp.where(mine[:, :, None], products, 0.0).sum(1).astype(rows.dtype)
