"""serve: the process's main loop. HTTP answers from the first moment, while the engine loads behind it."""

import asyncio
import contextlib
import functools
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import uvicorn
import uvloop
from fastapi import FastAPI

from palladio.http.app import create_app, create_observer, open_storage
from palladio.http.security.connection import Connection, ConnectionLimits
from palladio.http.security.tls import make_tls_context
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.log_config import logging_config
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.front.engine_protocol import EngineClient
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.telemetry.logs import LogFormat

logger = logging.getLogger(__name__)

KEEP_ALIVE = 75  # seconds; longer than the idle times of usual load balancers (60), which otherwise meet closed sockets
FLUSH_TIMEOUT = 5  # seconds for the last bytes to reach slow clients after the engine has stopped


class ServableEngine(EngineClient, Protocol):
    """An engine whose life this server runs."""

    async def start(self) -> None:
        """Begins to load; returns at once, with `state` "starting"."""
        ...

    async def wait_ready(self) -> None:
        """
        Raises:
            PalladioError: it cannot start; the message is for the user.
        """
        ...

    async def shutdown(self, drain_seconds: float) -> None:
        """Refuses new requests at once (`state` "draining"), lets running ones finish for so long, aborts the rest,
        and ends the engine. A second call with 0 cuts the first one short."""
        ...


class Worker(Protocol):
    """Work of the server's own, beside requests."""

    async def start(self) -> None:
        """Takes up what the last server left."""
        ...

    async def stop(self) -> None:
        """Leaves the rest to the next one."""
        ...


def serve(
    engine: ServableEngine, config: HttpConfig, observability: ObservabilityConfig = ObservabilityConfig()
) -> int:
    """Runs until SIGTERM or SIGINT; returns the process's exit status, 0.

    The first signal drains: new requests get a 503, running ones finish. A second one ends it at once.

    Raises:
        ConfigError: a flag or the checkpoint is wrong.
        EngineDeadError: the engine could not start for another reason.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_async(engine, config, observability))
    return 0


async def serve_async(
    engine: ServableEngine, config: HttpConfig, observability: ObservabilityConfig = ObservabilityConfig()
) -> None:
    """`serve`, inside a running loop."""
    tls = make_tls_context(config)
    with contextlib.closing(_listen(config)) as listener:  # first: a second server on a port is told of the port
        await _serve_on(listener, engine, config, observability, tls)


async def _serve_on(
    listener: socket.socket,
    engine: ServableEngine,
    config: HttpConfig,
    observability: ObservabilityConfig,
    tls: ssl.SSLContext | None,
) -> None:
    observer = create_observer(engine, config, observability)
    storage = open_storage(config)
    app = create_app(engine, config, observability, observer, storage)
    await app.state.files.check()
    logger.info("%s", app.state.access)
    workers: tuple[Worker, ...] = (app.state.unfinished_responses, app.state.batch_worker)
    server = _Server(make_settings(app, config, observability.log_format, tls))
    sampler: Worker | None = app.state.sampler  # no worker of the engine's: it watches the drain, too
    stop = _Stop(asyncio.get_running_loop())
    _log_address(listener, config)
    with stop.on_signals():
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            for worker in (*workers, sampler):
                if worker is not None:
                    await worker.start()
            await _run_engine(engine, config, stop, workers, app.state.template_warnings)
        finally:
            if sampler is not None:
                await sampler.stop()
            server.should_exit = True
            server.force_exit = stop.count > 1
            await serving
            storage.close()
            observer.close()


def make_settings(
    app: FastAPI, config: HttpConfig, log_format: LogFormat, tls: ssl.SSLContext | None
) -> uvicorn.Config:
    """uvicorn's configuration. Args: tls: serve HTTPS with it."""
    limits = ConnectionLimits(config.request_read_timeout, config.response_write_timeout, config.max_connections)
    settings = uvicorn.Config(
        app,
        http=functools.partial(Connection, limits=limits),  # type: ignore[arg-type]  # it only calls it
        ws="none",
        host=config.host,
        port=config.port,
        log_config=logging_config(config, log_format),
        log_level=None,
        access_log=True,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=FLUSH_TIMEOUT,
        lifespan="off",
    )
    settings.load()
    settings.ssl = tls
    return settings


def _listen(config: HttpConfig) -> socket.socket:
    """The listening socket. Raises ConfigError: the address is taken, or is none of this machine."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on --host {config.host} --port {config.port}: {error.strerror}; "
            "choose another --port (0: any free port)"
        ) from error


def _log_address(listener: socket.socket, config: HttpConfig) -> None:
    """Says where the server listens, with the port that --port 0 left to the system."""
    host = f"[{config.host}]" if listener.family == socket.AF_INET6 else config.host
    uvicorn_logger = logging.getLogger("uvicorn.error")
    scheme = "http" if config.ssl_certfile is None else "https"
    port = listener.getsockname()[1]
    uvicorn_logger.info("Uvicorn running on %s://%s:%d (Press CTRL+C to quit)", scheme, host, port)
    if config.ui:
        shown = "localhost" if config.host in ("0.0.0.0", "::") else host
        uvicorn_logger.info("Chat page: %s://%s:%d%s/", scheme, shown, port, config.root_path.rstrip("/"))


async def _run_engine(
    engine: ServableEngine,
    config: HttpConfig,
    stop: "_Stop",
    workers: Sequence[Worker],
    warnings: Callable[[], list[str]],
) -> None:
    """Starts the engine, waits for the signal to stop, drains; what workers have to do is left to the next server."""
    await engine.start()
    ready = asyncio.create_task(engine.wait_ready())
    first = asyncio.create_task(stop.wait(1))
    drain_timeout = 0.0
    try:
        await asyncio.wait((ready, first), return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            _ = ready.done() and ready.exception()  # no failure: the same signal may have ended the engine
        else:
            ready.result()
            for warning in warnings():
                logger.warning("%s", warning)
            gc.collect()
            gc.freeze()  # what is loaded now stays: walking it again and again costs streams a fifth of their speed
            logger.info("The server is fired up and ready to roll!")
            await first
        drain_timeout = config.drain_timeout
    finally:
        ready.cancel()
        first.cancel()
        for worker in workers:
            await worker.stop()
        await _drain(engine, drain_timeout, stop)


async def _drain(engine: ServableEngine, timeout: float, stop: "_Stop") -> None:
    drain = asyncio.create_task(engine.shutdown(timeout))
    second = asyncio.create_task(stop.wait(2))
    await asyncio.wait((drain, second), return_when=asyncio.FIRST_COMPLETED)
    second.cancel()
    if drain.done():
        drain.result()
        return
    logger.warning("Second signal received: running requests are aborted")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(engine.shutdown(0.0), FLUSH_TIMEOUT)
    drain.cancel()


class _Stop:
    """Counts SIGINT and SIGTERM."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed = asyncio.Event()
        self.count = 0

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            self._loop.add_signal_handler(number, self._hit)
        try:
            yield
        finally:
            for number, handler in before.items():
                self._loop.remove_signal_handler(number)
                if handler is not None:
                    signal.signal(number, handler)

    def _hit(self) -> None:
        self.count += 1
        logger.info("Gracefully exiting..." if self.count == 1 else "Exiting now.")
        self._changed.set()

    async def wait(self, count: int) -> None:
        while self.count < count:
            self._changed.clear()
            await self._changed.wait()


class _Server(uvicorn.Server):
    """uvicorn, without its own signal handlers: it would close the sockets before the drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
