"""Replica: what Serve runs in each of its replica processes."""

import logging
import os
import sys

from palladio.ray.arguments import ServeArguments
from palladio.ray.hosts import OtherHosts
from palladio.ray.served_app import ServedApp, environment_of_replica, make_engine, read_flags

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
        is_alone = options.most_replicas == 1
        served = ServedApp(args, engine, hold_seconds=options.hold_seconds, is_alone=is_alone)
        self._served = served
        await served.start(_end_process)
        return served

    async def check_health(self) -> None:
        """
        Raises:
            EngineDeadError: Serve has to replace this replica.
        """
        if self._served is not None:
            self._served.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {} if self._served is None else await self._served.load()

    async def __del__(self) -> None:
        """Serve has drained: no requests are left, or their time is over."""
        if self._served is not None:
            await self._served.stop(0.0)
        if self._hosts is not None:
            self._hosts.stop()


def _end_process(reason: str) -> None:
    logger.error("The engine is dead, and this replica ends, for Serve to start another one: %s", reason)
    sys.stderr.flush()
    os._exit(1)
