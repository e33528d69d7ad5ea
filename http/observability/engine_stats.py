"""Snapshots of the engine for those who ask often, one question at a time; and what they say of each group."""

from palladio.http.observability.shared_call import SharedCall
from palladio.runtime.front.engine_protocol import EngineClient
from palladio.runtime.interface.errors import EngineDeadError, EngineNotReadyError
from palladio.runtime.interface.messages import EngineStats, RankStats

STATS_TIMEOUT = 2.0  # seconds; an engine that needs longer counts as one that does not answer


class EngineStatsReader:
    """Whoever asks while a question is under way gets its answer: however many scrape, the engine is asked once."""

    def __init__(self, engine: EngineClient) -> None:
        self._call = SharedCall(lambda: engine.stats(STATS_TIMEOUT))

    async def read(self) -> EngineStats | None:
        """None: the engine does not answer now."""
        try:
            return await self._call.get()
        except (EngineDeadError, EngineNotReadyError):
            return None


def by_group(stats: EngineStats) -> list[RankStats]:
    """The groups of devices; if there is only one, the whole engine is it."""
    if stats.groups:
        return stats.groups
    cache = stats.cache
    whole = RankStats(
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        num_used_tokens=stats.num_used_tokens,
        num_total_tokens=stats.num_total_tokens,
        last_gen_throughput=stats.last_gen_throughput,
        new_token_ratio=stats.new_token_ratio,
        num_retracted_waiting=stats.num_retracted_waiting,
        num_retractions=stats.num_retractions,
        num_cached_tokens=cache.num_cached_tokens,
        num_prompt_tokens=cache.num_prompt_tokens,
        num_hit_tokens=cache.num_hit_tokens,
        num_evicted_tokens=cache.num_evicted_tokens,
        num_waiting_tokens=stats.num_waiting_tokens,
    )
    return [whole]
