"""Several front processes before one engine (--api-server-count): their parent. It serves no requests.

It has the port, the engine and the storage's lock, and starts again what ends: a front, which loses its own connections
alone, and the engine, as a single front does. It tells the fronts how the engine is and which of them leads, and
carries their questions to each other.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import logging.config
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Final

import msgspec
import uvloop

from palladio.front_child import FrontChild, ask_each
from palladio.front_process import ABORT_ALL, EVERY, TALLY, FrontRequest
from palladio.front_tally import Tally
from palladio.http.app import open_storage
from palladio.http.fronts.peers import METRICS
from palladio.http.listening import FIRED_UP, FLUSH_TIMEOUT, Stop, listen, log_address
from palladio.http.observability.front_counts import ended_counts
from palladio.http.security.connection_limits import COUNTS_BYTES
from palladio.http.security.tls import make_tls_context
from palladio.http.settings.log_config import logging_config
from palladio.runtime.front.engine_owner import EngineOwner
from palladio.runtime.front.front_engine import MODEL_CALL
from palladio.runtime.front.supervisor import RestartBudget
from palladio.runtime.interface.errors import EngineDeadError, OverloadedError
from palladio.runtime.interface.front_number import PARENT
from palladio.runtime.process.channel import Ask
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.runtime.process.shared_state import ModelCall
from palladio.server_args import ServerArgs

MAX_RESTARTS: Final = 10  # of fronts within an hour, for each that is wanted
_SLACK: Final = 5.0  # seconds that a front gets beyond the time in which its work should have ended
_PAUSE: Final = 0.2  # seconds before a front takes the place of one that ended

logger = logging.getLogger(__name__)


def serve_fronts(args: ServerArgs, transport: ProcessTransport, environment: Mapping[str, str]) -> int:
    """Runs until SIGTERM or SIGINT; returns the process's exit status, 0.

    Args:
        transport: with `has_fronts`.
        environment: of the fronts.

    Raises:
        ConfigError: a flag or the checkpoint is wrong.
        EngineDeadError: the engine could not start for another reason, or fronts end too often.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(args, transport, environment))
    return 0


async def _serve(args: ServerArgs, transport: ProcessTransport, environment: Mapping[str, str]) -> None:
    http, observability = args.http, args.observability
    make_tls_context(http)  # what is wrong with it is told before anything starts
    stop = Stop()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen(http))
        shared = http
        if http.file_storage_path is None or http.database_url is None:  # else its database looks after the folder
            storage = stack.enter_context(contextlib.closing(open_storage(http)))  # it has its tables before any front
            shared = dataclasses.replace(http, file_storage_path=str(storage.folder), database_url=None)
        logging.config.dictConfig(logging_config(http, observability.log_format))
        log_address(listener, http)
        counts = stack.enter_context(tempfile.TemporaryFile())
        counts.truncate(COUNTS_BYTES * http.api_server_count)
        request = FrontRequest(
            listener=listener.fileno(),
            counts=counts.fileno(),
            config=args.engine_config(),
            server=uuid.uuid4().hex,
            http=shared,
            observability=observability,
        )
        with stop.on_signals():
            await Parent(request, transport, environment).run(stop)


class Parent:
    """
    Args:
        request: what every front is told; its number and its slot are its own.
    """

    def __init__(self, request: FrontRequest, transport: ProcessTransport, environment: Mapping[str, str]) -> None:
        self._request = request
        self._environment = environment
        self._count = request.http.api_server_count
        self._engine = EngineOwner(request.config, transport, self._abort_all, self._tell_state)
        self._fronts: dict[int, FrontChild] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._budget = RestartBudget(MAX_RESTARTS * self._count)
        self._tally = Tally(METRICS, self._fronts, ended_counts)
        self._leader = 0
        self._past_leaders: list[int] = []
        self._is_open = False
        self._is_stopping = False
        self._are_ready = asyncio.Event()
        self._are_gone = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, stop: Stop) -> None:
        """Until it is to stop.

        Raises:
            PalladioError: the engine cannot start, or the fronts cannot.
        """
        for slot in range(self._count):
            await self._start_front(slot)
        await self._engine.start()
        first = asyncio.create_task(stop.wait(1))
        ready = asyncio.create_task(self._say_ready())
        drain_timeout = 0.0
        try:
            await asyncio.wait((first, ready, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                if ready.done():
                    ready.result()
                await asyncio.wait((first, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                self._failure.result()
            drain_timeout = self._request.http.drain_timeout
        finally:
            first.cancel()
            ready.cancel()
            self._failure.cancel()
            await self._end(drain_timeout, stop)

    async def answers(self, asker: FrontChild, ask: Ask) -> AsyncIterator[bytes]:
        """What a front asks the parent, or another front, or all others."""
        if ask.to == PARENT and ask.kind == MODEL_CALL:
            yield await self._engine.steer(msgspec.msgpack.decode(ask.body, type=ModelCall))
        elif ask.to == EVERY:
            others = [front for front in self._fronts.values() if front is not asker and front.is_serving]
            yield msgspec.msgpack.encode(await ask_each(others, ask.kind, ask.body))
        elif ask.to == TALLY:
            yield msgspec.msgpack.encode(await self._tally.others(asker, ask.body))
        elif ask.to in self._fronts:
            async for part in self._fronts[ask.to].ask(ask.kind, ask.body):
                yield part
        else:
            raise OverloadedError("the front process that does this has ended; try again soon")

    def changed(self) -> None:
        """A front has got further, or has ended."""
        serving = [number for number, front in self._fronts.items() if front.is_serving]
        if self._leader not in serving:
            self._past_leaders += [self._leader] if self._leader else []
            self._leader = min(serving, default=0)  # the first that serves, and then the longest there
            if self._leader:
                logger.info("Front process %d leads (pid %d)", self._leader, self._fronts[self._leader].pid)
        fronts = self._fronts.values()
        self._is_open = self._is_open or sum(front.is_loaded for front in fronts) == self._count
        if sum(front.is_ready for front in fronts) == self._count:
            self._are_ready.set()
        if not self._fronts:
            self._are_gone.set()
        self._tell_state()

    async def _start_front(self, slot: int) -> None:
        number = next(self._numbers)
        is_late = number > self._count
        request = msgspec.structs.replace(self._request, number=number, slot=slot, is_replacement=is_late)
        front = await FrontChild.start(request, self, self._environment)
        self._fronts[request.number] = front
        self._show(front)
        task = asyncio.create_task(self._look_after(front))
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    async def _look_after(self, front: FrontChild) -> None:
        """Until it has ended and, if need be, another one has its place."""
        how = await front.run()
        del self._fronts[front.number]
        self._engine.end_front(front.number)
        os.pwrite(self._request.counts, bytes(COUNTS_BYTES), COUNTS_BYTES * front.slot)  # its connections have ended
        self._tally.end(front)
        self.changed()
        if self._is_stopping:
            return
        if front.failure is not None and not self._are_ready.is_set():
            self._fail(front.failure)
        elif self._engine.state == "dead":
            if not self._fronts:
                self._fail(EngineDeadError(self._engine.failure or "the engine has stopped"))
        elif not self._budget.take():
            self._fail(EngineDeadError(f"front processes ended {self._budget.limit + 1} times within an hour: {how}"))
        else:
            message = "Front process %d ended (%s): its requests are aborted, and another one is started"
            logger.error(message, front.number, front.failure or how)
            await asyncio.sleep(_PAUSE)
            if not self._is_stopping:
                await self._start_front(front.slot)

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)  # such as that there can be no further process

    def _fail(self, failure: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(failure)

    async def _say_ready(self) -> None:
        await self._engine.wait_ready()
        await self._are_ready.wait()
        logger.info(FIRED_UP)

    def _tell_state(self) -> None:
        for front in self._fronts.values():
            self._show(front)

    def _show(self, front: FrontChild) -> None:
        state = msgspec.structs.replace(self._engine.shared, is_open=self._is_open, leader=self._leader)
        front.show(msgspec.structs.replace(state, past_leaders=self._past_leaders))

    async def _abort_all(self) -> int:
        answers = await ask_each(self._fronts.values(), ABORT_ALL)
        return sum(msgspec.msgpack.decode(answer, type=int) for answer in answers)

    async def _end(self, drain_timeout: float, stop: Stop) -> None:
        """Has all fronts drain, and then ends the engine. A second signal cuts it short."""
        self._is_stopping = True
        self.changed()  # there may be none any more
        gone = asyncio.create_task(self._are_gone.wait())
        second = asyncio.create_task(stop.wait(2))
        for seconds in (drain_timeout + FLUSH_TIMEOUT + _SLACK, FLUSH_TIMEOUT + _SLACK):
            for front in self._fronts.values():
                front.stop()
            waits = [wait for wait in (gone, second) if not wait.done()]
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                break
        for front in self._fronts.values():
            front.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in (second, gone):
            task.cancel()
        await self._engine.shutdown(0.0)
