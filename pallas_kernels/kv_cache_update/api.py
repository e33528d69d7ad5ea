"""The public interface of the cache write; picks a backend."""

import functools
from typing import TypeVar, cast

import jax

from palladio.pallas_kernels.dispatch import dispatch
from palladio.pallas_kernels.kv_cache_update import cpu_native, reference, tpu, tpu_scales, xla
from palladio.pallas_kernels.kv_cache_update.writes import CacheWrites
from palladio.pallas_kernels.ragged_paged_attention.inputs.layout import KVPages, ScaledPages, pack_rows, quantize_rows
from palladio.pallas_kernels.target import Target

OP = "kv_cache_update"
BACKENDS = {"tpu": tpu.update, "cpu_native": cpu_native.update, "xla": xla.update, "reference": reference.update}
OF_SCALES = {"tpu": tpu_scales.update, "xla": xla.update_scales, "reference": reference.update_scales}
AUTO_ORDER = {"cpu": ("xla", "reference"), "tpu": ("tpu", "xla", "reference"), "gpu": ("xla", "reference")}
Pages = TypeVar("Pages", bound=KVPages)
PLANNED = frozenset({"tpu"})  # backends that use CacheWrites.runs


def plan_writes(writes: CacheWrites, *, backend: str = "auto", target: Target = Target()) -> CacheWrites:
    """Add the backend's plan of a step's writes, which each layer would otherwise compute."""
    chosen = target.kept(OP, AUTO_ORDER[target.platform])[0] if backend == "auto" else backend
    return writes.planned() if chosen in PLANNED else writes


def kv_cache_update(
    kv_pages: Pages,
    k: jax.Array,
    v: jax.Array,
    writes: CacheWrites,
    *,
    k_scale: jax.Array | float = 1.0,
    v_scale: jax.Array | float = 1.0,
    backend: str = "auto",
    target: Target = Target(),
) -> Pages:
    """Write one row per token and kv head.

    Args:
        kv_pages: [P, K, S, 2·Hp] one layer's cache; donate it, and the write is in place.
        k: [T, K, H] keys.
        v: [T, K, H] values.
        writes: target cells. No cell twice, except on page 0; tokens of one page follow each other along T and in it.
        k_scale, v_scale: f32[], divisors of a float8 cache before it rounds; other caches ignore them.
        backend: "auto", or the name of one.
        target: the device that kernels are compiled for; "auto" picks by it.

    Returns:
        [P, K, S, 2·Hp] the cache with those rows replaced, and their scales in a cache of int8. The content of page 0
        is not defined.

    Raises:
        ValueError: unknown backend.
        NotImplementedError: no backend accepts the call.
    """
    if isinstance(kv_pages, ScaledPages):
        rows, scales = quantize_rows(k, v, kv_pages.shape[-1])
        scaled = ScaledPages(
            write_rows(kv_pages.rows, rows, writes, backend=backend, target=target),
            write_scales(kv_pages.scales, scales, kv_pages.shape[2], writes, backend=backend, target=target),
        )
        return cast(Pages, scaled)
    rows = pack_rows(k, v, kv_pages.shape[-1], kv_pages.dtype, k_scale, v_scale)
    return cast(Pages, write_rows(kv_pages, rows, writes, backend=backend, target=target))


def write_rows(
    kv_pages: jax.Array, rows: jax.Array, writes: CacheWrites, *, backend: str = "auto", target: Target = Target()
) -> jax.Array:
    """Write rows [T, K, W], already packed, into a cache [P, K, S, W], as `kv_cache_update`."""
    calls = {name: functools.partial(call, kv_pages, rows, writes, target) for name, call in BACKENDS.items()}
    return dispatch(OP, calls, target.kept(OP, AUTO_ORDER[target.platform]), backend)


def write_scales(
    page_scales: jax.Array,
    scales: jax.Array,
    page_size: int,
    writes: CacheWrites,
    *,
    backend: str = "auto",
    target: Target = Target(),
) -> jax.Array:
    """Write scales f32[T, 2·K] into the scales of a cache of int8, f32[P, R, C·S], as `kv_cache_update`."""
    args = page_scales, scales, page_size, writes, target
    calls = {name: functools.partial(call, *args) for name, call in OF_SCALES.items()}
    return dispatch(OP, calls, target.kept(OP, AUTO_ORDER[target.platform]), backend)
