"""The load as routers ask for it: SGLang's GET /v1/loads and /get_load, a data-parallel rank each; vLLM's /load and
/is_sleeping."""

import datetime
import time
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from palladio.http.generation.context import Context
from palladio.http.observability.metrics.engine_stats import EngineStatsReader
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.messages.engine_stats import EngineStats, RankStats
from palladio.version import __version__

_SECTIONS = frozenset(("core", "memory", "spec", "lora", "disagg", "queues", "all"))  # SGLang's
_GB = 1 << 30
_FULL_CACHE = 0.9  # of the KV cache: then a server counts as full, for SGLang
_PREFIXES = {"speculative": "spec_", "disaggregation": "disagg_"}  # of SGLang's names of metrics


def load_router(context: Context) -> APIRouter:
    router, reader = APIRouter(), EngineStatsReader(context.engine)

    async def read() -> EngineStats:
        context.require_ready()
        stats = await reader.read()
        if stats is None:
            raise HttpError(ErrorBody(503, "the engine does not answer now; try again soon", code="unhealthy"))
        return stats

    @router.get("/v1/loads", response_model=None)
    async def loads(
        dp_rank: Annotated[int | None, Query(ge=0)] = None,
        include: str = "all",
        format: Literal["json", "prometheus"] = "json",  # noqa: A002
    ) -> dict[str, Any] | Response:
        """Requests and tokens of each data-parallel rank, or of the one of `dp_rank`; `include` picks sections."""
        asked = {name.strip() for name in include.split(",") if name.strip()}
        if others := asked - _SECTIONS:
            raise InvalidRequestError(
                f"include: there is no {', '.join(sorted(others))!r}; it takes {', '.join(sorted(_SECTIONS))}",
                param="include",
            )
        stats = await read()
        ranks = stats.by_rank
        info = context.engine.info
        max_running = info.max_running_requests // len(ranks)
        found = [
            _load(rank, part, max_running) | _sections(stats, part, set(_SECTIONS) if "all" in asked else asked)
            for rank, part in enumerate(ranks)
            if dp_rank in (None, rank)
        ]
        if format == "prometheus":
            return Response(_as_metrics(found), media_type="text/plain; version=0.0.4; charset=utf-8")
        return {
            "timestamp": datetime.datetime.now(datetime.UTC).isoformat(),
            "version": __version__,
            "accelerator": info.device.rpartition(": ")[2],
            "num_accelerators": context.engine.config.parallel.rank_size,
            "dp_rank_count": len(ranks),
            "loads": found,
        }

    @router.get("/get_load")
    async def get_load() -> list[dict[str, Any]]:
        """The same under SGLang's older names."""
        now = time.perf_counter()
        return [
            {
                "dp_rank": rank,
                "num_reqs": part.num_running + part.num_waiting,
                "num_waiting_reqs": part.num_waiting,
                "num_tokens": part.num_used_tokens + part.num_waiting_tokens,
                "num_pending_tokens": part.num_waiting_tokens,
                "ts_tic": now,
            }
            for rank, part in enumerate((await read()).by_rank)
        ]

    @router.get("/load")
    async def server_load() -> dict[str, int]:
        """How many requests there are; the engine is not asked."""
        return {"server_load": len(context.observer.live)}

    @router.get("/is_sleeping")
    async def is_sleeping() -> dict[str, bool]:
        """Whether memory is released: then nothing can be generated until it is resumed."""
        return {"is_sleeping": context.engine.state == "released"}

    return router


def _load(rank: int, part: RankStats, max_running: int) -> dict[str, Any]:
    hits, prompts = part.num_hit_tokens, part.num_prompt_tokens
    usage = part.num_used_tokens / part.num_total_tokens if part.num_total_tokens else 0.0
    return {
        "dp_rank": rank,
        "num_running_reqs": part.num_running,
        "num_waiting_reqs": part.num_waiting,
        "num_waiting_uncached_tokens": part.num_waiting_tokens,
        "num_total_reqs": part.num_running + part.num_waiting,
        "num_used_tokens": part.num_used_tokens,
        "num_total_tokens": part.num_used_tokens + part.num_waiting_tokens,
        "max_total_num_tokens": part.num_total_tokens,
        "max_running_requests": max_running,
        "token_usage": round(usage, 4),
        "gen_throughput": round(part.last_gen_throughput, 2),
        "cache_hit_rate": round(hits / prompts, 4) if prompts else 0.0,
        "utilization": round(max(part.num_running / max_running, usage / _FULL_CACHE), 4),
    }


def _sections(stats: EngineStats, part: RankStats, asked: Collection[str]) -> dict[str, Any]:
    """Return the sections other than core that are asked for. A section without values is left out, as in SGLang."""
    found: dict[str, Any] = {}
    if "memory" in asked:
        memory = stats.memory
        found["memory"] = {
            "weight_gb": round(memory.weights / _GB, 3),
            "kv_cache_gb": round(memory.kv_cache / _GB, 3),
            "graph_gb": round(memory.workspace / _GB, 3),
            "token_capacity": part.num_total_tokens,
        }
    if "spec" in asked and part.num_draft_rows:
        drafts = part.drafts
        found["speculative"] = {
            "accept_length": round(drafts.accept_length, 4),
            "accept_rate": round(drafts.accept_rate, 4),
        }
    if "disagg" in asked:
        found["disaggregation"] = {"mode": "null"} | dict.fromkeys(_OF_DISAGGREGATION, 0)
    if "queues" in asked:
        grammar = stats.unassigned.num_waiting if len(stats.ranks) == 1 else 0  # else it has no rank yet
        retracted = part.num_retracted_waiting
        waiting = part.num_waiting - grammar
        found["queues"] = {"waiting": waiting, "grammar": grammar, "paused": 0, "retracted": retracted}
    return found


_OF_DISAGGREGATION = (
    *("prefill_prealloc_queue_reqs", "prefill_inflight_queue_reqs", "decode_prealloc_queue_reqs"),
    *("decode_transfer_queue_reqs", "decode_retracted_queue_reqs", "kv_transfer_speed_gb_s"),
    "kv_transfer_latency_ms",
)


def _as_metrics(loads: Sequence[dict[str, Any]]) -> str:
    """The numbers of JSON as Prometheus reads them, by SGLang's names; a series for each rank."""
    samples: dict[str, list[str]] = {}
    for load in loads:
        for section, fields in load.items():
            prefix = _PREFIXES.get(section, f"{section}_") if isinstance(fields, dict) else ""
            for name, value in (fields if isinstance(fields, dict) else {section: fields}).items():
                if name != "dp_rank" and isinstance(value, int | float):
                    metric = f"sglang_{prefix}{name}"
                    samples.setdefault(metric, [f"# TYPE {metric} gauge\n"]).append(
                        f'{metric}{{dp_rank="{load["dp_rank"]}"}} {value}\n'
                    )
    return "".join(line for lines in samples.values() for line in lines)
