"""POST /configure_logging and /freeze_gc: settings of the server's processes, by SGLang's names."""

import asyncio
import logging
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from palladio.http.generation.context import Context
from palladio.http.security.admin_access import check_admin_access
from palladio.http.settings.http_config import LOG_LEVELS
from palladio.http.wire.body import JsonBody, describe_body
from palladio.http.wire.protocol_model_control import ConfigureLoggingBody
from palladio.runtime.interface.errors import ConfigError, InvalidRequestError
from palladio.runtime.telemetry.process_settings import configure_process

_OF_REQUESTS = ("log_requests", "log_requests_level", "log_requests_format")
_NOT_HERE = {
    "dump_requests_folder": "requests are not dumped; log_requests_level 3 logs them whole",
    "dump_requests_threshold": "requests are not dumped; log_requests_level 3 logs them whole",
    "dump_requests_exclude_meta_keys": "requests are not dumped; log_requests_level 3 logs them whole",
    "crash_dump_folder": "start the server with --crash-dump-folder",
}


def process_router(context: Context) -> APIRouter:
    async def may_configure(request: Request) -> None:
        check_admin_access(context.config, request, "configuring the server")

    router = APIRouter(dependencies=[Depends(may_configure)])
    lock = asyncio.Lock()  # two at once would close each other's log

    @router.post("/configure_logging", openapi_extra=describe_body(ConfigureLoggingBody))
    async def configure_logging(
        body: Annotated[ConfigureLoggingBody, Depends(JsonBody(ConfigureLoggingBody))],
    ) -> Response:
        """Changes the log of requests, and the level of the log of both processes. The answer is empty."""
        level = _level(body)
        changes = {name: value for name, value in body if name in _OF_REQUESTS and value is not None}
        if level is not None:
            context.require_ready()
        if changes:
            async with lock:
                await asyncio.to_thread(_configure, context, changes)
        if level is not None:
            await context.engine.configure_process(level)
            configure_process(level, freeze_gc=False)
        return Response()

    @router.post("/freeze_gc", response_model=None)
    async def freeze_gc() -> Response:
        """Leaves all objects that exist now out of garbage collection, in both processes, as at the start."""
        context.require_ready()
        await context.engine.configure_process(freeze_gc=True)
        configure_process(None, freeze_gc=True)
        return Response("Garbage collection frozen.\n", media_type="text/plain")

    return router


def _level(body: ConfigureLoggingBody) -> int | None:
    """Returns the number of the level that is asked for; None: the level stays.

    Raises:
        InvalidRequestError: there is no such level, or the body asks for what this server has not.
    """
    for name, instead in _NOT_HERE.items():
        if vars(body)[name] is not None:
            message = f"not supported: {name}; {instead}"
            raise InvalidRequestError(message, param=name, code="unsupported_parameter")
    if body.log_level is None:
        return None
    name = body.log_level.lower()
    if name not in LOG_LEVELS:
        message = f"log_level must be one of {', '.join(LOG_LEVELS)}, got {body.log_level[:100]!r}"
        raise InvalidRequestError(message, param="log_level")
    return logging.getLevelNamesMapping().get(name.upper(), logging.DEBUG)  # trace is below debug


def _configure(context: Context, changes: dict[str, Any]) -> None:
    try:
        context.observer.configure_log(changes)
    except ConfigError as error:
        raise InvalidRequestError(str(error), param="log_requests") from error
