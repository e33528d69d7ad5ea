"""Whether the other end of a TCP connection is gone, as far as the system knows without anything being sent."""

import asyncio
import socket
import sys
from typing import Any

_PROBES = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # seconds, seconds, and how many in vain
_CLOSED = 7  # of the states in Linux's tcp_states.h


def watch_peer(transport: asyncio.BaseTransport) -> None:
    """Has the system probe the other end. One that has closed its socket answers for a minute, and then refuses."""
    sock: Any = transport.get_extra_info("socket")
    if sys.platform == "linux" and sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBES.items():
            sock.setsockopt(socket.IPPROTO_TCP, vars(socket)[name], value)


def is_dead(transport: asyncio.BaseTransport) -> bool:
    """Whether the system has closed the connection. On others than Linux, this is not known."""
    sock: Any = transport.get_extra_info("socket")
    if sys.platform != "linux" or sock is None:
        return False
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED)
