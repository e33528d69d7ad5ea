"""A snapshot of the engine as JSON, with what follows from its counts."""

import dataclasses
import itertools
from typing import Any

from palladio.runtime.interface.messages import EngineStats, HistogramData


def describe_stats(stats: EngineStats) -> dict[str, Any]:
    """The fields of EngineStats; and in `cache`, the `hit_rate`: the share of prompt tokens that were found; in
    `device_idle`, the `count` of values, and `p50` and `p99`, which half and 99 % of them do not exceed. In each of
    `groups`, `cache_hit_rate`; where there is one group, no `groups`."""
    cache, idle = stats.cache, stats.device_idle
    derived = {
        "cache": {"hit_rate": _share(cache.num_hit_tokens, cache.num_prompt_tokens)},
        "device_idle": {"count": sum(idle.counts), "p50": upper_bound(idle, 0.50), "p99": upper_bound(idle, 0.99)},
    }
    values = dataclasses.asdict(stats)
    groups = values.pop("groups")
    for group in groups:
        group["cache_hit_rate"] = _share(group["num_hit_tokens"], group["num_prompt_tokens"])
    values |= {name: values[name] | more for name, more in derived.items()}
    return values | {"groups": groups} if groups else values


def upper_bound(histogram: HistogramData, share: float) -> float | None:
    """The lowest bound that this share of the values does not exceed; None: there are no values, or no such bound."""
    needed = share * sum(histogram.counts)
    if needed == 0:
        return None
    reached = itertools.accumulate(histogram.counts)
    return next((bound for bound, count in zip(histogram.bounds, reached, strict=False) if count >= needed), None)


def _share(count: int, total: int) -> float | None:
    return count / total if total else None
