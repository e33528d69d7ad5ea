"""Metrics that routers read under vLLM's names, and how large the KV cache is. Each has one sample, of all
data-parallel ranks together: schedulers take one sample a server."""

import time

from palladio.http.observability.metrics.metric import Metric, Samples, one
from palladio.runtime.interface.messages.engine_state import EngineReady
from palladio.runtime.interface.messages.engine_stats import EngineStats


def _pages(size_label: str, count_label: str) -> Metric[EngineReady]:
    """Make a metric whose labels hold the figures; its value is always 1."""

    def samples(info: EngineReady) -> Samples:
        count = info.max_total_tokens // info.page_size * info.num_ranks
        return [({size_label: str(info.page_size), count_label: str(count)}, 1)]

    prefix = "sglang" if count_label == "num_pages" else "vllm"
    return Metric("gauge", f"{prefix}:cache_config_info", "Pages of the KV cache, as labels", samples)


def _usage(stats: EngineStats) -> float:
    total = stats.total
    return total.num_used_tokens / total.num_total_tokens if total.num_total_tokens else 0.0


def _hit_rate(stats: EngineStats) -> float:
    total = stats.total
    return total.num_hit_tokens / total.num_prompt_tokens if total.num_prompt_tokens else 0.0


def _adapters(_: EngineStats) -> Samples:
    """There are none. llm-d's scheduler asks for it of servers that it takes for vLLM, and logs an error at each scrape
    without it. The value is the time, as vLLM has it."""
    return [({"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}, time.time())]


ROUTER_LIMITS: tuple[Metric[EngineReady], ...] = (
    _pages("page_size", "num_pages"),
    _pages("block_size", "num_gpu_blocks"),
)


def _prefix_cache(prefix: str) -> tuple[Metric[EngineStats], ...]:
    looked_up = "Prompt tokens that were looked up in the prefix cache"
    found = "Prompt tokens that were found in the prefix cache"
    return (
        Metric("counter", f"vllm:{prefix}_queries", looked_up, one(lambda stats: stats.total.num_prompt_tokens)),
        Metric("counter", f"vllm:{prefix}_hits", found, one(lambda stats: stats.total.num_hit_tokens)),
    )


# The names with gpu_ are those of vLLM's earlier versions; production-stack's router reads them still.
ROUTER_METRICS: tuple[Metric[EngineStats], ...] = (
    Metric("gauge", "vllm:num_requests_running", "Running requests", one(lambda stats: stats.total.num_running)),
    Metric("gauge", "vllm:num_requests_waiting", "Waiting requests", one(lambda stats: stats.total.num_waiting)),
    Metric("gauge", "vllm:kv_cache_usage_perc", "Used share of the KV cache, 0 to 1", one(_usage)),
    Metric("gauge", "vllm:gpu_cache_usage_perc", "Used share of the KV cache, 0 to 1", one(_usage)),
    *_prefix_cache("prefix_cache"),
    *_prefix_cache("gpu_prefix_cache"),
    Metric("gauge", "vllm:gpu_prefix_cache_hit_rate", "Found share of prompt tokens, 0 to 1", one(_hit_rate)),
    Metric("gauge", "vllm:lora_requests_info", "LoRA adapters, as labels: none; the value is the time", _adapters),
)
