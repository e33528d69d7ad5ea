"""What the dashboard shows of this moment, for orjson: see docs/api/server.md, "The dashboard's data"."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from palladio.http.observability.dashboard.sampler import MapsAt
from palladio.http.observability.dashboard.series import describe_latencies
from palladio.http.observability.records.front_counts import FrontMetrics
from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.interface.errors import EngineDeadError, EngineNotReadyError
from palladio.runtime.interface.messages.engine_state import EngineReady
from palladio.runtime.interface.messages.engine_stats import EngineStats, RankStats

MOST_PROGRAMS = 8  # that took longest

_OF_MODEL = (
    *("architecture", "device", "dtype", "attention_kernels", "context_length", "max_total_tokens", "page_size"),
    *("max_running_requests", "chunked_prefill_size", "num_ranks"),
)


def describe_server(engine: EngineClient, names: Sequence[str], started: float) -> dict[str, Any]:
    """Describe whether the server serves, and which model.

    Args:
        names: the model's names.
        started: seconds since the epoch.
    """
    info = _info(engine)
    values = {} if info is None else dataclasses.asdict(info)
    return {
        "state": engine.state if engine.liveness.stall is None else "unresponsive",
        "failure": engine.failure or engine.liveness.stall,
        "busy": engine.liveness.busy or None,
        "progress": None if engine.progress is None else dataclasses.asdict(engine.progress),
        "restarts": engine.num_restarts,
        "started": started,
        "model": names[0],
        "limits": {name: values[name] for name in _OF_MODEL} if values else None,
    }


def _info(engine: EngineClient) -> EngineReady | None:
    try:
        return engine.info
    except (EngineDeadError, EngineNotReadyError):
        return None


def describe_totals(front: FrontMetrics) -> dict[str, Any]:
    """Return the front's totals since the server's start, as in /metrics."""
    names = ("requests", "aborted_requests", "prompt_tokens", "generation_tokens", "cached_tokens")
    return {
        **{name: front.totals[name] for name in names},
        "http_active": front.http_active,
        "latencies": describe_latencies(front),
    }


def describe_engine(stats: EngineStats) -> dict[str, Any]:
    """Return the engine's figures since its start."""
    total, has_ranks = stats.total, len(stats.ranks) > 1
    return {
        **_describe_rank(total),
        "cache_enabled": stats.cache_enabled,
        "ranks": [_describe_rank(rank) for rank in stats.ranks] if has_ranks else [],
        "drafts": _describe_drafts(total) if total.num_draft_rows else None,
        "buckets": list(stats.steps),
        "programs": _describe_programs(stats),
        "memory": dataclasses.asdict(stats.memory) | {"in_use": stats.memory_in_use},
        "grammars": {"count": stats.num_grammars, "bytes": stats.grammar_bytes},
    }


def describe_pages(found: MapsAt) -> dict[str, Any] | None:
    """None: the engine did not answer."""
    if not found.maps:
        return None
    return {"time": round(found.time, 3), "maps": list(found.maps)}


def _describe_rank(rank: RankStats) -> dict[str, Any]:
    looked_up = rank.num_prompt_tokens
    return {
        "running": rank.num_running,
        "waiting": rank.num_waiting,
        "retracted": rank.num_retracted_waiting,
        "retractions": rank.num_retractions,
        "used_tokens": rank.num_used_tokens,
        "cached_tokens": rank.num_cached_tokens,
        "total_tokens": rank.num_total_tokens,
        "prefill_tokens": rank.num_prefill_tokens,
        "hit_tokens": rank.num_hit_tokens,
        "hit_rate": rank.num_hit_tokens / looked_up if looked_up else None,
        "evicted_tokens": rank.num_evicted_tokens,
        "throughput": round(rank.last_gen_throughput, 2) if rank.num_running else 0.0,
    }


def _describe_drafts(total: RankStats) -> dict[str, Any]:
    return {
        "rows": total.num_draft_rows,
        "tokens": total.num_draft_tokens,
        "accepted": total.num_accepted_drafts,
        "accept_rate": total.drafts.accept_rate,
        "accept_length": total.drafts.accept_length,
    }


def _describe_programs(stats: EngineStats) -> dict[str, Any]:
    programs = stats.compile.programs
    results = sorted({program.result for program in programs})
    slowest = sorted(programs, key=lambda program: program.seconds, reverse=True)[:MOST_PROGRAMS]
    return {
        "needed": stats.compile.num_programs,
        "built": len(programs) - stats.compile.count("failed"),
        "by_result": {result: stats.compile.count(result) for result in results},
        "seconds": sum(program.seconds for program in programs),
        "wait_seconds": stats.compile.wait_seconds,
        "after_ready": stats.num_compiles_after_ready,
        "slowest": slowest,
    }
