"""Pure ASGI middleware: the request id and the last border for defects, the limits of what requests may bring, and the
count of requests by route."""

import asyncio
import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palladio.http.files.upload import FORM_BYTES, file_too_large
from palladio.http.generation.context import RequestLimits
from palladio.http.observability.records.front_counts import NO_ROUTE, FrontMetrics
from palladio.http.security.callers import OPEN_PATHS
from palladio.http.security.connection import MAX_HEAD, OVER_LIMIT, head_too_large, read_timeout_error
from palladio.http.wire.body import Inflater, JsonMeter, body_refusal, find_inflater
from palladio.http.wire.errors import ErrorBody, HttpError, NoteError, internal_error, route_path
from palladio.runtime.interface.native_panics import is_panic

logger = logging.getLogger(__name__)

MIN_RATE = 16 * 1024  # bytes of a body that pay for one more second of waiting for it
_OF_COMPRESSED = (b"content-encoding", b"content-length")  # headers that say nothing of what comes out
DATA_POLICY = "default-src 'none'; frame-ancestors 'none'"
_PLAIN_ID = re.compile(r"[\x21-\x7e]{1,256}")


class RequestMiddleware:
    """The outermost layer.

    - `root_path`: the prefix that a reverse proxy strips off; paths work with and without it, and it alone is the root.
    - `X-Request-Id` goes back as it came, or newly made; `request.state.request_id` is always a new one, because
      proxies send the same id with several requests, and an engine request needs its own.
    - `request.state.send` goes round all layers within: for the bodies of streams, when the head has gone through them.
    - No browser is to take an answer for something else than its content type says (nosniff), and none is a page that
      may load or run anything, unless it brings a policy of its own.
    - An exception that nothing else caught, a panic of a library in Rust included, becomes a 500 with an id, under
      which the log has the traceback.
    """

    def __init__(self, app: ASGIApp, note: NoteError, root_path: str = "") -> None:
        """Wrap `app`.

        Args:
            note: called for each 500.
            root_path: the prefix that a reverse proxy strips off.
        """
        self._app = app
        self._note = note
        self._root_path = root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._root_path:
            scope["root_path"] = self._root_path
            if scope["path"] == self._root_path:
                scope["path"] += "/"
        generated = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = generated
        given = Headers(scope=scope).get("x-request-id", "")
        shown = given if _PLAIN_ID.fullmatch(given) else generated
        scope["state"]["shown_id"] = shown
        scope["state"]["send"] = send
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = shown
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Content-Security-Policy", DATA_POLICY)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            logger.exception("Internal error %s in %s %s", shown, scope["method"], scope["path"])
            self._note(scope, internal_error(shown))
            if not started:
                await internal_error(shown).response(route_path(scope))(scope, receive, send_with_id)


class Admission:
    """Refuses requests whose head is too large, and those of connections over --max-connections, but for probes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = _refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await error.response(route_path(scope))(scope, receive, send)


def _refusal(scope: Scope) -> ErrorBody | None:
    sizes = [len(name) + len(value) for name, value in scope["headers"]]
    if sum(sizes) + len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_HEAD:
        return head_too_large()
    if scope.get("state", {}).get(OVER_LIMIT) and route_path(scope) not in OPEN_PATHS:
        message = "too many open connections; the limit is set by --max-connections"
        return ErrorBody(503, message, code="overloaded", headers={"Retry-After": "1", "Connection": "close"})
    return None


class BodyLimit:
    """Refuses request bodies that are too large, at once by Content-Length, else while they arrive, or too slow.

    A compressed body is decompressed as it arrives, a slice at a time, and the limits are those of what comes out: what
    a few bytes would blow up to is never held. JSON that would take too long to read is too large: its values are
    counted as it arrives.

    Args:
        limits: of bodies; an uploaded file has one of its own.
        read_timeout: seconds that a body may stand still. It may be waited for so long in all, and a second more for
            every MIN_RATE bytes that have come.
    """

    def __init__(self, app: ASGIApp, limits: RequestLimits, read_timeout: float) -> None:
        self._app = app
        self._limits = limits
        self._read_timeout = read_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes, too_large = self._limit(scope)
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "")
        try:
            inflater = find_inflater(", ".join(headers.getlist("content-encoding")))
            if declared.isdecimal() and int(declared) > max_bytes:
                raise HttpError(too_large)
        except HttpError as error:
            await error.body.response(route_path(scope))(scope, receive, send)
            return
        read = _read_in_time(receive, self._read_timeout, max_bytes, too_large)
        if inflater is not None:
            # what follows sees a body as if it had come plainly
            plain = [(name, value) for name, value in scope["headers"] if name not in _OF_COMPRESSED]
            scope["headers"] = plain
            read = _inflated(read, inflater)
        meter = None if _is_upload(scope) else JsonMeter(self._limits.max_values)
        received, is_whole = 0, False

        async def limited() -> Message:
            nonlocal received, is_whole
            if is_whole:
                return await receive()  # for the client's going away
            part = await read()
            body = part.get("body", b"")
            received += len(body)
            if inflater is not None and received > max_bytes:
                raise HttpError(too_large)
            if meter is not None and meter.exceeds(body):
                raise body_refusal(meter.limit)
            is_whole = not part.get("more_body", False)
            return part

        await self._app(scope, limited, send)

    def _limit(self, scope: Scope) -> tuple[int, ErrorBody]:
        """Most bytes of the body, and the answer to more."""
        if _is_upload(scope):
            max_file_bytes = self._limits.config.max_file_bytes
            return max_file_bytes + FORM_BYTES, file_too_large(max_file_bytes)
        max_bytes = self._limits.max_bytes
        message = f"the request body exceeds {max_bytes} bytes; the limit is set by --max-request-bytes"
        return max_bytes, ErrorBody(413, message, code="request_too_large", headers={"Connection": "close"})


def _read_in_time(receive: Receive, read_timeout: float, max_bytes: int, too_large: ErrorBody) -> Receive:
    """`receive`, until the body is whole. It raises HttpError for a body that arrives too slowly (408) or, as it
    arrives, is too large."""
    received, waited = 0, 0.0

    async def read() -> Message:
        nonlocal received, waited
        begun = time.monotonic()
        try:
            async with asyncio.timeout(min(0.0, received / MIN_RATE - waited) + read_timeout):
                part = await receive()
        except TimeoutError:
            message = f"the request body arrived too slowly; {received} bytes received"
            raise HttpError(read_timeout_error(message)) from None
        waited += time.monotonic() - begun
        received += len(part.get("body", b""))
        if received > max_bytes:
            raise HttpError(too_large)
        return part

    return read


def _inflated(read: Receive, inflater: Inflater) -> Receive:
    """The decompressed body. Others run between its slices."""
    is_last = False

    async def read_slice() -> Message:
        nonlocal is_last
        if inflater.is_waiting:
            await asyncio.sleep(0)
        else:
            part = await read()
            if part["type"] != "http.request":
                return part  # the client went away
            inflater.feed(part.get("body", b""))
            is_last = not part.get("more_body", False)
        body = inflater.read(is_last=is_last)
        return {"type": "http.request", "body": body, "more_body": inflater.is_waiting or not is_last}

    return read_slice


def _is_upload(scope: Scope) -> bool:
    return (scope["method"], route_path(scope)) == ("POST", "/v1/files")


class CountRequests:
    """Pure ASGI middleware, inside RequestMiddleware."""

    def __init__(self, app: ASGIApp, metrics: FrontMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, status = scope["method"], 500  # what the border makes of an exception

        async def noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.begin_http()
        try:
            await self._app(scope, receive, noting_status)
        finally:
            endpoint = scope["route"].path.replace(":path", "") if "route" in scope else NO_ROUTE
            known = method if method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH") else "other"
            self._metrics.end_http(endpoint, known, status)
