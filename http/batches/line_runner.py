"""LineRunner: gets the answer to one line of a batch, however often the engine has to be asked."""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from palladio.http.batches.batch import Batch
from palladio.http.batches.batch_records import Line, LineResult, answered, refused
from palladio.http.batches.batch_store import BatchStore
from palladio.http.generation.context import Call, Context, Endpoint
from palladio.http.storage.records.disk_errors import is_of_disk
from palladio.http.wire.errors import ErrorBody, any_error
from palladio.runtime.interface.errors import (
    EngineDeadError,
    EngineNotReadyError,
    OverloadedError,
    RequestAbortedError,
)

MAX_CRASHES = 3  # of the engine, with one line; the last time, no other line that it failed with so often was there

_POLL = 0.2  # seconds between looks at whether the engine is ready
_GRACE = 60.0  # seconds that a line has in the engine beyond its batch's time, which ends it first


class LineSlots:
    """How many lines may be with the engine, of all batches together: twice what it runs at a time, so that there is
    always a next one, and no more than half of what --max-queued-requests leaves.

    Attributes:
        suspects: held by a line that the engine has failed with before: there is one such line at a time.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._slots: asyncio.Semaphore | None = None
        self.suspects = asyncio.Lock()

    async def wait_ready(self) -> None:
        """However long that takes; an engine that has died for good is started by the next server."""
        while self._context.engine.state != "ready":
            await asyncio.sleep(_POLL)

    async def acquire(self) -> Callable[[object], None]:
        """Waits until a line may go to the engine, in the order of the calls; returns what is to be called when it is
        back, with anything."""
        await self.wait_ready()
        if self._slots is None:
            running = self._context.engine.info.max_running_requests
            limit = self._context.engine.config.scheduler.max_queued_requests
            waiting = running if limit is None else min(running, limit // 2)
            self._slots = asyncio.Semaphore(running + waiting)
        slots = self._slots
        await slots.acquire()
        return lambda _: slots.release()


@dataclasses.dataclass(frozen=True, slots=True)
class LineRunner:
    """Runs lines of one batch on the engine.

    Attributes:
        now: seconds since the epoch.
        crashes: line → how often the engine failed while it ran this line.
    """

    context: Context
    store: BatchStore
    gate: LineSlots
    batch: Batch
    endpoint: Endpoint[Any]
    now: Callable[[], float]
    crashes: dict[int, int]

    async def run(self, line: Line) -> LineResult:
        """Waits while the engine is not there, or has no room.

        Raises:
            OSError, sqlite3.OperationalError, HttpError: the answer cannot be stored, as on a full disk.
        """
        request_id = f"{self.batch.id}-req_{line.number}"
        while True:
            await self.gate.wait_ready()
            try:
                if self.crashes.get(line.number, 0) < MAX_CRASHES - 1:
                    return await self._ask(line, request_id)
                async with self.gate.suspects:
                    return await self._ask(line, request_id)
            except EngineDeadError as error:
                number = self.crashes[line.number] = await self.store.add_crash(self.batch.id, line.number)
                if number >= MAX_CRASHES:
                    return refused(line, ErrorBody(500, _blame(number, error), code="engine_dead"), request_id)
            except OverloadedError as error:  # it starts again, or its queue is full
                await asyncio.sleep(error.retry_after)
            except RequestAbortedError:  # by a shutdown
                await asyncio.sleep(_POLL)

    async def _ask(self, line: Line, request_id: str) -> LineResult:
        left = max(0.0, self.batch.expires_at - self.now())
        caller = self.context.callers.of_owner(self.batch.owner)
        path = self.endpoint.path
        call = Call(request_id, path, request_id, caller, is_background=True, timeout=left + _GRACE)
        try:
            response = await self.endpoint.run(self.context, call, line.body)
        except (EngineDeadError, EngineNotReadyError, OverloadedError, RequestAbortedError):
            raise
        except Exception as error:
            if is_of_disk(error):
                raise  # the batch waits until the disk is well again
            return refused(line, any_error(error, f"line {request_id}"), request_id)
        return answered(line, response.status_code, request_id, bytes(response.body))


def _blame(num_crashes: int, error: EngineDeadError) -> str:
    """Why a line is not run again, and what to do about it."""
    return (
        f"the engine failed {num_crashes} times while it had this line, the last time with no other line that it had "
        "failed with as often, so this line may be the cause and is not run again; look for what is unusual in it. If "
        f"the engine ended for another reason, send the line again in a new batch. The last failure: {error}"
    )
