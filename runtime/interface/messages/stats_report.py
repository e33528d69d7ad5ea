"""A snapshot of the engine as JSON, with what follows from its counts."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from palladio.runtime.interface.messages.engine_stats import EngineStats, HistogramData
from palladio.runtime.interface.outputs.counts import EventCounts, SnapshotCounts

_COUNTS = tuple(field.name for kind in (SnapshotCounts, EventCounts) for field in dataclasses.fields(kind))
_OF_CACHE = ("num_cached_tokens", "num_prompt_tokens", "num_hit_tokens", "num_evicted_tokens", *_COUNTS)


def describe_stats(stats: EngineStats) -> dict[str, Any]:
    """The sums over all ranks and the other fields of EngineStats; those of the prefix cache in `cache`, with the
    `hit_rate`: the share of prompt tokens that were found; in `device_idle`, the `count` of values, and `p50` and
    `p99`, which half and 99 % of them do not exceed. Where there are several ranks, `groups` has each one's RankStats
    and its `cache_hit_rate`. `avg_spec_accept_length`: tokens that a row with drafts gives."""
    values, total, idle = dataclasses.asdict(stats), dataclasses.asdict(stats.total), stats.device_idle
    ranks = values.pop("ranks")
    for name in ("unassigned", "pages", "memory_in_use"):
        del values[name]
    cache = {"enabled": values.pop("cache_enabled")}
    cache |= {name: total.pop(name) for name in _OF_CACHE}
    cache |= {name: values.pop(name) for name in ("num_self_checks", "num_self_check_failures")}
    values["cache"] = cache | {"hit_rate": _hit_rate(cache)}
    values["device_idle"] |= {"count": sum(idle.counts), "p50": upper_bound(idle, 0.50), "p99": upper_bound(idle, 0.99)}
    values["avg_spec_accept_length"] = stats.total.drafts.accept_length if stats.total.num_draft_rows else None
    groups = {"groups": [rank | {"cache_hit_rate": _hit_rate(rank)} for rank in ranks]} if len(ranks) > 1 else {}
    return total | values | groups


def upper_bound(histogram: HistogramData, share: float) -> float | None:
    """The lowest bound that this share of the values does not exceed; None: there are no values, or no such bound."""
    needed = share * sum(histogram.counts)
    if needed == 0:
        return None
    reached = itertools.accumulate(histogram.counts)
    return next((bound for bound, count in zip(histogram.bounds, reached, strict=False) if count >= needed), None)


def _hit_rate(counts: Mapping[str, int]) -> float | None:
    return counts["num_hit_tokens"] / counts["num_prompt_tokens"] if counts["num_prompt_tokens"] else None
