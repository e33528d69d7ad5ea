"""serve: the process's main loop. HTTP answers from the first moment, while the engine loads behind it."""

import asyncio
import contextlib
import functools
import gc
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import uvicorn
import uvloop
from fastapi import FastAPI

from palladio.http.app import create_app, create_observer, open_storage
from palladio.http.listening import FIRED_UP, FLUSH_TIMEOUT, Stop, listen, log_address
from palladio.http.prompts.chat_template import ChatTemplate
from palladio.http.security.callers import Callers
from palladio.http.security.connection import Connection
from palladio.http.security.connection_limits import ConnectionLimits
from palladio.http.security.tls import make_tls_context
from palladio.http.settings.http_config import HttpConfig
from palladio.http.settings.log_config import logging_config
from palladio.http.settings.observability_config import ObservabilityConfig
from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.telemetry.logs import LogFormat

logger = logging.getLogger(__name__)

KEEP_ALIVE = 75  # seconds; longer than the idle times of usual load balancers (60), which otherwise meet closed sockets

_TICK = 1.0  # seconds: what a date in a header is late at most


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
        """Refuses new requests at once (`state` "draining"), lets running ones finish for so long, fails the rest
        with that reason, and ends the engine. A second call with 0 cuts the first one short."""
        ...


class Worker(Protocol):
    """Work of the server that is no request."""

    async def start(self) -> None:
        """Takes up what the last server left. A second call does nothing."""
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
    with contextlib.closing(listen(config)) as listener:  # first: a second server on a port names the port
        await _serve_on(listener, tls, engine, config, observability)


async def _serve_on(
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    engine: ServableEngine,
    config: HttpConfig,
    observability: ObservabilityConfig,
) -> None:
    observer = create_observer(engine, config, observability)
    storage = open_storage(config)
    app = create_app(engine, config, observability, observer, storage)
    await app.state.files.check()
    logger.info("%s", app.state.access)
    workers: tuple[Worker, ...] = (app.state.unfinished_responses, app.state.batch_worker)
    server = _Server(make_settings(app, config, observability.log_format, tls))
    sampler: Worker | None = app.state.sampler  # no worker of the engine's: it watches the drain, too
    stop = Stop()
    log_address(listener, config)
    with stop.on_signals():
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            for worker in (*workers, *([] if sampler is None else [sampler])):
                await worker.start()
            await _run_engine(engine, config, stop, workers, app.state.template_warnings)
        finally:
            if sampler is not None:
                await sampler.stop()
            server.end(at_once=stop.count > 1)
            await serving
            app.state.template_readers.close()
            storage.close()
            observer.close()


def check_settings(config: HttpConfig) -> None:
    """Looks at what a server needs before it serves, and leaves it.

    Raises:
        ConfigError: a certificate, keys or the chat template cannot be read, or the address cannot be used.
    """
    make_tls_context(config)
    Callers.of(config)
    ChatTemplate(config)
    listen(config).close()


def make_settings(
    app: FastAPI, config: HttpConfig, log_format: LogFormat, tls: ssl.SSLContext | None
) -> uvicorn.Config:
    """Make uvicorn's configuration.

    Args:
        tls: serve HTTPS with it; None: serve HTTP.
    """
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


async def _run_engine(
    engine: ServableEngine,
    config: HttpConfig,
    stop: Stop,
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
            logger.info(FIRED_UP)
            await first
        drain_timeout = config.drain_timeout
    finally:
        ready.cancel()
        first.cancel()
        for worker in workers:
            await worker.stop()
        await _drain(engine, drain_timeout, stop)


async def _drain(engine: ServableEngine, timeout: float, stop: Stop) -> None:
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


class _Server(uvicorn.Server):
    """uvicorn, without its own signal handlers: it would close the sockets before the drain. It wakes up once a second,
    for the header with the date: each time costs a tenth of a millisecond where the caches are cold, and uvicorn's own
    loop does so ten times."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_over = asyncio.Event()

    def end(self, *, at_once: bool) -> None:
        """Take no more connections.

        Args:
            at_once: drop open connections.
        """
        self.should_exit, self.force_exit = True, at_once
        self._is_over.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK):
                    await self._is_over.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
