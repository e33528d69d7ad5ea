"""Responses in the background that a server before this one, or another one that has ended, left unfinished: they are
made again."""

import asyncio
import collections
import logging
import sqlite3
from collections.abc import Iterable

from palladio.http.generation.context import Call, Context
from palladio.http.responses.background_responses import BackgroundResponses
from palladio.http.responses.protocol_responses import ResponseRequest
from palladio.http.responses.response_events import unmade_events
from palladio.http.responses.response_object import response_error
from palladio.http.responses.response_run import ROUTE, ResponseRun
from palladio.http.responses.response_store import ResponseStore, StoredResponse
from palladio.http.storage.records.disk_errors import is_of_disk
from palladio.http.storage.records.news import News
from palladio.http.wire.errors import ErrorBody, HttpError, any_error
from palladio.http.wire.fields import WARNINGS
from palladio.runtime.interface.errors import OverloadedError

MAX_AT_ONCE = 8  # the others wait, so that new requests find room
MAX_ATTEMPTS = 5  # of servers to make one again: it may be what they end of

POLL = 5.0  # seconds between looks at what other servers have done, if no news come
_POLL = 0.2  # seconds between looks at whether the engine is ready
_DISK_PAUSE = 5.0  # seconds before the next try if the disk fails

logger = logging.getLogger(__name__)


class UnfinishedResponses:
    """Begun by `start`, in the event loop that then has it; ended by `stop`."""

    def __init__(self, context: Context, store: ResponseStore, background: BackgroundResponses) -> None:
        self._context = context
        self._store = store
        self._background = background
        self._waiting: collections.deque[str] = collections.deque()
        self._wanted: set[str] = set()  # responses that do not run yet and were not withdrawn
        self._tasks: list[asyncio.Task[None]] = []
        self._news = News(context.storage.database)
        self._starting = asyncio.Lock()
        self._is_started = self._is_stopped = False

    async def start(self) -> None:
        """Finds what the last server left, and goes on to look for what others leave; it is made again when the engine
        is ready. A second call does nothing."""
        async with self._starting:
            if self._is_started:
                return
            found = await self._store.unfinished()
            self._is_started = True
            if not self._is_stopped:
                self._take_up(found)
                if self._context.storage.database.is_shared:
                    self._news.listen()
                    self._tasks.append(asyncio.create_task(self._watch()))

    def _take_up(self, found: Iterable[str]) -> None:
        new = [name for name in found if name not in self._wanted and self._background.find(name) is None]
        if new:
            logger.info("Running %d unfinished responses again", len(new))
            self._wanted.update(new)
            self._waiting.extend(new)
            self._tasks = [task for task in self._tasks if not task.done()]
            workers = range(min(MAX_AT_ONCE, len(new)))
            self._tasks += [asyncio.create_task(self._work()) for _ in workers]

    async def _watch(self) -> None:
        """Takes up what servers leave that end, and drops what others have cancelled or deleted. With an engine that is
        dead, others do it."""
        while True:
            await self._news.wait(POLL)
            try:
                if self._context.engine.state != "dead":
                    self._take_up(await self._store.unfinished())
                for response_id in await self._store.ended(self._background.unended):
                    await self._background.drop(response_id)
            except (OSError, sqlite3.Error, HttpError) as error:
                if not self._context.storage.database.is_away:  # the log has that, once
                    trace = None if is_of_disk(error) else error
                    logger.error("Cannot look for unfinished responses: %s", error, exc_info=trace)

    async def stop(self) -> None:
        """Begin no further responses. Running ones may go on as long as the engine does."""
        self._is_stopped = True
        self._background.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def withdraw(self, response_id: str) -> None:
        """This one shall not be begun any more."""
        self._wanted.discard(response_id)

    async def _work(self) -> None:
        while self._waiting:
            response_id = self._waiting.popleft()
            while response_id in self._wanted:
                await self._wait_ready()
                try:
                    await self._make_again(response_id)
                except OverloadedError as error:  # the engine is not ready any more
                    await asyncio.sleep(error.retry_after)
                except (OSError, sqlite3.Error, HttpError) as error:
                    logger.error("Cannot run response %s again yet: %s", response_id, error)
                    await asyncio.sleep(_DISK_PAUSE)

    async def _wait_ready(self) -> None:
        while self._context.engine.state != "ready":
            await asyncio.sleep(_POLL)

    async def _make_again(self, response_id: str) -> None:
        """Returns when it has ended.

        Raises:
            OverloadedError: the engine takes none.
            OSError, sqlite3.Error, HttpError: the database or its disk fails.
        """
        stored = await self._store.take_up(response_id)
        if stored is None:  # it has been deleted, or made way for newer ones
            self.withdraw(response_id)
            return
        again = await self._prepare(stored)
        if response_id not in self._wanted:
            return
        if isinstance(again, ErrorBody):
            logger.warning("Cannot run response %s again: %s", response_id, again.message)
            failed = stored.response | {"status": "failed", "error": response_error(again)}
            await self._store.finish(StoredResponse(failed, None, unmade_events(failed)))
            self.withdraw(response_id)
            return
        kept = {name: stored.response[name] for name in ("created_at", WARNINGS) if name in stored.response}
        again.events.keep(kept)
        self.withdraw(response_id)
        running = self._background.start(again.run, again.events, waits=True)
        await asyncio.wait((running.task,))

    async def _prepare(self, stored: StoredResponse) -> ResponseRun | ErrorBody:
        """Or why it cannot be made.

        Raises:
            OverloadedError, OSError, sqlite3.Error, HttpError: not for now.
        """
        if stored.attempts > MAX_ATTEMPTS:
            message = f"{stored.attempts} servers stopped before they completed this response"
            return ErrorBody(500, message)
        caller = self._context.callers.of_owner(stored.owner)
        call = Call(stored.id, ROUTE, stored.id, caller, warnings=self._context.no_warnings)
        try:
            body = ResponseRequest.parse(stored.request)
            return await ResponseRun.prepare(self._context, call, body, self._store, stored.id)
        except OverloadedError:
            raise
        except Exception as error:
            if is_of_disk(error):
                raise
            return any_error(error, f"response {stored.id}")
