"""A snapshot of the engine as JSON, with what follows from its counts."""

import dataclasses
import itertools
from typing import Any

from palladio.runtime.messages import EngineStats, HistogramData


def describe_stats(stats: EngineStats) -> dict[str, Any]:
    """The fields of EngineStats; and in `cache`, the `hit_rate`: the share of prompt tokens that were found; in
    `device_idle`, the `count` of values, and `p50` and `p99`, which half and 99 % of them do not exceed."""
    cache, idle = stats.cache, stats.device_idle
    derived = {
        "cache": {"hit_rate": cache.num_hit_tokens / cache.num_prompt_tokens if cache.num_prompt_tokens else None},
        "device_idle": {"count": sum(idle.counts), "p50": upper_bound(idle, 0.50), "p99": upper_bound(idle, 0.99)},
    }
    values = dataclasses.asdict(stats)
    return values | {name: values[name] | more for name, more in derived.items()}


def upper_bound(histogram: HistogramData, share: float) -> float | None:
    """The lowest bound that this share of the values does not exceed; None: there are no values, or no such bound."""
    needed = share * sum(histogram.counts)
    if needed == 0:
        return None
    reached = itertools.accumulate(histogram.counts)
    return next((bound for bound, count in zip(histogram.bounds, reached, strict=False) if count >= needed), None)
