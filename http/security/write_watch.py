"""WriteWatch: a client that takes nothing of its answer for too long loses its connection, and with it its request."""

import asyncio
import fcntl
import logging
import socket
import struct
import termios

logger = logging.getLogger(__name__)

MAX_UNSENT = 128 * 1024  # bytes that the system takes beyond what the client's window lets it send
_CHECKS = 8  # within one timeout


class WriteWatch:
    """Ends a connection whose client reads nothing. Any change of the bytes on their way to the client, the system's
    buffer included, is progress: clients that read slowly but steadily are left alone.

    Args:
        timeout: seconds without progress.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self._transport = transport
        self._loop = loop
        self._timeout = timeout
        self._socket: socket.socket | None = transport.get_extra_info("socket")
        self._timer: asyncio.TimerHandle | None = None
        self._num_unsent = 0
        self._num_idle = 0  # checks in a row that saw no progress
        if self._socket is not None and self._socket.family in (socket.AF_INET, socket.AF_INET6):
            # Else the system takes megabytes for a client that reads nothing, and is slow to say that one reads on.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT)

    def start(self) -> None:
        """There may be bytes that the client has not taken; it ends by itself when they are gone."""
        if self._timer is None and self._transport.get_write_buffer_size() > 0:
            self._num_unsent, self._num_idle = self._count(), 0
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(self._timeout / _CHECKS, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() == 0:
            return
        num_unsent = self._count()
        self._num_idle = self._num_idle + 1 if num_unsent == self._num_unsent else 0
        self._num_unsent = num_unsent
        if self._num_idle < _CHECKS:
            self._schedule()
            return
        logger.warning(
            "%s did not read %d bytes of its response for %g s (--response-write-timeout); closing the connection",
            *(_name(self._transport), num_unsent, self._timeout),
        )
        if self._socket is not None:  # with a reset, or the system would hold its part for the client for minutes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _count(self) -> int:
        """Bytes that the client has not confirmed."""
        unconfirmed = 0
        if self._socket is not None:
            try:
                raw = fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4))
                unconfirmed = struct.unpack("i", raw)[0]
            except OSError:
                unconfirmed = 0  # it is closed, or the system does not say
        return self._transport.get_write_buffer_size() + unconfirmed


def _name(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a client"
