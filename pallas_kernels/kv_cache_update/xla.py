"""The portable backend: one scatter. In place everywhere when the cache is donated.

Every row's head is an index too. Written over [page, :, offset], the same scatter is a little faster on CPU, but
XLA:TPU copies the whole cache into another layout and back for it (a prefill of 2,048 tokens; not for 64 rows).

Measured on two CPU cores, a float32 cache [4096, 2, 16, 128], µs for T = 1 / 16 / 1024 (2026-11, JAX 0.10.2):
scatter 16 / 12 / 322, without the head's index 11 / 11 / 280, loop of dynamic_update_slice 28 / 18 / 282.
A bfloat16 cache is another matter on CPU: XLA:CPU has no bfloat16 scatter (nor update), converts the whole cache
to float32 and back, and takes 17 ms and more whatever the formulation. Keep the cache in float32 there.
"""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.kv_cache_update.writes import CacheWrites
from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import scale_cells
from palladio.pallas_kernels.target import Target


def update(kv_pages: jax.Array, rows: jax.Array, writes: CacheWrites, target: Target) -> jax.Array:
    """Write rows: kv_pages [P, K, S, 2·Hp], rows [T, K, 2·Hp] → [P, K, S, 2·Hp]; the same for every target."""
    heads = jnp.arange(kv_pages.shape[1])
    where = writes.page_ids[:, None], heads, writes.page_offsets[:, None]  # [T, K]
    return kv_pages.at[where].set(rows, mode="promise_in_bounds")


def update_scales(
    page_scales: jax.Array, scales: jax.Array, page_size: int, writes: CacheWrites, target: Target
) -> jax.Array:
    """Write scales: page_scales f32[P, R, C·S], scales f32[T, 2·K] → f32[P, R, C·S]; the same for every target."""
    rows, lanes = scale_cells(scales.shape[1] // 2, page_scales.shape[1], page_size)
    where = writes.page_ids[:, None], rows, lanes + writes.page_offsets[:, None]  # [T, 2·K]
    return page_scales.at[where].set(scales, mode="promise_in_bounds")
