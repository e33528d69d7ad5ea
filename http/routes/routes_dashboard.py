"""GET /dashboard/data: all that the dashboard shows, and programs that watch a server without Prometheus."""

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Response

from palladio.http.generation.context import Context
from palladio.http.observability.dashboard.overview import (
    describe_engine,
    describe_pages,
    describe_server,
    describe_totals,
)
from palladio.http.observability.dashboard.sampler import Sampler
from palladio.http.observability.dashboard.series import describe_history
from palladio.http.security.admin_access import check_operator_access
from palladio.http.security.callers import Caller, CallerOf
from palladio.version import __version__

ListBatches = Callable[[Caller], Awaitable[list[dict[str, Any]]]]  # the latest that a caller may see


def dashboard_router(context: Context, sampler: Sampler, list_batches: ListBatches) -> APIRouter:
    """Make the routes of the dashboard.

    Args:
        sampler: the first request starts it, if it does not run.
    """
    router = APIRouter()
    engine, observer = context.engine, context.observer

    @router.get("/dashboard/data", response_model=None)
    async def data(
        caller: CallerOf,
        since: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 0.0,
        pages: bool = False,
        batches: bool = False,
    ) -> Response:
        """The engine now, and the last hour from `since` on (seconds since the epoch). The engine is asked about once a
        second, however many look; for a map of its pages only if somebody wants it."""
        check_operator_access(context.callers, caller)
        await sampler.start()
        stats = sampler.latest
        content = {
            "version": __version__,
            "time": round(time.time(), 3),
            "server": describe_server(engine, context.names.shown, context.started),
            "totals": describe_totals(observer.metrics),
            "engine": None if stats is None else describe_engine(stats),
            "history": describe_history(sampler.history, since),
            "errors": observer.errors.seen_by(caller),
        }
        if pages:
            content["pages"] = describe_pages(await sampler.maps.get())
        if batches:
            content["batches"] = await list_batches(caller)
        return Response(orjson.dumps(content), media_type="application/json", headers={"Cache-Control": "no-store"})

    return router
