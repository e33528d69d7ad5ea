"""How a front reaches an engine, and the transport to one in a thread of the same process."""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.messages.calls import FromEngine, Shutdown, ToEngine
from palladio.runtime.process.engine_child import ENGINE_CORE
from palladio.runtime.process.engine_loop import CoreFactory, resolve_factory, run_engine

logger = logging.getLogger(__name__)

Receive = Callable[[FromEngine], None]


class EngineTransport(Protocol):
    """Carries messages to an engine and back. Used from one event loop only.

    Attributes:
        shares_interpreter: the engine runs in this process.
    """

    shares_interpreter: bool

    def start(self, config: EngineConfig, receive: Receive) -> None:
        """Starts the engine and returns at once. Called within a running event loop.

        Args:
            config: `source.model_path` is a local directory.
            receive: called in the event loop with each message, in order; EngineFailed is the last one, and comes
                whenever the engine ends without having been asked to.
        """

    def send(self, message: ToEngine) -> None:
        """Never blocks; to an engine that ended, it does nothing."""

    async def stop(self, timeout: float) -> None:
        """Ends the engine: asks it to, and after `timeout` seconds forces it if that is possible. Idempotent."""


class QueueInbox:
    """An Inbox fed by another thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self.put = self._queue.put

    def get(self, seconds: float = 0.0) -> ToEngine | None:
        try:
            return self._queue.get(seconds > 0, seconds or None)
        except queue.Empty:
            return None

    def wait(self) -> ToEngine:
        return self._queue.get()


class ThreadTransport:
    """The engine in a thread of this process. What the core emits must not change afterwards: it is not copied."""

    shares_interpreter = True

    def __init__(self, core_factory: str | CoreFactory = ENGINE_CORE) -> None:
        self._core_factory = core_factory
        self._inbox = QueueInbox()
        self._thread: threading.Thread | None = None

    def start(self, config: EngineConfig, receive: Receive) -> None:
        loop = asyncio.get_running_loop()

        def emit(message: FromEngine) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: no reader is left
                loop.call_soon_threadsafe(receive, message)

        self._thread = threading.Thread(target=self._run, args=(config, emit), name="palladio-engine", daemon=True)
        self._thread.start()

    def send(self, message: ToEngine) -> None:
        self._inbox.put(message)

    async def stop(self, timeout: float) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._inbox.put(Shutdown())
        deadline = time.monotonic() + timeout
        while thread.is_alive() and time.monotonic() < deadline:  # no join in a thread: at exit none can be started
            await asyncio.sleep(0.005)
        if thread.is_alive():
            logger.warning("The engine thread is still running after %g s; it stops when the process exits", timeout)

    def _run(self, config: EngineConfig, emit: Receive) -> None:
        run_engine(resolve_factory(self._core_factory), config, self._inbox, emit)
