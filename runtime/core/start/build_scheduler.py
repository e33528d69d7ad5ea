"""The host's half of an engine: scheduler, queue and cache manager of each data-parallel rank."""

from palladio.runtime.core.plan.sizing import EngineLimits
from palladio.runtime.core.start.kv_events import open_events
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.request.embedding import EmbeddingSpec
from palladio.runtime.scheduling.batch.buckets import Buckets, SchedulerLimits
from palladio.runtime.scheduling.cache.cache_manager import CacheManager
from palladio.runtime.scheduling.dp_router import DataParallelRouter
from palladio.runtime.scheduling.dp_scheduler import DataParallelScheduler, EngineScheduler
from palladio.runtime.scheduling.policy.batch_share import BatchShare
from palladio.runtime.scheduling.policy.waiting_queue import WaitingQueue
from palladio.runtime.scheduling.scheduler import Scheduler
from palladio.runtime.scheduling.state.page_groups import PageGroups

# With --load-balance-method prefix, a rank may be busier than others by this part of its KV cache.
SLACK_PARTS = 4


def build_scheduler(
    config: EngineConfig,
    limits: EngineLimits,
    buckets: Buckets,
    num_pages: int,
    groups: PageGroups,
    seed: int,
    embedding: EmbeddingSpec | None = None,
) -> EngineScheduler:
    """The host's half of an engine: scheduler, queue and cache manager of each data-parallel rank.

    Args:
        num_pages: of each rank. groups: which block tables requests have pages for.
        embedding: see EngineReady. What is pooled from all of a prompt is not known of a cached prefix.
    """
    options = config.scheduler
    low_values_first, by_priority = options.schedule_low_priority_values_first, options.schedule_policy == "priority"
    scheduler_limits = SchedulerLimits(
        max_running=limits.max_running,
        max_queued=options.max_queued_requests,
        max_step_tokens=limits.max_step_tokens,
        splits_prompts=limits.chunk != -1,
        fills_steps=embedding is not None and embedding.is_encoder,
        mixes=limits.mixes,
        num_decode_steps=options.num_continuous_decode_steps or 1,
        joined_passes=limits.joined_passes,
        num_drafts=config.speculative.num_drafts,
        preemption_threshold=options.priority_scheduling_preemption_threshold if by_priority else None,
        low_values_first=low_values_first,
        conservativeness=options.schedule_conservativeness,
    )
    schedulers = []
    share = BatchShare(options.background_slowdown)
    for events in open_events(config, limits.num_ranks, groups.page_size):
        cache = CacheManager(
            num_pages,
            groups,
            shares_prefixes=shares_prefixes(config, groups, None if embedding is None else embedding.pooling),
            eviction_policy=config.cache.radix_eviction_policy,
            low_values_first=low_values_first,
            events=events,
        )
        waiting = WaitingQueue.create(
            options.schedule_policy, cache.tree, groups.page_size, low_values_first=low_values_first, seed=seed
        )
        schedulers.append(Scheduler(scheduler_limits, buckets, cache, waiting, share))
    if len(schedulers) == 1:
        return schedulers[0]
    num_tokens = schedulers[0].cache.num_total_tokens
    router = DataParallelRouter(config.parallel.load_balance_method, limits.num_ranks, num_tokens // SLACK_PARTS)
    return DataParallelScheduler(schedulers, router)


def shares_prefixes(config: EngineConfig, groups: PageGroups, pooling: str | None) -> bool:
    """Return whether prompts share the pages of their common beginnings.

    Args:
        pooling: how embeddings are made (--is-embedding); None: the engine generates text.
    """
    return not config.cache.disable_radix_cache and pooling in (None, "last") and groups.can_share
