"""Errors as clients get them: bodies of every API's form."""

import abc
import dataclasses
import logging
import math
import uuid
from collections.abc import Callable
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from palladio.http.wire.fields import AS_SENT, FieldMap
from palladio.http.wire.missing_routes import instead_of
from palladio.runtime.interface.errors import (
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    EngineNotReadyError,
    GenerationError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PalladioError,
    PromptLength,
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
THREAD_UNSUPPORTED = "thread_unsupported_request"  # the code that Anthropic's SDK reads in the details of an error
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
    """An HTTP status with OpenAI's error body.

    Attributes:
        length: of the prompt, if that is what is wrong: Anthropic's API says it in words that its clients know.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    length: PromptLength | None = None

    def payload(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str = "") -> Response:
        """Make the response.

        Args:
            path: the path of the request, if its API may have another form of errors.
        """
        if path.startswith("/v1/messages"):
            payload = self.anthropic_payload()
        else:
            payload = self.ollama_payload() if path.startswith("/api/") else self.payload()
        return Response(orjson.dumps(payload), self.status, self.headers, media_type="application/json")

    def anthropic_payload(self) -> dict[str, Any]:
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        message = self.message if self.length is None else _prompt_is_too_long(self.length)
        error: dict[str, Any] = {"type": kind, "message": message}
        if self.code == THREAD_UNSUPPORTED:
            error["details"] = {"error_code": self.code, "unsupported": []}
        return {"type": "error", "error": error}

    def ollama_payload(self) -> dict[str, Any]:
        return {"error": self.message}

    def event(self) -> bytes:
        """The same as an event of a stream whose status has already gone out."""
        return b"data: " + orjson.dumps(self.payload()) + b"\n\n"


def _prompt_is_too_long(length: PromptLength) -> str:
    """As Anthropic's own servers say it: agents look for these words, and then send a shorter conversation."""
    note = f" ({length.note})" if length.note else ""
    return f"prompt is too long: {length.num_tokens} tokens > {length.limit} maximum{note}"


class HttpError(Exception):
    """Ends a request with this status and body."""

    def __init__(self, body: ErrorBody) -> None:
        super().__init__(body.message)
        self.body = body


def error_body(exc: PalladioError | HttpError, names: FieldMap = AS_SENT) -> ErrorBody:
    """Look an error up in the table.

    Args:
        names: what the client calls the fields that the error names.
    """
    if isinstance(exc, HttpError):
        return exc.body
    status, code = next((status, code) for kind, status, code in TABLE if isinstance(exc, kind))
    headers = {"Retry-After": str(math.ceil(exc.retry_after))} if isinstance(exc, OverloadedError) else {}
    if isinstance(exc, InvalidRequestError):
        param = None if exc.param is None else names.param(exc.param)
        length = exc.length if isinstance(exc, ContextLengthError) else None
        return ErrorBody(status, str(exc.message.rename(names.name)), param, exc.code or code, headers, length)
    return ErrorBody(status, str(exc), None, code, headers)


def any_error(exc: Exception, what: str) -> ErrorBody:
    """Return the body for an error of work in the background; log a defect with its traceback.

    Args:
        what: the work, for the log.
    """
    if isinstance(exc, PalladioError | HttpError):
        return error_body(exc)
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


NoteError = Callable[[Scope, ErrorBody], None]  # called with a request and the error that answers it


def install_error_handlers(app: FastAPI, note: NoteError) -> None:
    """Give every error of a route, and of routing, the same body.

    Args:
        note: called for errors of routes.
    """

    async def known(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, PalladioError | HttpError)
        body = error_body(exc)
        note(request.scope, body)
        return body.response(route_path(request.scope))

    async def routing(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        return _routing_error(request, exc).response(route_path(request.scope))

    async def query(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, RequestValidationError)
        first = exc.errors()[0]
        name = str(first["loc"][-1])
        got = "" if first["type"] == "missing" else f", got {first['input']!r:.80}"
        return ErrorBody(400, f"{name}: {first['msg'].removeprefix('Input ')}{got}", name).response(
            route_path(request.scope)
        )

    app.add_exception_handler(PalladioError, known)
    app.add_exception_handler(HttpError, known)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(RequestValidationError, query)


def _routing_error(request: Request, exc: HTTPException) -> ErrorBody:
    headers = dict(exc.headers or {})
    if exc.status_code == 404:
        instead = instead_of(route_path(request.scope))
        use = "" if instead is None or instead.startswith("nothing") else "use "
        hint = "" if instead is None else f"; {use}{instead}"
        return ErrorBody(404, f"no such route: {request.method} {request.url.path}{hint}", code="unknown_url")
    if exc.status_code == 405:
        allowed = headers.get("Allow", headers.get("allow", "another method"))
        message = f"{request.method} is not allowed for {request.url.path}; use {allowed}"
        return ErrorBody(405, message, code="method_not_allowed", headers=headers)
    return ErrorBody(exc.status_code, str(exc.detail), headers=headers)


class Guard(abc.ABC):
    """Subclasses say what is refused, and why."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope) if scope["type"] == "http" else None
        answer = self._app if error is None else error.response(route_path(scope))
        await answer(scope, receive, send)

    @abc.abstractmethod
    def _refusal(self, scope: Scope) -> ErrorBody | None:
        """Return the error that refuses an HTTP request; None: it passes."""
