"""Links between the hosts that run one model: who belongs to them, what they agree on, and who is lost.

Host 0 listens, the others come. Frames are a line of JSON and, after it, arrays as bytes; nothing that is received is
ever run or unpickled. A link that closes means that its host has ended; a link that is silent, that it hangs.
"""

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

BEAT_SECONDS = 1.0
_HELLO_SECONDS = 10  # for a new link's first frame
_MAX_HELLO = 2**20  # bytes
_RETRY_SECONDS = 0.2

HostArray = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """Attributes:
    head: what it says, as JSON; "kind" names it. arrays: that go with it.
    """

    head: dict[str, Any]
    arrays: tuple[HostArray, ...] = ()

    @property
    def kind(self) -> str:
        return str(self.head.get("kind"))

    def encode(self) -> bytes:
        shapes = [(array.dtype.str, array.shape) for array in self.arrays]
        head = json.dumps({**self.head, "arrays": shapes} if shapes else self.head, separators=(",", ":"))
        return b"\n".join((head.encode(), b"".join(array.tobytes() for array in self.arrays)))

    @classmethod
    def decode(cls, data: bytes) -> "Frame":
        """
        Raises:
            ValueError: it is none.
        """
        line, _, rest = data.partition(b"\n")
        head = json.loads(line)
        if not isinstance(head, dict):
            raise ValueError("a frame must begin with a JSON object")
        arrays, begin = [], 0
        for dtype, shape in head.pop("arrays", ()):
            count = int(np.prod(shape, dtype=np.int64))
            arrays.append(np.frombuffer(rest, dtype, count, begin).reshape(shape))
            begin += arrays[-1].nbytes
        return cls(head, tuple(arrays))


class Link:
    """One connection. Any thread may send; one thread receives."""

    def __init__(self, connected: socket.socket, name: str = "") -> None:
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.name = name
        self.address: str = connected.getpeername()[0]
        self.heard = time.monotonic()
        self.num_sent_bytes = 0
        self._socket = connected
        self._connection = Connection(os.dup(connected.fileno()))
        self._lock = threading.Lock()

    def is_to(self, name: str) -> None:
        """Name the other end, which may be known only from its first frame."""
        self.name = name

    def send(self, frame: Frame) -> None:
        """
        Raises:
            OSError: the other end is gone.
        """
        data = frame.encode()
        with self._lock:
            self._connection.send_bytes(data)
        self.num_sent_bytes += len(data)

    def receive(self, max_bytes: int | None = None, seconds: float | None = None) -> Frame:
        """Waits for a frame.

        Raises:
            EOFError, OSError: the other end is gone, or nothing came within `seconds`.
            ValueError: it is no frame.
        """
        if seconds is not None and not self._connection.poll(seconds):
            raise TimeoutError("no message arrived in time")
        frame = Frame.decode(self._connection.recv_bytes(max_bytes))
        self.heard = time.monotonic()
        return frame

    def is_open(self) -> bool:
        """Whether the other end is open and has sent nothing that is still unread."""
        return not self._connection.poll()

    def close(self) -> None:
        """For both ends; a thread that receives sees the end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def listen(address: tuple[str, int]) -> socket.socket:
    """
    Raises:
        OSError: the port is taken, or the address is not one of this host's.
    """
    family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server(address, family=family)


def connect(address: tuple[str, int], deadline: float) -> Link:
    """Tries until the other end is there.

    Args:
        deadline: of the monotonic clock.

    Raises:
        TimeoutError: it never was; the message says why, the last time.
    """
    while True:
        try:
            return Link(socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic())))
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise TimeoutError(str(error)) from error
        time.sleep(_RETRY_SECONDS)


def accept(
    listener: socket.socket, deadline: float, admits: Callable[[Frame, Link], bool], *, wanted: Callable[[], int]
) -> None:
    """Takes links until as many have been let in as are wanted, or the time is over.

    Args:
        admits: gets a link's first frame and says whether its host is expected; otherwise the link is closed.
        wanted: how many are missing.
    """
    while wanted() > 0 and (left := deadline - time.monotonic()) > 0:
        listener.settimeout(min(left, 1.0))
        try:
            connected, _ = listener.accept()
        except TimeoutError:
            continue
        link = Link(connected)
        try:
            is_in = admits(link.receive(_MAX_HELLO, min(left, _HELLO_SECONDS)), link)
        except (EOFError, OSError, ValueError):
            is_in = False  # somebody else's knock, such as a port scan's
        if not is_in:
            link.close()


class Heartbeat:
    """A thread that says on every link that this host lives, and finds out which of the others do not.

    Args:
        silence: seconds without a word after which a host is lost.
        on_lost: called once for each link that is silent for so long.
    """

    def __init__(self, links: Iterable[Link], silence: float, on_lost: Callable[[Link, str], None]) -> None:
        self._links = list(links)
        self._silence = silence
        self._on_lost = on_lost
        self._over = threading.Event()
        threading.Thread(target=self._run, name="palladio-heart", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        beat = Frame({"kind": "beat"})
        while not self._over.wait(BEAT_SECONDS):
            for link in list(self._links):
                with contextlib.suppress(OSError):  # its receiver notices that it is closed
                    link.send(beat)
                if time.monotonic() - link.heard > self._silence and not self._over.is_set():
                    self._links.remove(link)
                    self._on_lost(link, f"no heartbeat for {self._silence:g} s")


def differences(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What differs between two hosts' settings, as texts: name, mine, theirs."""
    names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    return [f"{name} is {mine.get(name, 'unknown')} here and {theirs.get(name, 'unknown')} there" for name in names]
