"""Writing new keys and values into the paged cache, in place."""

from palladio.pallas_kernels.kv_cache_update.api import kv_cache_update

__all__ = ["kv_cache_update"]
