"""The backend for CPUs: our own C++ on all cores.

XLA:CPU runs a loop over requests on one core, and copies every page before it multiplies.
"""

import jax
import jax.numpy as jnp

from palladio.pallas_kernels.cpu_native.calls import paged_attention
from palladio.pallas_kernels.ragged_paged_attention.inputs.metadata import AttentionMetadata, AttentionOptions


def attention(q: jax.Array, kv_pages: jax.Array, metadata: AttentionMetadata, options: AttentionOptions) -> jax.Array:
    """Attend: q [T, N, H], kv_pages f32[P, K, S, 2·Hp] → [T, N, H].

    Raises:
        NotImplementedError: the library is not loaded, or the cache is not of float32.
    """
    if not options.target.is_native:
        raise NotImplementedError("needs our C++ for CPUs, see --cpu-kernels")
    if kv_pages.dtype != jnp.float32:
        raise NotImplementedError(f"needs a KV cache of float32, not {kv_pages.dtype}")
    out = paged_attention(
        q.astype(jnp.float32) * (options.scale * options.k_scale),
        kv_pages,
        metadata.query_start,
        metadata.kv_len,
        metadata.block_table,
        options.sinks,
        window=options.sliding_window,
        soft_cap=options.soft_cap,
    )
    return (out * options.v_scale).astype(q.dtype)
