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


def pack_rows(k: jax.Array, v: jax.Array, kv_pages: jax.Array) -> jax.Array:
    """k and v [T, K, H] → rows of the cache [T, K, 2·Hp] in its dtype; lanes beyond H are 0."""
    spare = kv_pages.shape[-1] // 2 - k.shape[-1]
    padding = ((0, 0), (0, 0), (0, spare))
    return jnp.concatenate([jnp.pad(k, padding), jnp.pad(v, padding)], axis=-1).astype(kv_pages.dtype)


def update(kv_pages: jax.Array, k: jax.Array, v: jax.Array, page_ids: jax.Array, page_offsets: jax.Array) -> jax.Array:
    """kv_pages [P, K, S, 2·Hp], k and v [T, K, H] → [P, K, S, 2·Hp]."""
    heads = jnp.arange(kv_pages.shape[1])
    where = page_ids[:, None], heads, page_offsets[:, None]  # [T, K]
    return kv_pages.at[where].set(pack_rows(k, v, kv_pages), mode="promise_in_bounds")
