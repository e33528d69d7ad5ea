"""Routes about the server and its requests: metrics, explanations, profiles."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from palladio.http.generation.context import Context
from palladio.http.observability.explain.explanation import explain_record
from palladio.http.observability.metrics.engine_stats import EngineStatsReader
from palladio.http.observability.metrics.exposition import Snapshot, expose
from palladio.http.observability.protocol_profile import StartProfileRequest
from palladio.http.observability.records.request_record import RequestRecord
from palladio.http.security.admin_access import check_admin_access
from palladio.http.security.callers import CallerOf
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.runtime.interface.errors import EngineDeadError, EngineNotReadyError, InvalidRequestError
from palladio.runtime.interface.messages.engine_state import EngineReady
from palladio.runtime.interface.messages.engine_stats import LiveRequest


def observe_router(context: Context) -> APIRouter:
    router = APIRouter()
    _add_metrics(router, context)
    _add_explain(router, context)
    _add_profile(router, context)
    return router


def _add_metrics(router: APIRouter, context: Context) -> None:
    reader = EngineStatsReader(context.engine)

    @router.get("/metrics", response_model=None)
    async def metrics(request: Request) -> Response:
        """Prometheus's text; always 200: palladio:engine_up is 0 for an engine that does not answer."""
        stats, engine = await reader.read(), context.engine
        snapshot = Snapshot(
            context.names.shown[0],
            is_up=stats is not None and engine.state == "ready",
            front=context.observer.metrics,
            info=_limits(context),
            stats=stats,
            num_restarts=engine.num_restarts,
        )
        text, content_type = expose(snapshot, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})


def _limits(context: Context) -> EngineReady | None:
    """None: it has never been ready."""
    try:
        return context.engine.info
    except (EngineDeadError, EngineNotReadyError):
        return None


def _add_explain(router: APIRouter, context: Context) -> None:
    @router.get("/v1/requests/{request_id:path}/explain", response_model=None)  # an id may hold slashes
    async def explain(request_id: str, caller: CallerOf, sample: str | None = None) -> Response:
        """Where a request's time went or goes: one that runs, or one of the last --num-explained-requests."""
        record = context.observer.find(request_id, caller)
        if record is None:
            raise HttpError(
                ErrorBody(
                    404,
                    f"no request {request_id!r} runs, and none is among the last "
                    f"{context.observability.num_explained_requests} that ended (--num-explained-requests)",
                    code="request_not_found",
                )
            )
        only = _index_of(sample, len(record.samples))
        live = await _ask_about(context, record) if record.status == "live" else {}
        fields = explain_record(record, live, context.engine.info.max_running_requests, only)
        return JSONResponse(fields)  # not by way of pydantic: a timeline may have thousands of records


def _index_of(sample: str | None, count: int) -> int | None:
    """The index of the only sample that is asked for; None: all are.

    Raises:
        InvalidRequestError: there is no such sample.
    """
    if sample is None:
        return None
    if not (sample.isascii() and sample.isdigit() and len(sample) < 10 and int(sample) < count):
        message = f"sample must be the index of one of the request's {count} samples, 0 … {count - 1}, got {sample!r}"
        raise InvalidRequestError(message, param="sample")
    return int(sample)


async def _ask_about(context: Context, record: RequestRecord) -> dict[int, LiveRequest]:
    """What the engine says of the samples that have not ended, by their index in the request."""
    requests = list(record.requests)
    try:
        found = await context.engine.explain([request.scoped_id for request in requests])
    except (EngineDeadError, EngineNotReadyError):
        return {}  # it is being started again; the answer has what the front knows
    return {
        request.first_index + index: state
        for request in requests
        for index, state in found.get(request.scoped_id, {}).items()
    }


def _add_profile(router: APIRouter, context: Context) -> None:
    engine, folder = context.engine, context.observer.profiles

    async def may_profile(request: Request) -> None:
        check_admin_access(context.config, request, "profiling")

    allowed = [Depends(may_profile)]

    @router.post("/start_profile", openapi_extra=describe_body(StartProfileRequest), dependencies=allowed)
    async def start_profile(
        body: Annotated[StartProfileRequest, Depends(JsonBody(StartProfileRequest, is_optional=True))],
    ) -> dict[str, str]:
        """Begins a trace of the engine's host and device, in the xplane format."""
        context.require_ready()
        options = await asyncio.to_thread(body.options, folder)
        await engine.start_profile(options)
        await asyncio.to_thread(folder.began, options.output_dir)
        return {"output_dir": options.output_dir}

    @router.post("/stop_profile", dependencies=allowed)
    async def stop_profile() -> dict[str, str]:
        """Ends the trace, and answers when it is written; `ended_by` names the bound that ended it before."""
        context.require_ready()
        report = await engine.stop_profile()
        return {"output_dir": report.output_dir} | ({"ended_by": report.ended_by} if report.ended_by else {})
