"""Routes by which vLLM's users pause generation, put the model to sleep, drop the prefix cache and end requests."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Request

from palladio.http.generation.context import Context
from palladio.http.security.admin_access import check_admin_access
from palladio.http.security.callers import CallerOf
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.protocol_model_control import AbortRequestsBody
from palladio.runtime.interface.errors import InvalidRequestError, OverloadedError

Mode = Literal["abort", "wait", "keep"]
SCHEDULING: Final = "scheduling"  # vLLM's tag of a pause; the other tags name memory


def vllm_control_router(context: Context) -> APIRouter:
    async def may_control(request: Request) -> None:
        check_admin_access(context.config, request, "controlling the model")

    router = APIRouter(dependencies=[Depends(may_control)])
    _add_pause(router, context)
    _add_sleep(router, context)
    others = APIRouter()
    _add_others(others, context)
    others.include_router(router)
    return others


def _add_pause(router: APIRouter, context: Context) -> None:
    @router.post("/pause")
    async def pause(mode: Mode = "abort", clear_cache: bool = True) -> dict[str, Any]:
        """Stops generation; new requests wait. `abort` ends the requests that run, `keep` lets them go on later.

        `cache_cleared` is false where requests that wait keep the prefix cache.
        """
        await context.engine.model.pause(_pause_mode(mode, keeps_pages=True))
        if clear_cache and mode == "abort":
            return {"status": "paused", "cache_cleared": await _reset(context)}
        return {"status": "paused"}

    @router.post("/resume")
    async def resume() -> dict[str, str]:
        """Ends a pause; without one it does nothing."""
        await context.engine.model.go_on()
        return {"status": "resumed"}


def _add_sleep(router: APIRouter, context: Context) -> None:
    @router.post("/sleep")
    async def sleep(level: Annotated[int, Query(ge=0, le=2)] = 1, mode: Mode = "abort") -> dict[str, Any]:
        """Level 0 pauses generation; 1 and 2 also free the memory of the weights and the KV cache."""
        model = context.engine.model
        was_paused = model.paused is not None
        await model.pause(_pause_mode(mode, keeps_pages=level == 0))
        try:
            if level:
                await model.release()
        except InvalidRequestError:
            if not was_paused:
                await model.go_on()
            raise
        return {"status": "sleeping", "level": level}

    @router.post("/release_kv_cache_memory")
    async def release_kv_cache_memory() -> dict[str, str]:
        """Frees the memory of the KV cache; no request may be running."""
        await context.engine.model.release(["kv_cache"])
        return {"status": "kv_cache_released"}

    @router.post("/wake_up")
    async def wake_up(tags: Annotated[list[str] | None, Query()] = None) -> dict[str, Any]:
        """Restores memory, all of it or what `tags` name; when none is released any more, a pause ends."""
        model = context.engine.model
        memory = None if not tags else [tag for tag in tags if tag != SCHEDULING]
        if memory is None or memory:
            await model.resume(memory)
        if not model.released:
            await model.go_on()
        return {"status": "sleeping" if model.released else "awake", "tags": tags or None}


def _add_others(router: APIRouter, context: Context) -> None:
    @router.get("/is_paused")
    async def is_paused() -> dict[str, bool]:
        """Whether generation is paused, by whichever route."""
        return {"is_paused": context.engine.model.paused is not None}

    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache(reset_running_requests: bool = False) -> dict[str, bool]:
        """Drops the prefix cache; `success` is false while requests run. There is no external cache to reset."""
        if reset_running_requests:
            message = (
                "reset_running_requests is not supported: wait until no request runs, or POST /pause_generation with "
                'mode "abort"'
            )
            raise InvalidRequestError(message, param="reset_running_requests", code="unsupported_parameter")
        context.require_ready()
        return {"success": await _reset(context)}

    @router.post("/abort_requests", openapi_extra=describe_body(AbortRequestsBody))
    async def abort_requests(
        caller: CallerOf, body: Annotated[AbortRequestsBody, Depends(JsonBody(AbortRequestsBody, is_optional=True))]
    ) -> dict[str, Any]:
        """Aborts requests of the caller: those with these ids, or without ids all. Unknown ids may have just ended."""
        engine_ids = context.running.engine_ids(caller, body.request_ids or None)
        return {"status": "aborted", "aborted": sum([await context.engine.abort(name) for name in engine_ids])}


async def _reset(context: Context) -> bool:
    """Drops the prefix cache. Returns whether it could: no request may run or wait."""
    try:
        await context.engine.flush_cache()
    except OverloadedError:
        return False
    return True


def _pause_mode(mode: Mode, *, keeps_pages: bool) -> str:
    """Returns the mode by SGLang's name.

    Args:
        keeps_pages: requests that go on later keep their KV cache.

    Raises:
        InvalidRequestError: it is not supported.
    """
    match mode:
        case "abort":
            return "abort"
        case "keep":
            return "in_place" if keeps_pages else "retract"
        case "wait":
            message = "mode wait is not supported: wait until GET /load shows no requests, then use mode keep"
            raise InvalidRequestError(message, param="mode", code="unsupported_parameter")
