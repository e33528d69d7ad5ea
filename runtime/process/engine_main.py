"""The engine's process: the child's main program.

The child's stdin is its lifeline: it brings the bootstrap line, and when it closes, the front is gone.
"""

import signal

if __name__ == "__main__":  # the front decides when to end, also while this process still imports modules
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

import contextlib
import faulthandler
import gc
import os
import pkgutil
import select
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from palladio.runtime.folders.trial_markers import ProcessMarkers
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.calls import FromEngine, ToEngine
from palladio.runtime.interface.messages.engine_state import EngineFailed, LoadProgress
from palladio.runtime.process.codec import (
    FROM_ENGINE,
    TO_ENGINE,
    Bootstrap,
    address,
    from_engine_codec,
    open_socket,
    to_engine_codec,
)
from palladio.runtime.process.engine_loop import TokenEngine, resolve_factory, run_engine
from palladio.runtime.telemetry.logs import configure_logging

_YOUNG_OBJECTS = 20_000  # before a collection; a step of many requests makes 1,000 and is soon gone with all of them
_LINGER_MS = 2000
_LAST_WORDS = 0.5  # seconds in which the front gets to know why a hung engine ends; it may kill it sooner


def main() -> None:
    """The child's program."""
    faulthandler.enable()
    for name in sys.argv[1:]:
        with contextlib.suppress(Exception):  # of whatever it imports; the engine imports it again, and reports errors
            pkgutil.resolve_name(name)
    line = _read_line(sys.stdin.fileno())
    if not line:
        return  # the front was gone before it began
    bootstrap = msgspec.json.decode(line, type=Bootstrap)
    directory = Path(bootstrap.socket_dir)
    trials = ProcessMarkers(bootstrap.config.execution.trials_path(), os.getpid())
    lifeline = os.getppid(), directory, trials
    threading.Thread(target=_end_with_parent, args=lifeline, name="lifeline", daemon=True).start()
    configure_logging(bootstrap.log_level, bootstrap.log_format)
    context = zmq.Context()
    outgoing = open_socket(context, zmq.PUSH, linger=_LINGER_MS)
    outgoing.connect(address(directory, FROM_ENGINE))
    incoming = open_socket(context, zmq.PULL, linger=0)
    incoming.bind(address(directory, TO_ENGINE))
    encode = from_engine_codec().encode
    lock = threading.Lock()  # progress may come from compile threads

    def emit(message: FromEngine) -> None:
        frame = encode(message)
        with lock:
            outgoing.send(frame)

    def end_hung(message: str) -> None:
        emit(EngineFailed(message, config=False))
        time.sleep(_LAST_WORDS)
        os._exit(1)

    create_core = resolve_factory(bootstrap.core_factory)

    def create(
        config: EngineConfig, on_progress: Callable[[LoadProgress], None], on_fatal: Callable[[str], None]
    ) -> TokenEngine:
        core = create_core(config, on_progress, on_fatal)
        gc.collect()
        gc.freeze()  # what is loaded now stays: walking it again and again would only delay steps
        gc.set_threshold(_YOUNG_OBJECTS)
        return core

    run_engine(create, bootstrap.config, _ZmqInbox(incoming), emit, end_hung)
    incoming.close()
    outgoing.close()
    context.term()
    os._exit(0)  # a thread may be compiling: that program is not needed any more


class _ZmqInbox:
    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._decode = to_engine_codec().decode

    def get(self, seconds: float = 0.0) -> ToEngine | None:
        if seconds > 0 and not self._socket.poll(int(1000 * seconds), zmq.POLLIN):
            return None
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


def _end_with_parent(parent: int, directory: Path, trials: ProcessMarkers) -> None:
    """Ends this process when the parent does, whatever else it is doing. The trial of a kernel that this cuts short
    leaves no marker.

    The lifeline closes with the parent, unless a fork of the parent holds it open: so the parent's pid is watched too.
    """
    descriptor = sys.stdin.fileno()
    while True:
        readable, _, _ = select.select([descriptor], [], [], 1.0)
        if (readable and not os.read(descriptor, 1)) or os.getppid() != parent:
            shutil.rmtree(directory, ignore_errors=True)
            trials.remove()
            os._exit(1)


if __name__ == "__main__":
    main()
