"""What the server tells about itself and its requests: metrics, explanations, profiles."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from palladio.http.body import JsonBody, describe_body
from palladio.http.context import Context
from palladio.http.errors import ErrorBody, HttpError
from palladio.http.explanation import explain_record
from palladio.http.exposition import Snapshot, expose
from palladio.http.protocol_profile import StartProfileRequest
from palladio.http.request_record import RequestRecord
from palladio.runtime.errors import EngineDeadError, EngineNotReadyError
from palladio.runtime.messages import EngineReady, EngineStats, LiveRequest

STATS_TIMEOUT = 5.0  # seconds; a scrape that takes longer is given up by usual scrapers (10)


def observe_router(context: Context) -> APIRouter:
    router = APIRouter()
    _add_metrics(router, context)
    _add_explain(router, context)
    _add_profile(router, context)
    return router


def _add_metrics(router: APIRouter, context: Context) -> None:
    @router.get("/metrics", response_model=None)
    async def metrics(request: Request) -> Response:
        """Prometheus's text; always 200: an engine that does not answer is told by palladio:engine_up."""
        info, stats = await _ask_engine(context)
        engine = context.engine
        front = context.observer.metrics
        snapshot = Snapshot(context.model_names[0], engine.state, front, info, stats, engine.num_restarts)
        text, content_type = expose(snapshot, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})


async def _ask_engine(context: Context) -> tuple[EngineReady | None, EngineStats | None]:
    try:
        return context.engine.info, await context.engine.stats(STATS_TIMEOUT)
    except (EngineDeadError, EngineNotReadyError):
        return None, None


def _add_explain(router: APIRouter, context: Context) -> None:
    @router.get("/v1/requests/{request_id:path}/explain")  # an id may hold slashes
    async def explain(request_id: str) -> dict[str, Any]:
        """Where a request's time went or goes: one that runs, or one of the last --num-explained-requests."""
        record = context.observer.find(request_id)
        if record is None:
            raise HttpError(
                ErrorBody(
                    404,
                    f"no request {request_id!r} runs, and none is among the last "
                    f"{context.observability.num_explained_requests} that ended (--num-explained-requests)",
                    code="request_not_found",
                )
            )
        live = await _ask_about(context, record) if record.status == "live" else {}
        return explain_record(record, live, context.engine.info.max_running_requests)


async def _ask_about(context: Context, record: RequestRecord) -> dict[int, LiveRequest]:
    """What the engine says of the samples that have not ended, by their index in the request."""
    states: dict[int, LiveRequest] = {}
    for job in record.jobs:
        try:
            found = await context.engine.explain(job.request_id)
        except (EngineDeadError, EngineNotReadyError):
            return states  # it is being started again; what is known here is told
        states |= {job.first_index + index: state for index, state in found.items()}
    return states


def _add_profile(router: APIRouter, context: Context) -> None:
    engine = context.engine

    @router.get("/start_profile", include_in_schema=False)
    @router.post("/start_profile", openapi_extra=describe_body(StartProfileRequest))
    async def start_profile(
        body: Annotated[StartProfileRequest, Depends(JsonBody(StartProfileRequest, is_optional=True))],
    ) -> dict[str, str]:
        """Begins a trace of the engine's host and device, in the xplane format."""
        context.require_ready()
        options = body.options()
        await engine.start_profile(options)
        return {"output_dir": options.output_dir}

    @router.get("/stop_profile", include_in_schema=False)
    @router.post("/stop_profile")
    async def stop_profile() -> dict[str, str]:
        """Writes the trace; no step runs meanwhile."""
        context.require_ready()
        return {"output_dir": await engine.stop_profile()}
