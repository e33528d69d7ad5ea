"""The hosts that run one model together: host 0 leads, the others make the calls of programs that it makes.

They meet before jax connects them: so a host that is missing, late or started differently is named in an error, where
jax's own meeting would end the process. Afterwards each watches the links to find out which host is lost.
"""

import contextlib
import dataclasses
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from palladio.runtime.interface.errors import ConfigError, HostLostError
from palladio.runtime.multihost.links import Frame, Heartbeat, HostArray, Link, accept, connect, differences, listen

_LOSS_SECONDS = 5.0  # in which a closed link is noticed, after a program has failed for want of the host behind it
_GOODBYE_SECONDS = 5.0  # for the others to end: jax's service, which they are connected to, lives in host 0

OnLost = Callable[[str], None]

logger = logging.getLogger("palladio.engine")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """What a host knows of the meeting.

    Attributes:
        rank: of this host. num_hosts: that are expected, this one included.
        address: of host 0: name and port.
        timeout: seconds that hosts wait for each other. silence: seconds without a word after which one is lost.
        config_digest: name → value of what has to be the same everywhere.
    """

    rank: int
    num_hosts: int
    address: tuple[str, int]
    timeout: float
    silence: float
    config_digest: Mapping[str, str]


class HostCoordinator:
    """Host 0's end.

    Args:
        links: to the others, by rank.
        on_lost: called in another thread, once, with a message for the user; the engine's thread may be waiting for
            the lost host for ever.

    Attributes:
        num_calls: how many calls were sent.
    """

    def __init__(self, links: Mapping[int, Link], silence: float, on_lost: OnLost) -> None:
        self.num_calls = 0
        self._links = links
        self._on_lost = on_lost
        self._values: dict[int, queue.SimpleQueue[int | None]] = {rank: queue.SimpleQueue() for rank in links}
        self._is_over = False
        self._lock = threading.Lock()
        self._loss = ""  # the message for `on_lost`; empty: no host is lost
        self._has_reported = threading.Event()
        self._heartbeat = Heartbeat(links.values(), silence, self._lose)
        self._listeners = [
            threading.Thread(target=self._listen, args=(rank, link), name=f"palladio-host-{rank}", daemon=True)
            for rank, link in links.items()
        ]
        for listener in self._listeners:
            listener.start()

    @classmethod
    def meet(cls, rendezvous: Rendezvous, welcome: Mapping[str, Any], on_lost: OnLost) -> "HostCoordinator":
        """Waits for the other hosts.

        Args:
            welcome: sent to them when all are there.

        Raises:
            ConfigError: host 0 cannot listen on the address, or a host was started with something else.
            HostLostError: one does not come.
        """
        try:
            listener = listen(rendezvous.address)
        except OSError as error:
            host, port = rendezvous.address
            raise ConfigError(
                f"host 0 cannot listen on --dist-init-addr {host}:{port} ({error}); use an address of this host and a "
                "free port"
            ) from error
        with listener:
            links = _HostCheck(rendezvous).receive(listener)
        for link in links.values():
            link.send(Frame({"kind": "welcome", **welcome}))
        return cls(links, rendezvous.silence, on_lost)

    @property
    def num_sent_bytes(self) -> int:
        """Bytes sent to all other hosts."""
        return sum(link.num_sent_bytes for link in self._links.values())

    def call(self, key: tuple[Any, ...] | None, arrays: tuple[HostArray, ...]) -> None:
        """Make the other hosts call the same program; see DeviceExecutor."""
        self.num_calls += 1
        frame = Frame({"kind": "call", "key": key}, arrays)
        for link in self._links.values():
            with contextlib.suppress(OSError):  # who listens on it sees that it is closed
                link.send(frame)

    def order(self, order: str, path: str) -> None:
        """Make the other hosts change their part of the model; see ModelMemory."""
        self._send(Frame({"kind": "order", "order": order, "path": path}))

    @contextlib.contextmanager
    def building(self, key: tuple[Any, ...]) -> Iterator[None]:
        """Make the other hosts build a program while this is open; it closes when all of them have it. So no host waits
        inside a collective for one that compiles, and compilers that share their work meet.

        Raises:
            HostLostError: when it closes: one is lost, or could not build it.
        """
        self._send(Frame({"kind": "build", "key": key}))
        yield
        self.smallest(0)

    def smallest(self, value: int) -> int:
        """The smallest of the hosts' values; waits for all of them, who ask the same at the same point.

        Raises:
            HostLostError: one is lost.
        """
        values = [self._values[rank].get() for rank in self._links]
        found = [one for one in values if one is not None]
        if len(found) < len(values):
            raise HostLostError(self._loss)
        least = min(value, *found)
        self._send(Frame({"kind": "value", "value": least}))
        return least

    def check_loss(self) -> None:
        """Raises if a host is lost. A program that needs the host may fail before the closed link is noticed, with an
        error that does not name it: so this waits a little.

        Raises:
            HostLostError: one is lost; `on_lost` has been called.
        """
        if self._has_reported.wait(_LOSS_SECONDS) or self._loss:
            self._has_reported.wait()
            raise HostLostError(self._loss)

    def close(self, message: str = "") -> None:
        """End the other hosts and wait a few seconds for that.

        Args:
            message: why, if it is no orderly end.
        """
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self._heartbeat.stop()
        if self.num_calls:
            logger.info(
                "Sent %d program calls to %d hosts (%d bytes each)", self.num_calls, len(self._links),
                self.num_sent_bytes / self.num_calls / len(self._links),
            )  # fmt: skip
        self._send(Frame({"kind": "stop", "message": message}))
        deadline = time.monotonic() + _GOODBYE_SECONDS
        for listener in self._listeners:
            if listener is not threading.current_thread():
                listener.join(max(0.0, deadline - time.monotonic()))

    def _send(self, frame: Frame) -> None:
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.send(frame)

    def _listen(self, rank: int, link: Link) -> None:
        try:
            while True:
                frame = link.receive()
                if frame.kind == "value":
                    self._values[rank].put(int(frame.head["value"]))
                elif frame.kind == "failed":
                    return self._lose(link, str(frame.head["message"]))
        except (EOFError, OSError, ValueError):
            self._lose(link, "it closed the connection")
        return None

    def _lose(self, link: Link, why: str) -> None:
        message = f"connection to {link.name} lost: {why}"
        with self._lock:
            if self._is_over or self._loss:
                return
            self._loss = message
        logger.error("%s; stopping the other hosts", message)
        self.close(message)
        self._on_lost(message)  # before calls that wait for a value, or in `check_loss`, fail
        self._has_reported.set()
        for values in self._values.values():
            values.put(None)


class _HostCheck:
    """Lets the other hosts in."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._links: dict[int, Link] = {}
        self._problem = ""

    def receive(self, listener: socket.socket) -> dict[int, Link]:
        rendezvous = self._rendezvous
        deadline = time.monotonic() + rendezvous.timeout
        host, port = rendezvous.address
        others = rendezvous.num_hosts - 1
        logger.info("Host 0 listens on %s:%d and waits for %d more host%s", host, port, others, "s" * (others > 1))
        accept(listener, deadline, self._admits, wanted=lambda: 0 if self._problem else others - len(self._links))
        if self._problem:
            self._refuse_all(self._problem)
            raise ConfigError(self._problem)
        missing = [rank for rank in range(1, rendezvous.num_hosts) if rank not in self._links]
        if missing:
            names = ", ".join(map(str, missing))
            message = (
                f"host{'s' * (len(missing) > 1)} {names} of {rendezvous.num_hosts} did not connect to {host}:{port} "
                f"within {rendezvous.timeout:g} s (--dist-timeout); start the same command there with --node-rank "
                f"{names}"
            )
            self._refuse_all(message)
            raise HostLostError(message)
        return dict(sorted(self._links.items()))

    def _admits(self, frame: Frame, link: Link) -> bool:
        if frame.kind != "hello":
            return False
        rendezvous, head = self._rendezvous, frame.head
        rank = int(head["rank"])
        link.is_to(f"host {rank} ({head['name']}, {link.address})")
        if head["num_hosts"] != rendezvous.num_hosts:
            problem = f"--nnodes is {rendezvous.num_hosts} on host 0 and {head['num_hosts']} on {link.name}"
        elif different := differences(rendezvous.config_digest, head["config_digest"]):
            problem = f"host 0 and {link.name} have different settings: {'; '.join(different)}"
        elif rank in self._links and self._links[rank].is_open():
            problem = f"--node-rank {rank} was given to {self._links[rank].name} and to {link.name}"
        else:
            logger.info("%s connected", link.name)
            self._links[rank] = link
            return True
        self._problem = problem
        _refuse(link, problem)
        return False

    def _refuse_all(self, message: str) -> None:
        for link in self._links.values():
            _refuse(link, message)


def _refuse(link: Link, message: str) -> None:
    with contextlib.suppress(OSError):
        link.send(Frame({"kind": "refused", "message": message}))
    link.close()


class HostWorker:
    """Another host's end.

    Args:
        on_end: called in another thread when this host has to end, with the reason, which is empty for an orderly end.
    """

    def __init__(self, link: Link, silence: float, on_end: OnLost) -> None:
        self._link = link
        self._on_end = on_end
        self._calls: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._values: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._heartbeat = Heartbeat([link], silence, lambda _, why: on_end(f"connection to host 0 lost: {why}"))
        self._listener = threading.Thread(target=self._listen, name="palladio-host-0", daemon=True)
        self._listener.start()

    @classmethod
    def meet(cls, rendezvous: Rendezvous, on_end: OnLost) -> "tuple[HostWorker, dict[str, Any]]":
        """Goes to host 0, and returns when all hosts are there, with what it says then.

        Raises:
            ConfigError: a host was started with something else.
            HostLostError: host 0, or another one, is not there.
        """
        host, port = rendezvous.address
        deadline = time.monotonic() + rendezvous.timeout
        logger.info("Connecting to host 0 at %s:%d", host, port)
        try:
            link = connect(rendezvous.address, deadline)
            link.send(
                Frame(
                    {
                        "kind": "hello",
                        "rank": rendezvous.rank,
                        "num_hosts": rendezvous.num_hosts,
                        "name": socket.gethostname(),
                        "config_digest": dict(rendezvous.config_digest),
                    }
                )
            )
            answer = link.receive(seconds=max(1.0, deadline - time.monotonic()) + rendezvous.timeout)
        except (EOFError, OSError, ValueError) as error:
            raise HostLostError(
                f"host 0 did not answer at {host}:{port} within {rendezvous.timeout:g} s (--dist-timeout): {error}; "
                "start the same command there with --node-rank 0, and check --dist-init-addr"
            ) from error
        if answer.kind == "refused":
            raise ConfigError(str(answer.head["message"]))
        return cls(link, rendezvous.silence, on_end), answer.head

    def smallest(self, value: int) -> int:
        """Take part in `HostCoordinator.smallest`: send this host's value, return the smallest of all."""
        self._link.send(Frame({"kind": "value", "value": value}))
        return self._values.get()

    def calls(
        self, obey: Callable[[str, str], None] = lambda order, path: None
    ) -> Iterator[tuple[list[Any] | None, tuple[HostArray, ...] | None]]:
        """Key and arrays of each call, for ever. Arrays None: the program is only to be built, see
        HostCoordinator.building, and `smallest` says that it is there.

        Args:
            obey: gets what host 0 sends with `HostCoordinator.order`, in order with the calls.
        """
        while True:
            frame = self._calls.get()
            if frame.kind == "order":
                obey(str(frame.head["order"]), str(frame.head["path"]))
                continue
            yield frame.head["key"], frame.arrays if frame.kind == "call" else None

    def await_end(self) -> None:
        """Waits a little for host 0 to end this host: a program may have failed because another host is lost, which
        host 0 knows by name."""
        self._listener.join(_LOSS_SECONDS)

    def fail(self, message: str) -> None:
        """Report to host 0 that this host ends, and why."""
        with contextlib.suppress(OSError):
            self._link.send(Frame({"kind": "failed", "message": message}))

    def _listen(self) -> None:
        try:
            while True:
                frame = self._link.receive()
                if frame.kind in ("call", "build", "order"):
                    self._calls.put(frame)
                elif frame.kind == "value":
                    self._values.put(int(frame.head["value"]))
                elif frame.kind == "stop":
                    self._heartbeat.stop()
                    self._link.close()
                    return self._on_end(str(frame.head["message"]))
        except (EOFError, OSError, ValueError):
            self._heartbeat.stop()
            self._on_end("connection to host 0 lost: it closed the connection")
        return None
