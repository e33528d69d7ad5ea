"""One table: our errors → HTTP statuses and OpenAI error bodies."""

import dataclasses
import logging
import math
import uuid
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from palladio.http.wire.field_names import RequestNames
from palladio.runtime.interface.errors import (
    DeadlineError,
    EngineDeadError,
    EngineNotReadyError,
    GenerationError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PalladioError,
    RequestAbortedError,
)

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499  # nginx's number: the client asked for the abort, or is gone

# (error, HTTP status, default code); the first row that fits counts
TABLE: tuple[tuple[type[PalladioError], int, str | None], ...] = (
    (ModelNotFoundError, 404, "model_not_found"),
    (InvalidRequestError, 400, None),
    (EngineNotReadyError, 503, "engine_not_ready"),
    (OverloadedError, 503, "overloaded"),
    (EngineDeadError, 503, "engine_dead"),
    (DeadlineError, 504, "deadline_exceeded"),
    (RequestAbortedError, CLIENT_CLOSED_REQUEST, "request_aborted"),
    (GenerationError, 500, "generation_failed"),
    (PalladioError, 500, "internal_error"),
)

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 503: "service_unavailable"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclasses.dataclass(frozen=True)
class ErrorBody:
    """An HTTP status with OpenAI's error body."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)

    def payload(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str = "") -> Response:
        """Args: path: of the route that was asked for, if it may be one of Anthropic's, whose errors look different."""
        payload = self.payload() if not path.startswith("/v1/messages") else self.anthropic_payload()
        return Response(orjson.dumps(payload), self.status, self.headers, media_type="application/json")

    def anthropic_payload(self) -> dict[str, Any]:
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def event(self) -> bytes:
        """The same as an event of a stream whose status has already gone out."""
        return b"data: " + orjson.dumps(self.payload()) + b"\n\n"


class HttpError(Exception):
    """Ends a request with this status and body."""

    def __init__(self, body: ErrorBody) -> None:
        super().__init__(body.message)
        self.body = body


def error_body(exc: PalladioError | HttpError, names: RequestNames) -> ErrorBody:
    """Looks an error up in the table. Args: names: what the client calls the fields of its request."""
    if isinstance(exc, HttpError):
        return exc.body
    status, code = next((status, code) for kind, status, code in TABLE if isinstance(exc, kind))
    headers = {"Retry-After": str(math.ceil(exc.retry_after))} if isinstance(exc, OverloadedError) else {}
    if isinstance(exc, InvalidRequestError):
        param = None if exc.param is None else names.param(exc.param)
        return ErrorBody(status, str(exc.message.rename(names.name)), param, exc.code or code, headers)
    return ErrorBody(status, str(exc), None, code, headers)


def any_error(exc: Exception, names: RequestNames, what: str) -> ErrorBody:
    """Of whatever has ended something that nobody waits for any more; a defect is logged with its traceback.

    Args:
        what: it was, for the log.
    """
    if isinstance(exc, PalladioError | HttpError):
        return error_body(exc, names)
    error_id = uuid.uuid4().hex
    logger.error("error %s in %s", error_id, what, exc_info=exc)
    return internal_error(error_id)


def internal_error(error_id: str) -> ErrorBody:
    """For a defect: the details are in the log, under this id."""
    return ErrorBody(
        500, f"internal error; the server's log has the details under id {error_id}", code="internal_error"
    )


def route_path(scope: Scope) -> str:
    """The path without the prefix that a reverse proxy has left on, as the router takes it."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    return path[len(prefix) :] if prefix and path.startswith(prefix + "/") else path


def install_error_handlers(app: FastAPI) -> None:
    """Every error of a route, and of routing itself, gets the same body."""

    async def known(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, PalladioError | HttpError)
        return error_body(exc, RequestNames.of(request.scope)).response(route_path(request.scope))

    async def routing(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        return _routing_error(request, exc).response(route_path(request.scope))

    async def query(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        first = exc.errors()[0]
        name = str(first["loc"][-1])
        return ErrorBody(400, f"{name}: {first['msg']}", name).response(route_path(request.scope))

    app.add_exception_handler(PalladioError, known)
    app.add_exception_handler(HttpError, known)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(RequestValidationError, query)


def _routing_error(request: Request, exc: HTTPException) -> ErrorBody:
    headers = dict(exc.headers or {})
    if exc.status_code == 404:
        return ErrorBody(404, f"no such route: {request.method} {request.url.path}", code="unknown_url")
    if exc.status_code == 405:
        allowed = headers.get("Allow", headers.get("allow", "another method"))
        message = f"{request.method} is not allowed for {request.url.path}; use {allowed}"
        return ErrorBody(405, message, code="method_not_allowed", headers=headers)
    return ErrorBody(exc.status_code, str(exc.detail), headers=headers)
