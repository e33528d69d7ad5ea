"""Pure ASGI middleware: the request id and the last border for defects, and the size limit of bodies."""

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palladio.http.errors import ErrorBody, HttpError, internal_error

logger = logging.getLogger(__name__)

_PLAIN_ID = re.compile(r"[\x21-\x7e]{1,256}")


class RequestBorder:
    """The outermost layer.

    - `root_path`: the prefix that a reverse proxy strips off; paths work with and without it.
    - `X-Request-Id` goes back as it came, or newly made; `request.state.request_id` is always a new one, because
      proxies send the same id with several requests, and an engine request needs its own.
    - `request.state.send` goes round all layers within: for the bodies of streams, when the head has gone through them.
    - An exception that nothing else caught becomes a 500 with an id, under which the log has the traceback.
    """

    def __init__(self, app: ASGIApp, root_path: str = "") -> None:
        self._app = app
        self._root_path = root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._root_path:
            scope["root_path"] = self._root_path
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
                MutableHeaders(scope=message)["X-Request-Id"] = shown
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            logger.exception("error %s in %s %s", shown, scope["method"], scope["path"])
            if not started:
                await internal_error(shown).response()(scope, receive, send_with_id)


class BodyLimit:
    """Refuses request bodies over the limit: at once by Content-Length, else while they arrive."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        message = f"the request body is over {self._max_bytes} bytes; --max-request-bytes sets the limit"
        too_large = ErrorBody(413, message, code="request_too_large", headers={"Connection": "close"})
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            await too_large.response()(scope, receive, send)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            part = await receive()
            received += len(part.get("body", b""))
            if received > self._max_bytes:
                raise HttpError(too_large)
            return part

        await self._app(scope, limited, send)
