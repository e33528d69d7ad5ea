"""What each group of devices is at: its own part of the engine's snapshot."""

from collections.abc import Sequence

from palladio.runtime.core.explain import num_retracted_waiting
from palladio.runtime.interface.messages import RankStats
from palladio.runtime.scheduling.dp_scheduler import DataParallelScheduler
from palladio.runtime.scheduling.scheduler import Scheduler


def rank_stats(groups: DataParallelScheduler, throughputs: Sequence[float]) -> list[RankStats]:
    """One entry a group; none if there is only one, which is the whole engine. Args: throughputs: of each, tokens/s."""
    if len(groups.schedulers) == 1:
        return []
    return [_stats(scheduler, rate) for scheduler, rate in zip(groups.schedulers, throughputs, strict=True)]


def num_waiting_tokens(scheduler: Scheduler) -> int:
    """Of the prompts of waiting requests, and of what retracted ones had generated."""
    return sum(len(request.token_ids) for request in scheduler.waiting)


def _stats(scheduler: Scheduler, throughput: float) -> RankStats:
    cache, kept = scheduler.cache, scheduler.cache.stats()
    return RankStats(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_used_tokens=cache.num_used_tokens,
        num_total_tokens=cache.num_total_tokens,
        last_gen_throughput=throughput,
        new_token_ratio=scheduler.kv_budget.ratio.value,
        num_retracted_waiting=num_retracted_waiting(scheduler),
        num_retractions=scheduler.clock.num_retracted,
        num_cached_tokens=kept.num_cached_tokens,
        num_prompt_tokens=kept.num_prompt_tokens,
        num_hit_tokens=kept.num_hit_tokens,
        num_evicted_tokens=kept.num_evicted_tokens,
        num_waiting_tokens=num_waiting_tokens(scheduler),
    )
