"""Responses in the background that a server before this one left unfinished: they are made again."""

import asyncio
import collections
import logging
import sqlite3

from palladio.http.generation.context import Context
from palladio.http.generation.generation import Call
from palladio.http.responses.background_responses import BackgroundResponses
from palladio.http.responses.protocol_responses import ResponseRequest
from palladio.http.responses.response_events import unmade_events
from palladio.http.responses.response_object import response_error
from palladio.http.responses.response_run import ROUTE, ResponseRun
from palladio.http.responses.response_store import ResponseStore, StoredResponse
from palladio.http.wire.errors import WARNINGS, ErrorBody, RequestNames, any_error
from palladio.runtime.interface.errors import OverloadedError

MAX_AT_ONCE = 8  # the others wait, so that whoever comes meanwhile finds room
MAX_ATTEMPTS = 5  # of servers to make one again: it may be what they end of

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
        self._wanted: set[str] = set()  # those that do not run yet, and have not been withdrawn
        self._tasks: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()
        self._is_started = self._is_stopped = False

    async def start(self) -> None:
        """Finds what the last server left; it is made again when the engine is ready. A second call does nothing.

        To be awaited before this server stores any: they would be taken for the last one's.
        """
        async with self._starting:
            if self._is_started:
                return
            self._waiting.extend(await self._store.unfinished())
            self._is_started = True
            self._wanted.update(self._waiting)
            if self._waiting and not self._is_stopped:
                logger.info("Running %d unfinished responses again", len(self._waiting))
                self._tasks = [asyncio.create_task(self._work()) for _ in range(MAX_AT_ONCE)]

    async def stop(self) -> None:
        """Begins no further ones. Those that run may go on as long as the engine does."""
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
                except (OSError, sqlite3.Error) as error:
                    logger.error("Cannot run response %s again yet: %s", response_id, error)
                    await asyncio.sleep(_DISK_PAUSE)

    async def _wait_ready(self) -> None:
        while self._context.engine.state != "ready":
            await asyncio.sleep(_POLL)

    async def _make_again(self, response_id: str) -> None:
        """Returns when it has ended.

        Raises:
            OverloadedError: the engine takes none.
            OSError, sqlite3.Error: the disk fails.
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
            OverloadedError, OSError, sqlite3.Error: not for now.
        """
        if stored.attempts > MAX_ATTEMPTS:
            message = f"{stored.attempts} servers stopped before they completed this response"
            return ErrorBody(500, message)
        names = RequestNames(self._context.note_warning)
        call = Call(stored.id, ROUTE, stored.id, self._context.callers.of_owner(stored.owner), names=names)
        try:
            body = ResponseRequest.parse(stored.request)
            return await ResponseRun.prepare(self._context, call, body, self._store, stored.id)
        except (OverloadedError, OSError, sqlite3.Error):
            raise
        except Exception as error:  # noqa: BLE001 (a request's border: its client has an answer)
            return any_error(error, call.names, f"response {stored.id}")
