"""Replica: what Serve runs in each of its replica processes."""

import asyncio
import contextlib
import logging
import os
import sys

from ray.serve import metrics

from palladio.ray.arguments import ServeArguments
from palladio.ray.hosts import OtherHosts
from palladio.ray.served_app import FIGURES, ServedApp, environment_of_replica, make_engine, read_flags
from palladio.runtime.interface.errors import PalladioError

_SHOW_INTERVAL = 5.0  # seconds

logger = logging.getLogger(__name__)


class Replica:
    """The server behind one replica; Serve calls the methods by these names.

    When the engine is dead for good, the process ends on the spot: Serve notices at once, sends nothing to it any more
    and starts another one. Serve's health checks take seconds to notice, and until then a replica that refuses
    everything at once would look idle and get most of the requests.
    """

    def __init__(self, arguments: ServeArguments) -> None:
        self._arguments = arguments
        self._served: ServedApp | None = None
        self._hosts: OtherHosts | None = None
        self._showing: asyncio.Task[None] | None = None

    async def __serve_build_asgi_app__(self) -> ServedApp:
        """The application, with its engine ready.

        Raises:
            PalladioError: the engine cannot start; Serve shows the message.
        """
        options, environment = self._arguments.options, environment_of_replica()
        parallel = None
        if options.slice is not None and options.slice.num_hosts > 1:
            self._hosts = OtherHosts.start(options.slice, self._arguments.flags)
            parallel = self._hosts.parallel
        args = read_flags(self._arguments.flags, environment, parallel)
        engine = make_engine(args, environment)
        has_files = options.most_replicas == 1 or args.http.database_url is not None
        served = ServedApp(args, engine, hold_seconds=options.hold_seconds, has_files=has_files)
        self._served = served
        await served.start(_end_process)
        self._showing = asyncio.create_task(_show(served))
        return served

    async def check_health(self) -> None:
        """
        Raises:
            EngineDeadError: Serve has to replace this replica.
        """
        if self._served is not None:
            self._served.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {} if self._served is None else await self._served.figures()

    async def __del__(self) -> None:
        """Serve has drained: no requests are left, or their time is over."""
        if self._showing is not None:
            self._showing.cancel()
        if self._served is not None:
            await self._served.stop(0.0)
        if self._hosts is not None:
            self._hosts.stop()


async def _show(served: ServedApp) -> None:
    """Keeps Ray's metrics of this replica up to date, which Ray's Prometheus endpoints have: a scrape of /metrics
    reaches any replica."""
    gauges = {name: metrics.Gauge(name, description=text) for name, text in FIGURES.items()}
    while True:
        with contextlib.suppress(PalladioError):  # it has begun to restart meanwhile
            for name, value in (await served.figures()).items():
                gauges[name].set(value)
        await asyncio.sleep(_SHOW_INTERVAL)


def _end_process(reason: str) -> None:
    logger.error("The engine is dead, and this replica ends, for Serve to start another one: %s", reason)
    sys.stderr.flush()
    os._exit(1)
