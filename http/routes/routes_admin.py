"""Probes, information and control."""

import asyncio
import contextlib
import dataclasses
import uuid
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from palladio.http.generation.context import Context
from palladio.http.generation.output_stream import OutputStream
from palladio.http.generation.whole import collect
from palladio.http.observability.metrics.engine_stats import SharedCall
from palladio.http.security.callers import CallerOf
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.errors import ErrorBody, HttpError
from palladio.http.wire.protocol import WireModel
from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.interface.errors import InvalidRequestError, OverloadedError
from palladio.runtime.interface.messages.stats_report import describe_stats
from palladio.runtime.interface.request.embedding import EMBEDDING_PARAMS
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.version import __version__

HEALTH_TIMEOUT = 20.0  # seconds that one token may take, SGLang's value
FLUSH_POLL = 0.05
FAILED = ("dead", "restarting")  # states that say why


class AbortRequest(WireModel):
    rid: Annotated[str, Field(max_length=256)] | None = None  # "" from clients that abort all
    abort_all: bool | None = None


def admin_router(context: Context) -> APIRouter:
    router = APIRouter()
    _add_probes(router, context)
    _add_information(router, context)
    _add_control(router, context)
    return router


def _json(status: int, content: dict[str, Any]) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _health(engine: EngineClient, more: dict[str, Any]) -> Response:
    """Answer with the engine's state.

    Args:
        more: further fields of the answer.
    """
    liveness = engine.liveness
    if engine.state == "ready" and liveness.stall is not None:
        return _json(503, {"state": "unresponsive", "failure": liveness.stall} | more)
    content: dict[str, Any] = {"state": engine.state}
    if engine.state in FAILED:
        content["failure"] = engine.failure
    if liveness.busy:
        content["busy"] = liveness.busy
    if engine.state == "ready" and engine.info.degraded:
        content["degraded"] = engine.info.degraded
    return _json(200 if engine.state == "ready" else 503, content | more)


def _add_probes(router: APIRouter, context: Context) -> None:
    engine = context.engine

    @router.get("/ping", response_model=None)
    @router.get("/healthz", response_model=None)
    @router.get("/health", response_model=None)
    async def health() -> Response:
        """200 while requests are served, else 503; `degraded` is what the check of the start found wrong. /ping is
        SageMaker's name of it, /healthz Kubernetes' own."""
        return _health(engine, {})

    @router.get("/livez", response_model=None)
    async def live() -> Response:
        """200 until the engine has failed for good, when only a new process helps: also while it starts, restarts or
        drains."""
        return _json(503 if engine.state == "dead" else 200, {"state": engine.state})

    @router.get("/readyz", response_model=None)
    @router.get("/ready", response_model=None)
    async def ready() -> Response:
        """As /health, with the progress of the start."""
        return _health(engine, {} if engine.progress is None else dataclasses.asdict(engine.progress))

    @router.get("/health_generate", response_model=None)
    async def health_generate() -> Response:
        """Generates one token, or makes an embedding of one; 503 if that fails or takes longer than 20 seconds.

        Probes at the same time share one token.
        """
        context.require_ready()
        await probe.get()
        return _json(200, {"state": engine.state})

    async def generate() -> None:
        name = f"health-{uuid.uuid4().hex}"
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        if engine.info.embedding is not None:
            params = EMBEDDING_PARAMS
        stream = OutputStream(context, [GenerationRequest(name, [0], params)])
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT):
                await collect(stream)
        except TimeoutError:
            raise HttpError(ErrorBody(503, f"no token within {HEALTH_TIMEOUT:g} seconds", code="unhealthy")) from None

    probe = SharedCall(generate)


def _add_information(router: APIRouter, context: Context) -> None:
    engine = context.engine
    stats = SharedCall(lambda: engine.stats(check_integrity=True))  # no step runs while it looks

    @router.get("/version")
    async def get_version() -> dict[str, str]:
        return {"version": __version__}

    @router.get("/model_info")
    @router.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        source, info = engine.config.source, engine.info
        return {
            "model_path": engine.model.path or source.model_path,
            "served_model_name": context.names.shown[0],
            "tokenizer_path": source.tokenizer_path or source.model_path,
            "is_generation": info.embedding is None,
            "preferred_sampling_params": dict(context.facts.sampling_defaults) or None,
            "load_format": source.load_format,
            "weight_version": engine.model.version,
            "model_type": info.model_type,
            "architectures": [info.architecture],
            "max_model_len": context.facts.max_model_len,
            "vocab_size": info.vocab_size,
            "has_image_understanding": False,
            "has_audio_understanding": False,
        }

    @router.get("/server_info")
    @router.get("/get_server_info")
    async def server_info() -> dict[str, Any]:
        """All settings (secrets as ***), the engine's limits and a snapshot of its load.

        Routers read SGLang's names.
        """
        limits = dataclasses.asdict(engine.info)
        load = describe_stats(await stats.get())
        source = engine.config.source
        as_sglang_has_it = {
            "served_model_name": context.names.shown[0],
            "tokenizer_path": source.tokenizer_path or source.model_path,
            "max_total_num_tokens": engine.info.max_total_tokens,
            "max_req_input_len": context.facts.max_model_len - 1,
        }
        return (
            engine.config.flags()
            | context.config.public()
            | vars(context.observer.config)
            | limits
            | as_sglang_has_it
            | {
                "version": __version__,
                "weight_version": engine.model.version,
                "state": engine.state,
                "startup_time": context.started,
                "internal_states": [load],
            }
        )


def _add_control(router: APIRouter, context: Context) -> None:
    engine = context.engine
    lock = asyncio.Lock()  # of calls that wait for the engine to be idle: one at a time asks

    @router.get("/flush_cache", response_model=None)
    @router.post("/flush_cache", response_model=None)
    async def flush_cache(timeout: Annotated[float, Query(ge=0, le=3600)] = 0.0) -> Response:
        """Drops the prefix cache; while requests run, waits up to `timeout` seconds, then answers 400."""
        context.require_ready()
        try:
            await engine.flush_cache()
        except OverloadedError as exc:
            message = f"{exc}; try again when it is idle, or give ?timeout=SECONDS"
            try:
                async with asyncio.timeout(timeout), lock:
                    await _flush_when_idle(engine)
            except TimeoutError:
                raise HttpError(ErrorBody(400, message, code="busy")) from None
        return Response("Cache flushed.\n", media_type="text/plain")

    @router.post("/abort_request", openapi_extra=describe_body(AbortRequest))
    async def abort_request(
        caller: CallerOf, body: Annotated[AbortRequest, Depends(JsonBody(AbortRequest))]
    ) -> dict[str, int]:
        """Aborts the caller's requests, by request id or all; an unknown id may have just ended, and is no error."""
        if not body.rid and not body.abort_all:
            raise InvalidRequestError("give rid, or abort_all: true", param="rid")
        engine_ids = context.running.engine_ids(caller, None if body.abort_all or body.rid is None else (body.rid,))
        return {"aborted": sum([await engine.abort(engine_id) for engine_id in engine_ids])}


async def _flush_when_idle(engine: EngineClient) -> None:
    while True:
        await asyncio.sleep(FLUSH_POLL)
        with contextlib.suppress(OverloadedError):
            return await engine.flush_cache()
