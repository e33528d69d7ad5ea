"""Connection: uvicorn's HTTP protocol with the limits that it lacks: time and size of heads, time in which an answer is
read, number of connections."""

import asyncio
import http
import logging
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from palladio.http.security.body_pipe import PIPE, BodyPipe
from palladio.http.security.connection_limits import ConnectionLimits, Place
from palladio.http.security.dead_peers import is_dead, watch_peer
from palladio.http.security.lingering import AnswerTransport, Lingering
from palladio.http.security.request_head import CLOSE, head_fault, invalid_http, take_absolute
from palladio.http.security.write_watch import WriteWatch
from palladio.http.wire.errors import ErrorBody

logger = logging.getLogger("uvicorn.error")

MAX_HEAD = 64 * 1024  # bytes of a request's line and headers; middleware counts those of whole heads
MAX_FRAMING = 64 * 1024  # bytes of chunk extensions and trailers of a request
_CHUNK_LINES = 32  # bytes around a chunk that do not count: its size and the ends of two lines
OVER_LIMIT = "is_over_limit"  # in the state of a request's scope: its connection came when the others were enough

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ASK_AGAIN = (0.2, 5.0)  # seconds to the second time that a client is asked for a sign of life, and to each one after


def head_too_large() -> ErrorBody:
    return ErrorBody(
        431, f"the request line and headers exceed {MAX_HEAD} bytes", code="headers_too_large", headers=CLOSE
    )


def read_timeout_error(what: str) -> ErrorBody:
    message = f"{what}; the limit is set by --request-read-timeout"
    return ErrorBody(408, message, code="request_read_timeout", headers=CLOSE)


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
        self._lingering: Lingering | None = None
        self._fault: ErrorBody | None = None  # of what was read last; nothing more is read
        self._is_in_body = False
        self._framing = 0  # bytes of a body in chunks that are none of its own
        self._hides_upgrade = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._writes = WriteWatch(transport, self.loop, self._limits.write_timeout)
        self._lingering = Lingering(transport, self.loop)
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
        if self._lingering is not None:
            self._lingering.stop()
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
        if self._is_lingering:
            return False
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
        if self._fault is not None or self._is_lingering:
            if self._lingering is not None and self._is_lingering:
                self._lingering.note()
            return
        was_in_head, was_in_body = self._is_in_head, self._is_in_body
        self._unset_keepalive_if_required()
        self._framing += len(data)
        self._parse(data)
        if self.transport.is_closing() or self._fault is not None or self._is_lingering:
            self._stop_timer()
            return
        if was_in_head and self._is_in_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD:
                self._fail(head_too_large())
                return
        self._framing = max(self._framing, 0) if was_in_body and self._is_in_body else 0
        if self._framing > MAX_FRAMING:
            self._fail(invalid_http(f"the chunk extensions and trailers exceed {MAX_FRAMING} bytes"))
            return
        self._watch()

    def _parse(self, data: bytes) -> None:
        """Has the parser read. A request that offers another protocol (Upgrade: h2c, as Java's clients do) is served in
        this one: the parser would leave its body out, so it reads the head again, without the offer."""
        rest = memoryview(data)
        try:
            while True:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as offer:
                    rest = rest[offer.args[0] :]
                    self._read_head_again()
        except httptools.HttpParserError:
            logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")

    def _read_head_again(self) -> None:
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        version = self.parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(lines))
        self._hides_upgrade = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn
        self.parser.feed_data(head)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._head_size = 0
        self._stop_timer()  # it begins anew with the head
        if self._place is not None and self._place.is_spare:
            self.scope["state"][OVER_LIMIT] = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # a trailer says nothing of a request that has begun
            super().on_header(name, value)

    def on_chunk_header(self) -> None:
        self._framing -= _CHUNK_LINES

    def on_body(self, body: bytes) -> None:
        self._framing -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        if not self._hides_upgrade:
            super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        version = self.parser.get_http_version()
        self._fault = head_fault(version, self.url, self.headers)
        if self._fault is not None:
            raise ValueError(self._fault.message)  # ends the parser, which reports it
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._hides_upgrade = True
            return
        self._is_in_body = True
        self.url = take_absolute(self.url, self.headers)
        self.expect_100_continue = self.expect_100_continue and version != "1.0"
        if self.parser.get_http_version() == "1.0":
            self.app = self._until_close  # such a connection has one request
        super().on_headers_complete()
        if self.cycle.scope is self.scope and self.scope["method"] != "HEAD":
            self.scope["state"][PIPE] = BodyPipe(self.cycle)  # the app has not begun
        cycle = self.cycle
        cycle.transport = AnswerTransport(self.transport, lambda: self._close(cycle))  # type: ignore[assignment]

    async def _until_close(self, scope: Any, receive: Any, send: Any) -> None:
        """The app for a client of HTTP/1.0, which knows no chunks: an answer without a length ends with the connection.
        So uvicorn learns that the answer has no chunks, and the length of each part."""
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
        is_last = not self.pipeline
        super().on_response_complete()
        self._watch_writes()  # of what little the system has not taken yet, which would keep the connection open
        if self._is_lingering:
            self._unset_keepalive_if_required()
        elif self._fault is not None and is_last and not self.transport.is_closing():
            self._refuse(self._fault)  # the answers before have gone out

    def shutdown(self) -> None:
        if self._is_lingering:
            self.transport.close()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP: an error like all others. Overrides uvicorn's text."""
        if self.scope is not None and len(self.url) > MAX_HEAD:  # more than the parser of URLs can count
            self._fail(head_too_large())
            return
        self._fail(self._fault or invalid_http(msg))

    def _fail(self, error: ErrorBody) -> None:
        """Nothing more of this connection can be read. Requests that are whole are answered before."""
        self._fault = error
        cycle = self.cycle
        if not self._is_running:
            self._refuse(error)
        elif self.pipeline and cycle.more_body:
            self.pipeline.popleft()  # the newest, which waits for its turn, is the one at fault
        elif cycle.more_body and cycle.response_started:
            self.transport.close()  # an answer would stand in the middle of this one
        elif cycle.more_body:
            cycle.disconnected = True
            cycle.message_event.set()
            self._refuse(error)

    @property
    def _is_lingering(self) -> bool:
        return self._lingering is not None and self._lingering.is_on

    def _close(self, cycle: RequestResponseCycle) -> None:
        """End the connection after an answer.

        Args:
            cycle: the request's.
        """
        if cycle.more_body:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        if self._lingering is not None:
            self._stop_timer()
            self._lingering.start()
            self.flow.resume_reading()

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
        response = error.response()
        head = f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}\r\n".encode()
        lines = [b"%b: %b\r\n" % header for header in response.raw_headers]
        self.transport.write(b"".join((head, *lines, b"\r\n", bytes(response.body))))
        self._linger()
