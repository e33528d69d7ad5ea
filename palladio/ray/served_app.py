"""ServedApp: the HTTP application and the engine behind it, for an ASGI server that is not ours."""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palladio.flags.gpu_memory import gpu_memory
from palladio.flags.server_args import ServerArgs
from palladio.http.app import create_app, create_observer, open_storage
from palladio.http.server import ServableEngine, Worker
from palladio.http.wire.errors import ErrorBody
from palladio.ray.scaling import LOAD, load_of
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import EngineDeadError
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.server.launch import read_command

FIGURES: Final = {  # name of a metric → what it says
    LOAD: "Running and waiting requests, by the most that run at a time",
    "palladio_running_requests": "Running requests",
    "palladio_waiting_requests": "Waiting requests",
    "palladio_token_usage": "Used share of the KV cache, 0 to 1",
    "palladio_gen_throughput": "Output tokens per second",
}
_LOOK = 0.05  # seconds between two looks at the engine's state
_ONE_SERVER: Final = ("/v1/files", "/v1/batches")  # what is made on one replica, no other one knows

logger = logging.getLogger(__name__)


def read_flags(flags: Sequence[str], environment: Mapping[str, str], parallel: ParallelConfig | None) -> ServerArgs:
    """What a replica's flags say; sets up the log.

    Args:
        parallel: which hosts run it; None: as the flags say, on this host alone.

    Raises:
        ConfigError: a flag is wrong.
    """
    # No port: then there is no folder for this one's files. All addresses: anyone may reach Serve's proxies.
    args = read_command(["--host=0.0.0.0", "--port=0", *flags], environment)
    if parallel is None:
        return args
    parallel = dataclasses.replace(
        args.parallel,
        nnodes=parallel.nnodes,
        node_rank=parallel.node_rank,
        dist_init_addr=parallel.dist_init_addr,
        dist_coordinator_port=parallel.dist_coordinator_port,
    )
    survival = dataclasses.replace(args.survival, max_engine_restarts=0)  # of all hosts, or none: by Serve
    return dataclasses.replace(args, parallel=parallel, survival=survival)


def make_engine(args: ServerArgs, environment: Mapping[str, str]) -> AsyncEngine:
    """The engine, in a process of its own, not started."""
    return AsyncEngine(args.engine_config(), ProcessTransport(environment=gpu_memory(environment)))


def environment_of_replica() -> dict[str, str]:
    """Variables of this process, which Ray has started: in the place of a command line's."""
    return dict(os.environ)


class MortalEngine(ServableEngine, Protocol):
    """An engine that says when it is dead."""

    async def wait_dead(self) -> None:
        """Returns when it is dead for good, before its requests fail."""
        ...


class ServedApp:
    """
    Args:
        hold_seconds: for so long requests wait while the engine restarts after a failure.
        has_files: whether all replicas know the same files and batches; else they are refused, because the next request
            may come to another replica.

    Raises:
        ConfigError: a flag names what cannot be read or used.
    """

    def __init__(self, args: ServerArgs, engine: MortalEngine, *, hold_seconds: float, has_files: bool) -> None:
        self._engine = engine
        self._hold_seconds = hold_seconds
        self._has_files = has_files
        self._observer = create_observer(engine, args.http, args.observability)
        self._storage = open_storage(args.http)
        self._app = create_app(engine, args.http, args.observability, self._observer, self._storage)
        state = self._app.state
        logger.info("%s", state.access)
        workers: tuple[Worker | None, ...] = (state.unfinished_responses, state.batch_worker, state.sampler)
        self._workers = [worker for worker in workers if worker is not None]
        self._watch: asyncio.Task[None] | None = None

    async def start(self, on_death: Callable[[str], None]) -> None:
        """Returns when requests are accepted.

        Args:
            on_death: called once, with the reason, if the engine dies later and is not restarted; before any request
                is answered with that.

        Raises:
            PalladioError: it cannot start; the message is for the user.
        """
        await self._app.state.files.check()
        for worker in self._workers:
            await worker.start()
        await self._engine.start()
        await self._engine.wait_ready()
        for warning in self._app.state.template_warnings():
            logger.warning("%s", warning)
        gc.collect()
        gc.freeze()  # as the server's own loop does
        self._watch = asyncio.create_task(self._watch_engine(on_death))

    async def stop(self, drain_seconds: float) -> None:
        """Refuses new requests, gives running ones so long, and ends the engine."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        for worker in self._workers:
            await worker.stop()
        await self._engine.shutdown(drain_seconds)
        self._app.state.template_readers.close()
        self._storage.close()
        self._observer.close()

    def check(self) -> None:
        """
        Raises:
            EngineDeadError: the engine is dead for good, so that only a new replica helps. One that restarts, or hangs
                until its watchdog ends it, still has requests that would be lost.
        """
        if self._engine.state == "dead":
            raise EngineDeadError(self._engine.failure or "the engine is dead")

    async def figures(self) -> dict[str, float]:
        """What Serve scales by and Ray's metrics show: the names of FIGURES; empty while the engine restarts."""
        if self._engine.state != "ready":
            return {}
        total = (await self._engine.stats()).total
        info = self._engine.info
        usage = total.num_used_tokens / total.num_total_tokens if total.num_total_tokens else 0.0
        slots = info.max_running_requests * info.num_ranks
        return {
            LOAD: load_of(total.num_running, total.num_waiting, slots, usage),
            "palladio_running_requests": float(total.num_running),
            "palladio_waiting_requests": float(total.num_waiting),
            "palladio_token_usage": usage,
            "palladio_gen_throughput": total.last_gen_throughput,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self._app
        if scope["type"] == "http":
            if not self._has_files and scope["path"].startswith(_ONE_SERVER):
                app = ErrorBody(
                    501,
                    f"{scope['path']} is not supported with several replicas that each have a store of their own. Set "
                    "database_url and file_storage_path for all of them to share one, or num_replicas to 1",
                ).response()
            elif scope["method"] == "POST":
                await self._hold()
        await app(scope, receive, _without_id(send))

    async def _hold(self) -> None:
        """Waits while the engine restarts: Serve would not try another replica after a 503."""
        waited = 0.0
        while self._engine.state == "restarting" and waited < self._hold_seconds:
            await asyncio.sleep(_LOOK)
            waited += _LOOK

    async def _watch_engine(self, on_death: Callable[[str], None]) -> None:
        await self._engine.wait_dead()
        on_death(self._engine.failure or "the engine is dead")


def _without_id(send: Send) -> Send:
    """Leaves the header X-Request-ID to Serve's proxy, which adds it to every answer: it has given the request its id,
    unless the client did."""

    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [header for header in message.get("headers", ()) if header[0].lower() != b"x-request-id"]
            message = {**message, "headers": headers}
        await send(message)

    return send_on
