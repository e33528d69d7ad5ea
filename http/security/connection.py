"""Connection: uvicorn's HTTP protocol with the limits that it lacks: time and size of heads, time in which an answer is
read, number of connections."""

import asyncio
import dataclasses
import http
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from palladio.http.security.dead_peers import is_dead, watch_peer
from palladio.http.security.write_watch import WriteWatch
from palladio.http.wire.errors import ErrorBody

MAX_HEAD = 64 * 1024  # bytes of a request's line and headers; middleware counts those of whole heads
NUM_SPARE = 64  # connections over the limit that are kept to be answered, with a probe's answer or a 503; more are cut
OVER_LIMIT = "is_over_limit"  # in the state of a request's scope: its connection came when the others were enough

PIPE = "pipe"  # in the state of a request's scope: its BodyPipe

_CLOSE = {"Connection": "close"}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ASK_AGAIN = (0.2, 5.0)  # seconds to the second time that a client is asked for a sign of life, and to each one after


def head_too_large() -> ErrorBody:
    return ErrorBody(
        431, f"the request line and headers exceed {MAX_HEAD} bytes", code="headers_too_large", headers=_CLOSE
    )


def read_timeout_error(what: str) -> ErrorBody:
    message = f"{what}; the limit is set by --request-read-timeout"
    return ErrorBody(408, message, code="request_read_timeout", headers=_CLOSE)


COUNTS_BYTES = 16  # of one front process: its connections that are served, and those over the limit


class ConnectionCounts:
    """How many connections there are, in all front processes of a server.

    Args:
        memory: COUNTS_BYTES for each of them, which they share; each writes its own part. None: there is only one.
        slot: of this one.
    """

    def __init__(self, memory: memoryview | None = None, slot: int = 0) -> None:
        self._all = memoryview(bytearray(COUNTS_BYTES) if memory is None else memory).cast("q")
        self._slot = slot

    def add(self, count: int, *, is_spare: bool) -> None:
        self._all[2 * self._slot + is_spare] += count

    def total(self, *, is_spare: bool) -> int:
        return sum(self._all[place] for place in range(is_spare, len(self._all), 2))


class ConnectionLimits:
    """Of one server.

    Args:
        read_timeout: seconds for a request's head.
        write_timeout: seconds in which some bytes of an answer must go out.
        max_connections: that are served; None: no limit.
        counts: of connections; default: of this process alone.
    """

    def __init__(
        self,
        read_timeout: float,
        write_timeout: float,
        max_connections: int | None = None,
        counts: ConnectionCounts | None = None,
    ) -> None:
        self.read_timeout = read_timeout
        self.write_timeout = write_timeout
        self._max_connections = max_connections
        self._counts = counts or ConnectionCounts()

    def enter(self) -> "Place":
        most, counts = self._max_connections, self._counts
        is_spare = most is not None and counts.total(is_spare=False) >= most
        counts.add(1, is_spare=is_spare)
        return Place(is_spare, is_too_much=is_spare and counts.total(is_spare=True) > NUM_SPARE)

    def leave(self, place: "Place") -> None:
        self._counts.add(-1, is_spare=place.is_spare)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """What a connection occupies until it ends."""

    is_spare: bool
    is_too_much: bool


class BodyPipe:
    """Writes parts of one answer's body at once, as uvicorn's `send` would, once its head has gone out.

    Args:
        cycle: of the request.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @property
    def is_open(self) -> bool:
        """Whether it may be written to now: the answer is under way in chunks, and the client keeps up."""
        cycle = self._cycle
        return (
            not self._flow.write_paused
            and not cycle.disconnected
            and cycle.response_started
            and not cycle.response_complete
            and cycle.chunked_encoding is True
        )

    def write(self, data: bytes) -> None:
        """Args: data: not empty."""
        self._write(b"%x\r\n%b\r\n" % (len(data), data))


class Connection(HttpToolsProtocol):
    """One client's connection. While no request of it runs, the next one's head has to arrive in time.

    A request that runs reads its body itself, and BodyLimit sees to that. What is left of a body when the answer has
    gone out comes under the limit here.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._place: Place | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_in_head = False
        self._head_size = 0
        self._writes: WriteWatch | None = None
        self._asking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._writes = WriteWatch(transport, self.loop, self._limits.write_timeout)
        self._place = self._limits.enter()
        if self._place.is_too_much:
            transport.abort()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        if self._writes is not None:
            self._writes.stop()
        if self._place is not None:
            self._limits.leave(self._place)
            self._place = None

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn closes the connection
        """The client sends nothing more. If it has only shut down its side, it gets the answer to its last request; if
        it is gone, the system says so when something is written: so a client of HTTP/1.1 whose answer has not begun is
        sent "100 Continue", which clients ignore. HTTP/1.0 has nothing of the kind: there the system is to look, which
        takes a minute. Over TLS, asyncio ends a connection that one side has ended.

        Returns:
            Whether the connection stays open for the answer.
        """
        can_stay = self.scheme == "http" and not self.pipeline
        if not self._is_running or self.cycle.more_body or not (can_stay or self.cycle.response_started):
            return False
        self.cycle.keep_alive = False
        if self.cycle.scope["http_version"] == "1.0":
            watch_peer(self.transport)
        self._ask(_ASK_AGAIN[0])
        return True

    def _ask(self, pause: float) -> None:
        self._asking = None
        if not self._is_running or self.cycle.response_started or self.transport.is_closing():
            return
        if self.cycle.scope["http_version"] != "1.0":
            self.transport.write(_CONTINUE)
        elif is_dead(self.transport):
            self.transport.abort()
            return
        self._asking = self.loop.call_later(pause, self._ask, _ASK_AGAIN[1])

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        super().data_received(data)
        if self.transport.is_closing():
            self._stop_timer()
            return
        if was_in_head and self._is_in_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD:
                self._refuse(head_too_large())
                return
        self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._head_size = 0
        self._stop_timer()  # it begins anew with the head
        if self._place is not None and self._place.is_spare:
            self.scope["state"][OVER_LIMIT] = True

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self.parser.get_http_version() == "1.0":
            self.app = self._until_close  # such a connection has one request
        super().on_headers_complete()
        if self.cycle.scope is self.scope and self.scope["method"] != "HEAD":
            self.scope["state"][PIPE] = BodyPipe(self.cycle)  # the app has not begun

    async def _until_close(self, scope: Any, receive: Any, send: Any) -> None:
        """The app for a client of HTTP/1.0, which knows no chunks: an answer without a length ends with the connection.
        So uvicorn is told that the answer has no chunks, and of each part how long it is."""
        cycle = self.cycle
        cycle.chunked_encoding = False

        async def send_plainly(message: Any) -> None:
            if message["type"] == "http.response.body":
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self.config.loaded_app(scope, receive, send_plainly)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writes()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_writes()  # of what little the system has not taken yet, which would keep the connection open

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP: an error like all others. Overrides uvicorn's text."""
        if self.scope is not None and len(self.url) > MAX_HEAD:  # more than the parser of URLs can count
            self._refuse(head_too_large())
            return
        self._refuse(ErrorBody(400, msg, code="invalid_http", headers=_CLOSE))

    def _watch_writes(self) -> None:
        if self._writes is not None:
            self._writes.start()

    @property
    def _is_running(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        """Has the timer run while nothing else looks after the connection."""
        if self._is_running or self.timeout_keep_alive_task is not None:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self._limits.read_timeout, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._is_in_head:
            seconds = self._limits.read_timeout
            self._refuse(read_timeout_error(f"the request headers did not arrive within {seconds:g} seconds"))
        else:
            self.transport.close()

    def _refuse(self, error: ErrorBody) -> None:
        """Answers without the app, which has not seen the request, and ends the connection, as the answer says."""
        self._stop_timer()
        if not self._is_running:  # else the answer would stand in the middle of another one
            response = error.response()
            head = f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}\r\n".encode()
            lines = [b"%b: %b\r\n" % header for header in response.raw_headers]
            self.transport.write(b"".join((head, *lines, b"\r\n", bytes(response.body))))
        self.transport.close()
