"""Lingering: the end of a connection whose client still sends."""

import asyncio
from collections.abc import Callable

_IDLE, _MOST = 5.0, 30.0  # seconds without a byte of the client, and in all: nginx's numbers


class Lingering:
    """Ends a connection so that the client gets the answer. If it were closed while bytes of the client are unread, the
    system would reset it, and the client would lose what it has not read yet. So only the server's side is shut, and
    what comes is dropped, until the client is done or time is up.

    Attributes:
        is_on: it has begun.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._last: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.is_on = False

    def start(self) -> None:
        if self.is_on or self._transport.is_closing():
            return
        self.is_on = True
        if self._transport.can_write_eof():  # not over TLS, where the answer's length shows that it is whole
            self._transport.write_eof()
        self._last = self._loop.call_later(_MOST, self._transport.close)
        self.note()

    def note(self) -> None:
        """Bytes came."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self._loop.call_later(_IDLE, self._transport.close)

    def stop(self) -> None:
        for timer in (self._last, self._idle):
            if timer is not None:
                timer.cancel()


class AnswerTransport:
    """What an answer is written to: as the connection's transport, but for its end."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close
