"""The engine in a process of its own: the transport (in the front), and the child's main program.

Messages travel as msgpack over two ZeroMQ sockets in a private directory; one frame is one message: a tag byte, then
the fields. The child's stdin is its lifeline: it brings the bootstrap line, and when it closes, the front is gone.
"""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
import zmq

from palladio.runtime.config import EngineConfig
from palladio.runtime.engine_loop import TokenEngine, run_engine
from palladio.runtime.logs import configure_logging
from palladio.runtime.messages import (
    AbortRequests,
    AddRequest,
    ControlReply,
    EngineFailed,
    EngineReady,
    FlushCache,
    FromEngine,
    GetStats,
    LoadProgress,
    Shutdown,
    StepOutputs,
    ToEngine,
)
from palladio.runtime.transport import ENGINE_CORE, Receive, resolve_factory

_MAX_SOCKET_PATH = 90  # the kernel takes 107 bytes; the socket's name needs some of them
_MAX_BURST = 64  # messages handled before the event loop may do something else
_EXIT_GRACE = 0.1  # seconds in which a dead child's last words may still arrive
_LINGER_MS = 2000
_RECONNECT_MS = 20  # until the child listens

M = TypeVar("M")
logger = logging.getLogger(__name__)


class Codec(Generic[M]):
    """Bytes of a closed set of message types."""

    def __init__(self, types: Sequence[type]) -> None:
        self._tags = {kind: bytes((tag,)) for tag, kind in enumerate(types)}
        self._decoders: list[msgspec.msgpack.Decoder[Any]] = [msgspec.msgpack.Decoder(kind) for kind in types]
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: M) -> bytes:
        return self._tags[type(message)] + self._encoder.encode(message)

    def decode(self, frame: bytes) -> M:
        return cast("M", self._decoders[frame[0]].decode(memoryview(frame)[1:]))


def to_engine_codec() -> Codec[ToEngine]:
    return Codec([AddRequest, AbortRequests, FlushCache, GetStats, Shutdown])


def from_engine_codec() -> Codec[FromEngine]:
    return Codec([StepOutputs, ControlReply, LoadProgress, EngineReady, EngineFailed])


class Bootstrap(msgspec.Struct, frozen=True):
    """The first line on the child's stdin."""

    socket_dir: str
    core_factory: str
    log_level: int
    config: EngineConfig


class ProcessTransport:
    """The engine in a child process. Whatever kills the child, `receive` gets EngineFailed promptly.

    Args:
        core_factory: `module:attribute.path` of the core's factory, imported in the child.
        environment: variables that the child gets beside this process's own.
    """

    shares_interpreter = False

    def __init__(self, core_factory: str = ENGINE_CORE, *, environment: Mapping[str, str] | None = None) -> None:
        self._core_factory = core_factory
        self._environment = dict(environment or {})
        self._encode = to_engine_codec().encode
        self._decode = from_engine_codec().decode
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False  # EngineReady was delivered
        self._failed = False  # EngineFailed was delivered
        self._stopping = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, config: EngineConfig, receive: Receive) -> None:
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._exited = asyncio.Event()
        self._directory = _make_socket_dir()
        self._context = zmq.Context()
        self._outgoing = _socket(self._context, zmq.PUSH, linger=0)
        self._outgoing.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._outgoing.connect(_address(self._directory, "to-engine"))  # each side connects what it sends on:
        self._incoming = _socket(self._context, zmq.PULL, linger=0)
        self._incoming.bind(_address(self._directory, "from-engine"))  # then nothing is lost before the other is there
        self._loop.add_reader(self._incoming.getsockopt(zmq.FD), self._on_readable)
        bootstrap = Bootstrap(str(self._directory), self._core_factory, logging.getLogger().getEffectiveLevel(), config)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "palladio.runtime.engine_process"],
            stdin=subprocess.PIPE,
            stdout=2,  # what libraries print goes to our stderr too
            env=os.environ
            | self._environment
            | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,  # Ctrl-C in the terminal is for the front, which then decides
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died already: the watcher says so
            self._process.stdin.write(msgspec.json.encode(bootstrap) + b"\n")
            self._process.stdin.flush()
        threading.Thread(target=self._watch, args=(self._process,), name="palladio-watch", daemon=True).start()
        self._on_readable()  # the descriptor is edge-triggered: look once

    def send(self, message: ToEngine) -> None:
        if self._process is None:
            return
        self._outgoing.send(self._encode(message), zmq.NOBLOCK)

    async def stop(self, timeout: float) -> None:
        process = self._process
        if process is None:
            return
        self._stopping = True
        self.send(Shutdown())
        try:
            await asyncio.wait_for(self._exited.wait(), timeout)
        except TimeoutError:
            if self._ready and not self._failed:  # otherwise it is busy with its start or its end, and nothing is lost
                logger.warning("the engine process does not end by itself; killing it")
            process.kill()
            await self._exited.wait()
        if self._process is None:
            return  # someone else stopped it meanwhile
        self._process = None
        self._loop.remove_reader(self._incoming.getsockopt(zmq.FD))
        self._context.destroy(linger=0)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _on_readable(self) -> None:
        if self._process is None:
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

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
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


def main() -> None:
    """The child's program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front decides when to end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    line = _read_line(sys.stdin.fileno())
    if not line:
        return  # the front was gone before it began
    bootstrap = msgspec.json.decode(line, type=Bootstrap)
    directory = Path(bootstrap.socket_dir)
    threading.Thread(target=_end_with_parent, args=(os.getppid(), directory), name="lifeline", daemon=True).start()
    configure_logging(bootstrap.log_level)
    context = zmq.Context()
    outgoing = _socket(context, zmq.PUSH, linger=_LINGER_MS)
    outgoing.connect(_address(directory, "from-engine"))
    incoming = _socket(context, zmq.PULL, linger=0)
    incoming.bind(_address(directory, "to-engine"))
    encode = from_engine_codec().encode
    lock = threading.Lock()  # progress may come from compile threads

    def emit(message: FromEngine) -> None:
        frame = encode(message)
        with lock:
            outgoing.send(frame)

    create_core = resolve_factory(bootstrap.core_factory)

    def create(config: EngineConfig, on_progress: Callable[[LoadProgress], None]) -> TokenEngine:
        core = create_core(config, on_progress)
        gc.collect()
        gc.freeze()  # what is loaded now stays: walking it again and again would only delay steps
        return core

    run_engine(create, bootstrap.config, _ZmqInbox(incoming), emit)
    incoming.close()
    outgoing.close()
    context.term()


class _ZmqInbox:
    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._decode = to_engine_codec().decode

    def get_nowait(self) -> ToEngine | None:
        if not int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # cheaper than the exception of an empty recv
            return None
        return self._decode(self._socket.recv())

    def wait(self) -> ToEngine:
        return self._decode(self._socket.recv())


def _read_line(descriptor: int) -> bytes:
    """One line, unbuffered: what follows must stay visible to select."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(descriptor, 4096)
        if not data:
            return b""
        line += data
    return bytes(line)


def _end_with_parent(parent: int, directory: Path) -> None:
    """Ends this process when the parent does, whatever else it is doing.

    The lifeline closes with the parent, unless a fork of the parent holds it open: so the parent's pid is watched too.
    """
    descriptor = sys.stdin.fileno()
    while True:
        readable, _, _ = select.select([descriptor], [], [], 1.0)
        if (readable and not os.read(descriptor, 1)) or os.getppid() != parent:
            shutil.rmtree(directory, ignore_errors=True)
            os._exit(1)


def _socket(context: "zmq.Context[Any]", kind: int, *, linger: int) -> Any:
    socket = context.socket(kind)
    socket.set_hwm(0)  # never drop, never block
    socket.setsockopt(zmq.LINGER, linger)
    return socket


def _address(directory: Path, name: str) -> str:
    return f"ipc://{directory / name}"


def _make_socket_dir() -> Path:
    directory = tempfile.mkdtemp(prefix="palladio-")
    if len(directory) > _MAX_SOCKET_PATH:
        os.rmdir(directory)
        directory = tempfile.mkdtemp(prefix="palladio-", dir="/tmp")
    return Path(directory)


def _describe_exit(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"the engine process was killed by {signal.Signals(-code).name}; see its log (out of memory?)"
    return f"the engine process ended with exit status {code}; see its log"


if __name__ == "__main__":
    main()
