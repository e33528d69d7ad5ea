"""Relay: requests that one front cannot answer alone. The innermost middleware, where there are several fronts.

What only one front does (batches, responses in the background, profiles, the dashboard) goes to that one. A request is
looked for, and aborted, in all fronts. Keys and limits have been looked at when a request gets here, and are not again
where it goes to.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Final, Literal

import msgspec
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palladio.http.fronts.peers import Peers
from palladio.http.security.callers import Callers
from palladio.http.wire.body import until_disconnect
from palladio.http.wire.errors import HttpError, RequestNames, error_body, route_path
from palladio.runtime.interface.errors import OverloadedError

_HTTP: Final = "http"  # kind of the question
_LEADER_PATHS: Final = re.compile(
    r"/v1/batches(/.*)?|/v1/responses/(?!input_tokens$).+|/(start|stop)_profile|/dashboard/data"
)
_CREATE: Final = "/v1/responses"
_ABORT: Final = "/abort_request"
_EXPLAIN: Final = re.compile(r"/v1/requests/.+/explain")
_NOT_FOUND: Final = 404
_STATE: Final = ("request_id", "shown_id")  # of a request's scope

_Where = Literal["here", "leader", "leader if in the background", "everywhere", "where it is"]
_IN_ALL: Final = ("everywhere", "where it is")


class RelayedRequest(msgspec.Struct, frozen=True):
    """A request as it goes to another front. Attributes: owner: of the API key. ids: see RequestMiddleware."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    owner: str
    ids: dict[str, str]
    client: tuple[str, int] | None = None
    scheme: str = "http"
    root_path: str = ""


class RelayedHead(msgspec.Struct, frozen=True):
    """The first part of an answer; all that follow are its body."""

    status: int
    headers: list[tuple[bytes, bytes]]


class Relay:
    """
    Args:
        callers: who owns what.
        root: what routes know as their app.
    """

    def __init__(self, app: ASGIApp, peers: Peers, callers: Callers, root: Callable[[], ASGIApp]) -> None:
        self._app = app
        self._peers = peers
        self._callers = callers
        self._root = root
        peers.answer(_HTTP, self._answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        where = _where(scope)
        if where == "here":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._relay(where, scope, receive, note)
        except (HttpError, OverloadedError) as error:  # its body is refused, or that front has ended
            if not has_begun:
                await error_body(error, RequestNames()).response(route_path(scope))(scope, receive, send)

    async def _relay(self, where: _Where, scope: Scope, receive: Receive, send: Send) -> None:
        leader = 0 if where in _IN_ALL else await self._peers.leader()
        if leader == self._peers.number:
            await self._app(scope, receive, send)
            return
        body = await _read(receive)
        if where == "leader if in the background" and not _is_background(body):
            await self._app(scope, _replay(body, receive), send)
            return
        request = _request(scope, body)
        if where in _IN_ALL:
            head, text = await self._join(request, is_abort=where == "everywhere")
            await _send(head, text, send)
            return
        parts = self._peers.ask(leader, _HTTP, msgspec.msgpack.encode(request))
        await until_disconnect(receive, _pass_on(parts, send))

    async def _join(self, request: RelayedRequest, *, is_abort: bool) -> tuple[RelayedHead, bytes]:
        """One answer for that of this front and those of the others."""
        head, text = await _collect(self._run(request))
        if is_abort and head.status == 200:
            others = await self._peers.ask_others(_HTTP, msgspec.msgpack.encode(request))
            texts = [text, *(_split(other)[1] for other in others)]
            total = sum(orjson.loads(one).get("aborted", 0) for one in texts)
            content = orjson.dumps({"aborted": total})
            headers = [(name, value) for name, value in head.headers if name.lower() != b"content-length"]
            return RelayedHead(200, [*headers, (b"content-length", b"%d" % len(content))]), content
        if not is_abort and head.status == _NOT_FOUND:
            others = await self._peers.ask_others(_HTTP, msgspec.msgpack.encode(request))
            answers = [_split(other) for other in others]
            return next((answer for answer in answers if answer[0].status != _NOT_FOUND), (head, text))
        return head, text

    async def _answer(self, question: bytes) -> AsyncIterator[bytes]:
        request = msgspec.msgpack.decode(question, type=RelayedRequest)
        async for part in self._run(request):
            yield part

    async def _run(self, request: RelayedRequest) -> AsyncIterator[bytes]:
        """Has this front answer: the head, framed, and then the body as it comes."""
        parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        is_read = False

        async def receive() -> Message:
            nonlocal is_read
            if is_read:
                await asyncio.Event().wait()  # the end of this task is the client's going away
            is_read = True
            return {"type": "http.request", "body": request.body, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                head = RelayedHead(
                    message["status"], [(bytes(name), bytes(value)) for name, value in message["headers"]]
                )
                encoded = msgspec.msgpack.encode(head)
                parts.put_nowait(len(encoded).to_bytes(4, "big") + encoded)
            elif message.get("body"):
                parts.put_nowait(bytes(message["body"]))

        async def run() -> None:
            try:
                await self._app(self._scope(request, send), receive, send)
            finally:
                parts.put_nowait(None)

        running = asyncio.create_task(run())
        try:
            while (part := await parts.get()) is not None:
                yield part
            await running
        finally:
            running.cancel()
            await asyncio.wait((running,))

    def _scope(self, request: RelayedRequest, send: Send) -> Scope:
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.scheme,
            "path": request.path,
            "raw_path": request.raw_path,
            "query_string": request.query,
            "root_path": request.root_path,
            "headers": request.headers,
            "client": request.client,
            "server": None,
            "app": self._root(),
            "state": {**request.ids, "caller": self._callers.of_owner(request.owner), "send": send},
        }


def _where(scope: Scope) -> _Where:
    path = route_path(scope)
    if _LEADER_PATHS.fullmatch(path):
        return "leader"
    if path == _CREATE and scope["method"] == "POST":
        return "leader if in the background"
    if path == _ABORT and scope["method"] == "POST":
        return "everywhere"
    return "where it is" if _EXPLAIN.fullmatch(path) else "here"


def _is_background(body: bytes) -> bool:
    """Whether a request for a response asks that it be made in the background. What is no JSON is refused here."""
    if b'"background"' not in body:
        return False
    with contextlib.suppress(orjson.JSONDecodeError):
        fields = orjson.loads(body)
        return isinstance(fields, dict) and fields.get("background") is True
    return False


def _request(scope: Scope, body: bytes) -> RelayedRequest:
    state = scope["state"]
    client = scope.get("client")
    return RelayedRequest(
        method=scope["method"],
        path=scope["path"],
        raw_path=scope.get("raw_path") or b"",
        query=scope["query_string"],
        headers=list(scope["headers"]),
        body=body,
        owner=state["caller"].owner,
        ids={name: state[name] for name in _STATE},
        client=None if client is None else (client[0], client[1]),
        scheme=scope["scheme"],
        root_path=scope.get("root_path", ""),
    )


async def _read(receive: Receive) -> bytes:
    """The whole body. BodyLimit has its eye on it."""
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    is_read = False

    async def read() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read


def _split(answer: bytes) -> tuple[RelayedHead, bytes]:
    begin = 4 + int.from_bytes(answer[:4], "big")
    return msgspec.msgpack.decode(answer[4:begin], type=RelayedHead), answer[begin:]


async def _collect(parts: AsyncIterator[bytes]) -> tuple[RelayedHead, bytes]:
    return _split(b"".join([part async for part in parts]))


async def _pass_on(parts: AsyncIterator[bytes], send: Send) -> None:
    is_begun = False
    async for part in parts:
        if not is_begun:
            head, part = _split(part)
            await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
            is_begun = True
        if part:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(head: RelayedHead, body: bytes, send: Send) -> None:
    await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
