"""The public face of the cache write; picks a backend."""

import functools

import jax

from palladio.pallas_kernels.dispatch import dispatch
from palladio.pallas_kernels.kv_cache_update import reference, xla

BACKENDS = {"xla": xla.update, "reference": reference.update}
AUTO_ORDER = ("xla", "reference")


def kv_cache_update(
    kv_pages: jax.Array,
    k: jax.Array,
    v: jax.Array,
    page_ids: jax.Array,
    page_offsets: jax.Array,
    *,
    backend: str = "auto",
) -> jax.Array:
    """Writes one row per token and kv head.

    Args:
        kv_pages: [P, K, S, 2·Hp] one layer's cache; donate it, and the write is in place.
        k: [T, K, H] keys.
        v: [T, K, H] values.
        page_ids: i32[T] page of each token; padding writes to page 0, whose content is never read.
        page_offsets: i32[T] row within the page.
        backend: "auto", or the name of one.

    Returns:
        [P, K, S, 2·Hp] the cache with those rows replaced.
    """
    bound = {name: functools.partial(call, kv_pages, k, v, page_ids, page_offsets) for name, call in BACKENDS.items()}
    return dispatch("kv_cache_update", bound, AUTO_ORDER, backend)
