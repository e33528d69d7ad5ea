"""Messages between an engine and its process that checks grammars: JSON in frames, over sockets."""

import dataclasses
import json
import socket
import struct
from typing import Any

_HEADER = struct.Struct("!Q")  # bytes of the JSON that follows
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class CheckLimits:
    """What checking one grammar may take.

    Attributes:
        cpu_seconds: of one core.
        num_bytes: of memory that is still held when it is compiled.
    """

    cpu_seconds: float
    num_bytes: int


def send_frame(connection: socket.socket, value: Any) -> None:
    """
    Raises:
        OSError: the other side is gone, or takes nothing within the socket's timeout.
    """
    data = json.dumps(value).encode()
    connection.sendall(_HEADER.pack(len(data)) + data)


def receive_frame(connection: socket.socket) -> Any:
    """The next value.

    Raises:
        EOFError: the other side has closed the connection.
        OSError: as above.
    """
    (length,) = _HEADER.unpack(_receive(connection, _HEADER.size))
    return json.loads(_receive(connection, length))


def _receive(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        chunk = connection.recv(min(length - len(data), _CHUNK))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
