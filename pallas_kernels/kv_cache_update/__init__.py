"""Writing new keys and values into the paged cache, in place."""

from palladio.pallas_kernels.kv_cache_update.api import kv_cache_update, plan_writes, write_rows
from palladio.pallas_kernels.kv_cache_update.writes import CacheWrites

__all__ = ["CacheWrites", "kv_cache_update", "plan_writes", "write_rows"]
