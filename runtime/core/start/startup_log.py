"""The lines that the log has about an engine's start."""

import logging

import jax
import jax.numpy as jnp

from palladio.model.spec.layer_spec import AttentionSpec
from palladio.runtime.core.plan.engine_plan import EnginePlan
from palladio.runtime.core.plan.memory_log import Memory
from palladio.runtime.core.start.build_scheduler import shares_prefixes

logger = logging.getLogger("palladio.engine")


def describe_engine(design: EnginePlan) -> str:
    """One line: what the engine runs on, and how."""
    device, shape = design.device, design.shape
    found = len(jax.devices())
    used = shape.mesh.devices.size
    count = f"{used}" if used == found else f"{used} of {found}"
    prefixes = shares_prefixes(design.config, shape.page_groups, None if shape.pooling is None else shape.pooling.name)
    return (
        f"Engine: device={count} x {device.device_kind} ({device.platform}), "
        f"attention_backend={design.kernels.attention}, dtype={jnp.dtype(shape.dtype).name}, "
        f"kv_cache_dtype={shape.cache.spec.dtype.name}{_cache_scales(design)}, page_size={shape.page_size}, "
        f"prefix_cache={'on' if prefixes else 'off'}"
    )


def _cache_scales(design: EnginePlan) -> str:
    """Which a cache of 8 bits has, and whether the checkpoint has some that are not used; "" where there are none."""
    dtype = design.shape.cache.spec.dtype
    attentions = (layer.attention for layer in design.model.layers)
    has_scales = any(isinstance(spec, AttentionSpec) and spec.has_cache_scales for spec in attentions)
    if dtype.itemsize == 1:
        of_floats = "scales of the checkpoint" if has_scales else "scales of 1"
        return f" ({'a scale for each token and head' if dtype == jnp.int8 else of_floats})"
    return " (the checkpoint's scales are for fp8_e4m3)" if has_scales else ""


def log_pool(design: EnginePlan) -> None:
    half, num_tokens = design.plan.report.kv_cache / 2 / 2**30, design.plan.total_tokens
    logger.info("KV Cache is allocated. #tokens: %d, K size: %.2f GB, V size: %.2f GB", num_tokens, half, half)
    logger.info("Memory pool end. avail mem=%.2f GB", Memory.now().available)
    if design.device.platform == "cpu":
        logger.info(
            "Resident memory: %.2f GB; the KV cache grows to %.2f GB as requests fill it",
            Memory.now().resident,
            2 * half,
        )


def log_limits(design: EnginePlan) -> None:
    logger.info(
        "max_total_num_tokens=%d, chunked_prefill_size=%d, max_prefill_tokens=%d, max_running_requests=%d, "
        "context_len=%d, available_gpu_mem=%.2f GB",
        design.plan.total_tokens,
        design.limits.chunk,
        design.config.scheduler.max_prefill_tokens,
        design.limits.total_running,
        design.limits.context_length,
        Memory.now().available,
    )
