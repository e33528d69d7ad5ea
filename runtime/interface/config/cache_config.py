"""The flags of the KV cache and the prefix cache."""

import dataclasses
from typing import Literal

from palladio.runtime.interface.config.field_checks import check_fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """KV cache and prefix cache.

    Attributes:
        page_size: Tokens per KV cache page. Default: 16; on a TPU the smallest of 16, 32, 64 and 128 that makes a page
            of at least 32 KiB per layer and device.
        max_total_tokens: KV cache size in tokens, summed over all data-parallel ranks. Default: as many tokens as fit
            next to the weights and the compiled programs.
        mem_fraction_static: Fraction of device memory for weights plus KV cache. Default: 92 % of device memory minus
            compiled-program workspace (50 % of RAM on CPU). Lower it after an out-of-memory error.
        kv_cache_dtype: Data type of the KV cache. auto: that of activations. An 8-bit type holds about twice as many
            tokens: fp8_e4m3 (fp8) and fp8_e5m2 rounded with the checkpoint's scales, if it has any; int8 with a scale
            for each token and head. TPU kernels then need a --page-size that is a multiple of 32.
        disable_radix_cache: Turn the prefix cache off: every prompt is computed in full.
        radix_eviction_policy: Which cached prefixes are evicted first: lru, least recently used; lfu, least often.
        cache_self_check: Fraction of prefix cache hits (0 … 1) to recompute and compare while the engine is idle. A
            difference is logged with the request's id and turns the prefix cache off.
        state_snapshot_bytes: Memory of each device for snapshots, of models whose layers keep states (Qwen3-Next): the
            prefix cache finds a prompt's beginning only where a snapshot was kept; 0 turns it off for such models.
            Default: 20 % of what weights leave, and no more than 4 snapshots for each request that may run.
        state_snapshot_interval: Tokens of a prompt between two such snapshots; a prompt has one at its last full page
            too, and where it departs from an earlier one. Default: the size of a chunk (--chunked-prefill-size).
        kv_events_config: Publish which prefixes are cached, for routers, over ZeroMQ as vLLM and SGLang do: JSON with
            their keys (enable_kv_cache_events, publisher, endpoint, replay_endpoint, topic, buffer_steps, hwm,
            max_queue_size). Every client of the endpoint can read the tokens of all prompts. Default: off.
    """

    page_size: int | None = None
    max_total_tokens: int | None = None
    mem_fraction_static: float | None = None
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "bf16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"] = (
        "auto"
    )
    disable_radix_cache: bool = False
    radix_eviction_policy: Literal["lru", "lfu"] = "lru"
    cache_self_check: float = 0.0
    state_snapshot_bytes: int | None = None
    state_snapshot_interval: int | None = None
    kv_events_config: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
