"""The load as routers ask for it: SGLang's GET /v1/loads and /get_load, a data-parallel rank each, and vLLM's /load."""

import datetime
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from palladio import __version__
from palladio.http.generation.context import Context
from palladio.http.observability.engine_stats import EngineStatsReader
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.messages import RankStats


def load_router(context: Context) -> APIRouter:
    router, reader = APIRouter(), EngineStatsReader(context.engine)

    async def read() -> list[RankStats]:
        context.require_ready()
        stats = await reader.read()
        if stats is None:
            raise HttpError(ErrorBody(503, "the engine does not answer now; try again soon", code="unhealthy"))
        return stats.by_rank

    @router.get("/v1/loads")
    async def loads(
        dp_rank: Annotated[int | None, Query(ge=0)] = None,
        include: str = "core",
        format: Literal["json"] = "json",  # noqa: A002
    ) -> dict[str, Any]:
        """Requests and tokens of each data-parallel rank, or of the one of `dp_rank`."""
        others = {name.strip() for name in include.split(",")} - {"core", "all"}
        if others:
            raise InvalidRequestError(
                f"include: {', '.join(sorted(others))!r} is not available, only core is; GET /server_info has more",
                param="include",
            )
        ranks = await read()
        max_running = context.engine.info.max_running_requests // len(ranks)
        return {
            "timestamp": datetime.datetime.now(datetime.UTC).isoformat(),
            "version": __version__,
            "loads": [_load(rank, part, max_running) for rank, part in enumerate(ranks) if dp_rank in (None, rank)],
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
            for rank, part in enumerate(await read())
        ]

    @router.get("/load")
    async def server_load() -> dict[str, int]:
        """How many requests there are; the engine is not asked."""
        return {"server_load": len(context.observer.live)}

    return router


def _load(rank: int, part: RankStats, max_running: int) -> dict[str, Any]:
    hits, prompts = part.num_hit_tokens, part.num_prompt_tokens
    return {
        "dp_rank": rank,
        "num_running_reqs": part.num_running,
        "num_waiting_reqs": part.num_waiting,
        "num_used_tokens": part.num_used_tokens,
        "num_total_tokens": part.num_used_tokens + part.num_waiting_tokens,
        "max_total_num_tokens": part.num_total_tokens,
        "max_running_requests": max_running,
        "token_usage": round(part.num_used_tokens / part.num_total_tokens, 4) if part.num_total_tokens else 0.0,
        "gen_throughput": round(part.last_gen_throughput, 2),
        "cache_hit_rate": round(hits / prompts, 4) if prompts else 0.0,
    }
