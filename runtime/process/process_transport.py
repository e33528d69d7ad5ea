"""ProcessTransport: the engine in a child process, seen from the front."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from palladio.runtime.folders.trial_markers import ProcessMarkers
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.calls import FromEngine, Shutdown, ToEngine
from palladio.runtime.interface.messages.engine_state import EngineFailed, EngineReady
from palladio.runtime.process.codec import Bootstrap
from palladio.runtime.process.engine_child import ENGINE_CORE, EarlyEngine, spawn
from palladio.runtime.process.engine_sockets import EngineSockets
from palladio.runtime.process.transport import Receive
from palladio.runtime.telemetry.logs import current_format

_MAX_SOCKET_PATH = 90  # the kernel takes 107 bytes; the socket's name needs some of them
_EXIT_GRACE = 0.1  # seconds in which a dead child's last words may still arrive
_CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE"})  # faulthandler logs the stacks

logger = logging.getLogger(__name__)


class ProcessTransport:
    """The engine in a child process. Whatever kills the child, `receive` gets EngineFailed promptly.

    After `stop` it can be started again, with a new child.

    Args:
        core_factory: `module:attribute.path` of the core's factory, imported in the child.
        environment: variables that the child gets in addition to this process's own.
        early: the first child, if it has been started already; with the same environment.
    """

    shares_interpreter = False

    def __init__(
        self,
        core_factory: str = ENGINE_CORE,
        *,
        environment: Mapping[str, str] | None = None,
        early: EarlyEngine | None = None,
    ) -> None:
        self._core_factory = core_factory
        self._environment = dict(environment or {})
        self._early = early
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    def start(self, config: EngineConfig, receive: Receive) -> None:
        level = logging.getLogger().getEffectiveLevel()
        bootstrap = Bootstrap("", self._core_factory, level, config, current_format())
        early = None if self._early is None else self._early.take()
        self._child = _Child(bootstrap, receive, self._environment, early)

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
        self,
        bootstrap: Bootstrap,
        receive: Receive,
        environment: Mapping[str, str],
        early: subprocess.Popen[bytes] | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._ready = False  # EngineReady was delivered
        self._failed = False  # EngineFailed was delivered
        self._stopping = False
        self._closed = False
        self._exited = asyncio.Event()
        self._directory = _make_socket_dir()
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
            self._sockets = EngineSockets(self._directory, self._deliver)
            stack.callback(self._sockets.close)
            addressed = msgspec.structs.replace(bootstrap, socket_dir=str(self._directory))
            first_line = msgspec.json.encode(addressed) + b"\n"
            self.process = early or spawn(environment)
            stack.pop_all()
        self._trials = ProcessMarkers(bootstrap.config.execution.trials_path(), self.process.pid)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died already: the watcher says so
            self.process.stdin.write(first_line)
            self.process.stdin.flush()
        threading.Thread(target=self._watch, name="palladio-watch", daemon=True).start()

    def send(self, message: ToEngine) -> None:
        self._sockets.send(message)

    async def stop(self, timeout: float) -> None:
        """Ends the child, by force after `timeout` seconds, and frees what belonged to it."""
        self._stopping = True
        is_alive = self.process.poll() is None
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
        if is_alive and not self._failed:
            self._trials.remove()  # one that was cut short says nothing
        self._sockets.close()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _deliver(self, message: FromEngine) -> None:
        if self._failed:
            return
        self._ready = self._ready or isinstance(message, EngineReady)
        if isinstance(message, EngineFailed):
            self._failed = True
            message = dataclasses.replace(message, trial=self._trial())
        self._receive(message)

    def _trial(self) -> str:
        """Return the kernel whose trial was under way; empty: none was."""
        markers = [] if self._ready else self._trials.found()
        return markers[0].kernel if markers else ""

    def _watch(self) -> None:
        code = self.process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._on_exit, code)

    def _on_exit(self, code: int) -> None:
        self._exited.set()
        if not self._stopping:
            self._sockets.read()
            self._loop.call_later(_EXIT_GRACE, self._report_exit, code)

    def _report_exit(self, code: int) -> None:
        self._sockets.read()
        if not self._stopping:
            self._deliver(EngineFailed(_describe_exit(code), config=False))


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
