"""Responses in the background: they are made whether or not anybody waits for them."""

import asyncio
import dataclasses
import logging
import sqlite3

from palladio.http.chat.chat_run import ChatRun
from palladio.http.responses.event_log import EventLog
from palladio.http.responses.response_events import ResponseEvents, unmade_events
from palladio.http.responses.response_items import Response
from palladio.http.responses.response_store import ResponseStore, StoredResponse
from palladio.http.security.callers import SERVER
from palladio.http.storage.records.database import Database
from palladio.http.storage.records.disk_errors import disk_errors
from palladio.http.storage.records.news import News
from palladio.http.storage.records.retries import Retries
from palladio.http.wire.errors import HttpError, any_error
from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.interface.errors import OverloadedError

logger = logging.getLogger(__name__)

_UNENDED = ("queued", "in_progress")
_STORE_WAIT = 1.0  # seconds, at most, that clients wait until the end of a response is stored


@dataclasses.dataclass(slots=True)
class RunningResponse:
    """One that has not ended, or that the disk has not taken yet.

    Attributes:
        events: its writer, which has it as far as it is.
        log: what came so far.
    """

    events: ResponseEvents
    log: EventLog
    task: asyncio.Task[None]


class BackgroundResponses:
    """Responses that this server makes in the background. Each is in the store from its beginning, with its request: if
    the server ends first, another one can make it again.
    """

    def __init__(self, engine: EngineClient, store: ResponseStore, database: Database) -> None:
        """Make the responses' runner.

        Args:
            database: the store's.
        """
        self._engine = engine
        self._store = store
        self._database = database
        self._news = News(database)
        self._running: dict[str, RunningResponse] = {}
        self._is_stopped = False

    def start(self, run: ChatRun, events: ResponseEvents, *, waits: bool = False) -> RunningResponse:
        """
        Args:
            events: of a response that is in the store.
            waits: while the engine has no room for it; else it fails.
        """
        log = EventLog()
        log.add(events.queue())
        return self._keep(
            run.request.request_id, events, log, asyncio.create_task(self._run(run, events, log, waits=waits))
        )

    def stop(self) -> None:
        """The server ends: what it does not finish any more is left to the next one."""
        self._is_stopped = True

    def find(self, response_id: str) -> RunningResponse | None:
        return self._running.get(response_id)

    @property
    def unended(self) -> list[str]:
        """The ids of the responses that still run here."""
        running = self._running.items()
        return [name for name, one in running if one.events.response["status"] in _UNENDED]

    async def cancel(self, response_id: str) -> Response:
        """Ends one early, whether it runs or is only in the store, and returns it; one that has ended stays as it is.

        Raises:
            HttpError: there is none; or the disk is full.
        """
        running = self._running.get(response_id)
        if running is None:
            return await self._cancel_stored(response_id)
        response = running.events.response
        if response["status"] in _UNENDED:
            await _stop(running)
        if response["status"] in _UNENDED:  # no other call has cancelled it meanwhile
            running.events.end("cancelled")
            storing = asyncio.create_task(self._finish(running.events, running.log))
            self._keep(response_id, running.events, running.log, storing)
            await asyncio.wait((storing,), timeout=_STORE_WAIT)
        return response

    async def shown(self, running: RunningResponse) -> Response:
        """As it is; one that has just ended is in the store by now, as a rule: others may go on from it."""
        if running.events.response["status"] not in _UNENDED:
            await asyncio.wait((running.task,), timeout=_STORE_WAIT)
        return running.events.response

    async def drop(self, response_id: str) -> None:
        """End a response that was deleted."""
        running = self._running.get(response_id)
        if running is not None:
            await _stop(running)
            running.log.close()

    def _keep(
        self, response_id: str, events: ResponseEvents, log: EventLog, task: asyncio.Task[None]
    ) -> RunningResponse:
        """Until the task is done."""
        running = self._running[response_id] = RunningResponse(events, log, task)
        task.add_done_callback(lambda _: self._running.pop(response_id, None))
        return running

    async def _cancel_stored(self, response_id: str) -> Response:
        stored = await self._store.get(response_id, SERVER)
        if stored.request is None:
            return stored.response
        response = stored.response | {"status": "cancelled"}
        with disk_errors():
            await self._store.finish(StoredResponse(response, None, unmade_events(response)))
        return response

    async def _run(self, run: ChatRun, events: ResponseEvents, log: EventLog, *, waits: bool) -> None:
        try:
            await self._feed(run, events, log, waits=waits)
        except Exception as exc:  # noqa: BLE001 (a request's border: its client has an answer)
            log.add(events.fail(any_error(exc, f"response {run.request.request_id}")))
        if self._ends_with_server and events.response["status"] in ("failed", "cancelled"):
            log.close()  # the request stays in the store, to be made again
        else:
            await self._finish(events, log)

    @property
    def _ends_with_server(self) -> bool:
        """What ends now may have ended because the server does. An engine that has died by itself is no such reason:
        the response may be what it died of, and would be the next one's end as well."""
        return self._is_stopped or self._engine.state == "draining"

    async def _feed(self, run: ChatRun, events: ResponseEvents, log: EventLog, *, waits: bool) -> None:
        while True:
            try:
                return await run.feed(lambda output: log.add(events.write(output)))
            except OverloadedError as error:
                if not waits or events.response["status"] != "queued" or self._ends_with_server:
                    raise
                await asyncio.sleep(error.retry_after)
            run = run.renewed()

    async def _finish(self, events: ResponseEvents, log: EventLog) -> None:
        """Store the end of a response, however long that takes. Clients that follow it wait for _STORE_WAIT at most:
        they usually find it stored when they see its end."""
        last = b"" if events.response["status"] == "failed" else events.close()
        storing = asyncio.create_task(self._store_end(StoredResponse(events.response, None, log.content + last)))
        try:
            await asyncio.wait((storing,), timeout=_STORE_WAIT)
            log.add(last)
            log.close()
            await storing
        finally:
            log.close()
            storing.cancel()

    async def _store_end(self, stored: StoredResponse) -> None:
        retries = Retries(self._database, self._news)
        while True:
            retries.begin()
            try:
                await self._store.finish(stored)
                return
            except (OSError, sqlite3.Error, HttpError) as error:
                message = "response %s could not be stored, which is tried again %s: %s"
                logger.error(message, stored.id, retries.failed(error), error)
            await retries.wait()


async def _stop(running: RunningResponse) -> None:
    running.task.cancel()
    await asyncio.wait((running.task,))
