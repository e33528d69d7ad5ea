"""ProcessTransport: the engine in a child process, seen from the front."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec
import zmq

from palladio.runtime.interface.config import EngineConfig
from palladio.runtime.interface.messages import EngineFailed, EngineReady, FromEngine, Shutdown, ToEngine
from palladio.runtime.process.codec import (
    FROM_ENGINE,
    TO_ENGINE,
    Bootstrap,
    address,
    from_engine_codec,
    open_socket,
    to_engine_codec,
)
from palladio.runtime.process.transport import ENGINE_CORE, Receive
from palladio.runtime.telemetry.logs import current_format

_MAX_SOCKET_PATH = 90  # the kernel takes 107 bytes; the socket's name needs some of them
_MAX_BURST = 64  # messages handled before the event loop may do something else
_EXIT_GRACE = 0.1  # seconds in which a dead child's last words may still arrive
_RECONNECT_MS = 20  # until the child listens
_CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE"})  # faulthandler logs the stacks

logger = logging.getLogger(__name__)


class ProcessTransport:
    """The engine in a child process. Whatever kills the child, `receive` gets EngineFailed promptly.

    After `stop` it can be started again, with a new child.

    Args:
        core_factory: `module:attribute.path` of the core's factory, imported in the child.
        environment: variables that the child gets beside this process's own.
    """

    shares_interpreter = False

    def __init__(self, core_factory: str = ENGINE_CORE, *, environment: Mapping[str, str] | None = None) -> None:
        self._core_factory = core_factory
        self._environment = dict(environment or {})
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    def start(self, config: EngineConfig, receive: Receive) -> None:
        self._child = _Child(config, receive, self._core_factory, self._environment)

    def send(self, message: ToEngine) -> None:
        if self._child is not None:
            self._child.send(message)

    async def stop(self, timeout: float) -> None:
        child = self._child
        if child is None:
            return
        await child.stop(timeout)
        if self._child is child:  # else someone else stopped it meanwhile
            self._child = None


class _Child:
    """One child, from its start to its end, and the sockets to it.

    Raises:
        OSError: no directory for the sockets, or no process, can be made.
    """

    def __init__(
        self, config: EngineConfig, receive: Receive, core_factory: str, environment: Mapping[str, str]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._encode = to_engine_codec().encode
        self._decode = from_engine_codec().decode
        self._ready = False  # EngineReady was delivered
        self._failed = False  # EngineFailed was delivered
        self._stopping = False
        self._closed = False
        self._exited = asyncio.Event()
        self._directory = _make_socket_dir()
        self._context = zmq.Context()
        try:
            self._outgoing = open_socket(self._context, zmq.PUSH, linger=0)
            self._outgoing.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
            # Each side connects what it sends on: then nothing is lost before the other is there.
            self._outgoing.connect(address(self._directory, TO_ENGINE))
            self._incoming = open_socket(self._context, zmq.PULL, linger=0)
            self._incoming.bind(address(self._directory, FROM_ENGINE))
            level = logging.getLogger().getEffectiveLevel()
            bootstrap = Bootstrap(str(self._directory), core_factory, level, config, current_format())
            first_line = msgspec.json.encode(bootstrap) + b"\n"
            self.process = _spawn(environment)
        except BaseException:
            self._context.destroy(linger=0)
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self._loop.add_reader(self._incoming.getsockopt(zmq.FD), self._on_readable)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died already: the watcher says so
            self.process.stdin.write(first_line)
            self.process.stdin.flush()
        threading.Thread(target=self._watch, name="palladio-watch", daemon=True).start()
        self._on_readable()  # the descriptor is edge-triggered: look once

    def send(self, message: ToEngine) -> None:
        if not self._closed:
            self._outgoing.send(self._encode(message), zmq.NOBLOCK)

    async def stop(self, timeout: float) -> None:
        """Ends the child, by force after `timeout` seconds, and frees what belonged to it."""
        self._stopping = True
        self.send(Shutdown())
        try:
            await asyncio.wait_for(self._exited.wait(), timeout)
        except TimeoutError:
            if self._ready and not self._failed:  # otherwise it is busy with its start or its end, and nothing is lost
                logger.warning("The engine process does not exit; killing it")
            self.process.kill()
            await self._exited.wait()
        if self._closed:
            return  # someone else stopped it meanwhile
        self._closed = True
        self._loop.remove_reader(self._incoming.getsockopt(zmq.FD))
        self._context.destroy(linger=0)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _on_readable(self) -> None:
        if self._closed:
            return
        for _ in range(_MAX_BURST):
            try:
                frame = self._incoming.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._deliver(self._decode(frame))
        self._loop.call_soon(self._on_readable)

    def _deliver(self, message: FromEngine) -> None:
        if self._failed:
            return
        self._ready = self._ready or isinstance(message, EngineReady)
        self._failed = isinstance(message, EngineFailed)
        self._receive(message)

    def _watch(self) -> None:
        code = self.process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._on_exit, code)

    def _on_exit(self, code: int) -> None:
        self._exited.set()
        if not self._stopping:
            self._on_readable()
            self._loop.call_later(_EXIT_GRACE, self._report_exit, code)

    def _report_exit(self, code: int) -> None:
        self._on_readable()
        if not self._stopping:
            self._deliver(EngineFailed(_describe_exit(code), config=False))


def _spawn(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "palladio.runtime.process.engine_main"],
        stdin=subprocess.PIPE,
        stdout=2,  # what libraries print goes to our stderr too
        env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        start_new_session=True,  # Ctrl-C in the terminal is for the front, which then decides
    )


def _make_socket_dir() -> Path:
    directory = tempfile.mkdtemp(prefix="palladio-")
    if len(directory) > _MAX_SOCKET_PATH:
        os.rmdir(directory)
        directory = tempfile.mkdtemp(prefix="palladio-", dir="/tmp")
    return Path(directory)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"the engine process exited with status {code}; see its log"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name in _CRASHES:
        return f"the engine process crashed with {name} in native code (jax, XLA or a driver); see stacks in its log"
    if name == "SIGKILL":
        return (
            "the engine process was killed by SIGKILL: by a user, or by the kernel because the host or container ran "
            "out of memory (see `dmesg`)"
        )
    return f"the engine process was killed by {name}, sent from outside this server; see its log"
