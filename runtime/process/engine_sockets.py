"""EngineSockets: the front's two sockets to an engine's process, in an event loop."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import zmq

from palladio.runtime.interface.messages.calls import FromEngine, ToEngine
from palladio.runtime.process.codec import (
    FROM_ENGINE,
    TO_ENGINE,
    address,
    from_engine_codec,
    open_socket,
    to_engine_codec,
)

_MAX_BURST = 64  # messages handled before the event loop may do something else
_RECONNECT_MS = 20  # until the engine listens


class EngineSockets:
    """Each side connects what it sends on: then nothing is lost before the other is there.

    Args:
        directory: where the sockets are.
        deliver: gets each message, in order.

    Raises:
        zmq.ZMQError: the directory is gone.
    """

    def __init__(self, directory: Path, deliver: Callable[[FromEngine], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._encode = to_engine_codec().encode
        self._decode = from_engine_codec().decode
        self._closed = False
        self._context = zmq.Context()
        try:
            self._outgoing = open_socket(self._context, zmq.PUSH, linger=0)
            self._outgoing.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
            self._outgoing.connect(address(directory, TO_ENGINE))
            self._incoming = open_socket(self._context, zmq.PULL, linger=0)
            self._incoming.bind(address(directory, FROM_ENGINE))
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._loop.add_reader(self._incoming.getsockopt(zmq.FD), self.read)
        self._loop.call_soon(self.read)  # the descriptor is edge-triggered: look once

    def send(self, message: ToEngine) -> None:
        if not self._closed:
            self._outgoing.send(self._encode(message), zmq.NOBLOCK)

    def read(self) -> None:
        """Delivers what has come."""
        for _ in range(_MAX_BURST):
            if self._closed:  # maybe by what was delivered last
                return
            if not self._incoming.get(zmq.EVENTS) & zmq.POLLIN:  # cheaper than the exception of an empty recv
                return
            self._deliver(self._decode(self._incoming.recv(zmq.NOBLOCK)))
        self._loop.call_soon(self.read)

    def close(self) -> None:
        """What is unsent is dropped. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._incoming.getsockopt(zmq.FD))
        self._context.destroy(linger=0)
