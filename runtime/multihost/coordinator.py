"""The hosts that run one model together: host 0 leads, the others make the calls of programs that it makes.

They meet before jax connects them: so a host that is missing, late or started differently is named in an error, where
jax's own meeting would end the process. Afterwards each watches the links to find out which host is lost.
"""

import contextlib
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from palladio.runtime.interface.errors import ConfigError, HostLostError
from palladio.runtime.multihost.host_check import HostCheck, Rendezvous
from palladio.runtime.multihost.links import Frame, Heartbeat, HostArray, Link, connect, listen

_LOSS_SECONDS = 5.0  # in which a closed link is noticed, after a program has failed for want of the host behind it
_GOODBYE_SECONDS = 5.0  # for the others to end: jax's service, which they are connected to, lives in host 0

OnLost = Callable[[str], None]

logger = logging.getLogger("palladio.engine")


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
        self._waits: dict[int, str] = {}  # rank → who has the device that the host waits for
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
            links = HostCheck(rendezvous).receive(listener)
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

    def tell_wait(self, why: str) -> None:
        """Note who has the device that host 0 waits for; "": it waits no more."""
        self._note_wait(0, why)

    def waiting_host(self) -> str | None:
        """Name a host that waits for its device, and why: where others fail meanwhile, that is the cause."""
        for rank, why in sorted(self._waits.items()):
            if why:
                name = self._links[rank].name if rank else "host 0"
                return f"{name} cannot use its device: {why}"
        return None

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
                elif frame.kind == "waiting":
                    self._note_wait(rank, str(frame.head["message"]))
                elif frame.kind == "failed":
                    return self._lose(link, str(frame.head["message"]))
        except (EOFError, OSError, ValueError):
            self._lose(link, "it closed the connection")
        return None

    def _note_wait(self, rank: int, why: str) -> None:
        self._waits[rank] = why
        if why and rank:
            logger.warning("%s waits for its device: %s", self._links[rank].name, why)

    def _lose(self, link: Link, why: str) -> None:
        message = f"connection to {link.name} lost: {why}"
        culprit = self.waiting_host()
        if culprit is not None and not culprit.startswith(link.name):
            message = f"{culprit} ({message})"
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


class HostWorker:
    """Another host's end.

    Args:
        on_end: called in another thread when this host has to end, with the reason, which is empty for an orderly end.
    """

    def __init__(self, link: Link, silence: float, on_end: OnLost) -> None:
        self._link = link
        self._on_end = on_end
        self._ends_itself = False
        self._calls: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._values: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._heartbeat = Heartbeat([link], silence, lambda _, why: self._end(f"connection to host 0 lost: {why}"))
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

    def fail(self, message: str, *, ends_itself: bool = False) -> None:
        """Report to host 0 that this host ends, and why.

        Args:
            ends_itself: with an exit code of its own, whatever host 0 answers.
        """
        self._ends_itself = ends_itself
        with contextlib.suppress(OSError):
            self._link.send(Frame({"kind": "failed", "message": message}))

    def tell_wait(self, why: str) -> None:
        """Report to host 0 who has the device that this host waits for; "": it waits no more."""
        with contextlib.suppress(OSError):
            self._link.send(Frame({"kind": "waiting", "message": why}))

    def _end(self, message: str) -> None:
        if not self._ends_itself:
            self._on_end(message)

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
                    return self._end(str(frame.head["message"]))
        except (EOFError, OSError, ValueError):
            self._heartbeat.stop()
            self._end("connection to host 0 lost: it closed the connection")
        return None
