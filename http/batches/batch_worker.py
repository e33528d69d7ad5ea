"""BatchWorker: runs all batches that have not ended, each in a task of its own."""

import asyncio
import itertools
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence, Set

from palladio.http.batches.batch import Status
from palladio.http.batches.batch_claims import BatchClaims
from palladio.http.batches.batch_limits import BatchLimits
from palladio.http.batches.batch_run import POLL, BatchRun
from palladio.http.batches.batch_store import BatchStore
from palladio.http.batches.line_runner import LineSlots
from palladio.http.files.file_store import FileStore
from palladio.http.generation.context import Context
from palladio.http.storage.records.disk_errors import is_of_disk
from palladio.http.storage.records.news import News
from palladio.http.storage.records.retries import Retries
from palladio.http.wire.errors import HttpError
from palladio.runtime.interface.errors import ConfigError

MAX_VALIDATING, MAX_ANSWERING = 2, 8  # batches at a time

_EXPIRE_INTERVAL = 60.0  # seconds between looks for files whose time has passed

logger = logging.getLogger(__name__)


class BatchWorker:
    """Begun by `start`, in the event loop that then has it; ended by `stop`.

    Args:
        now: seconds since the epoch.
    """

    def __init__(
        self, context: Context, files: FileStore, store: BatchStore, now: Callable[[], float] | None = None
    ) -> None:
        self._context = context
        self._files = files
        self._store = store
        self._database = context.storage.database
        self._claims = BatchClaims(self._database)
        self._now = now or self._database.now
        self._news = News(self._database)
        self._shared = BatchLimits(
            LineSlots(context), asyncio.Semaphore(MAX_VALIDATING), asyncio.Semaphore(MAX_ANSWERING), self._news
        )
        self._cancelling: set[str] = set()  # running batches whose run knows of the cancel
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}  # the last one runs, those before it are ending
        self._keepers: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()
        self._is_started = self._is_stopped = False

    async def start(self) -> None:
        """Takes up the batches that the last server left, and goes on to look for those of others. A second call does
        nothing."""
        async with self._starting:
            if self._is_started:
                return
            if self._files.sweep_interval is None:
                await self._files.remove_leftovers()
            live = await self._store.live()
            self._is_started = True
            if live:
                logger.info("Resuming %d unfinished batches", len(live))
            self._take_up(live)
            if not self._is_stopped:
                self._keepers.append(asyncio.create_task(self._keep()))
                if self._database.is_shared:
                    self._news.listen()
                    self._keepers.append(asyncio.create_task(self._watch()))

    def run(self, batch_id: str, *, is_cancelling: bool = False) -> None:
        """Runs a batch from the state that the store has, and drops what is under way for it. After `stop`, the next
        server does it."""
        if self._is_stopped:
            return
        if is_cancelling:
            self._cancelling.add(batch_id)
        tasks = self._tasks.setdefault(batch_id, [])
        if tasks:
            tasks[-1].cancel()
        # It waits for all of them: the last may have been cancelled while it waited for the others.
        task = asyncio.create_task(self._drive(batch_id, tuple(tasks)))
        tasks.append(task)
        self._context.observer.metrics.note_batches(len(self._tasks))
        task.add_done_callback(lambda done: self._forget(batch_id, done))

    async def stop(self) -> None:
        """Drops what is under way; lines that are with the engine are aborted, and run again later."""
        self._is_stopped = True
        await self._let_go(self._keepers)

    async def _let_go(self, keepers: Sequence[asyncio.Task[None]] = ()) -> None:
        """Drops what is under way, and leaves it to other servers."""
        tasks = [*itertools.chain.from_iterable(self._tasks.values()), *keepers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._database.is_shared:
            return
        try:
            await self._claims.release()
        except (OSError, sqlite3.Error, HttpError) as error:  # they are free when the lease ends
            logger.error("Claimed lines could not be released: %s", error)

    def _take_up(self, live: Mapping[str, Status]) -> None:
        for batch_id, status in live.items():
            is_cancelling = status == "cancelling"
            if batch_id not in self._tasks or (is_cancelling and batch_id not in self._cancelling):
                self.run(batch_id, is_cancelling=is_cancelling)

    def _drop_ended(self, at_lines: Set[str], live: Set[str]) -> None:
        """Stop lines of batches that another server has cancelled and ended before this one looked.

        Args:
            at_lines: batches that had lines here before the look that found `live`.
        """
        for batch_id in (at_lines & self._shared.at_lines) - live - self._cancelling:
            self.run(batch_id, is_cancelling=True)

    async def _watch(self) -> None:
        """Runs what other servers were given, too; with an engine that is dead, nothing."""
        while True:
            await self._news.wait(POLL)
            try:
                if self._context.engine.state != "dead":
                    at_lines = frozenset(self._shared.at_lines)
                    live = await self._store.live()
                    self._take_up(live)
                    self._drop_ended(at_lines, live.keys())
                elif self._tasks:
                    await self._let_go()
            except (OSError, sqlite3.Error, HttpError) as error:
                if not self._database.is_away:  # the log has that, once
                    trace = None if is_of_disk(error) else error
                    logger.error("Cannot look for batches: %s", error, exc_info=trace)

    def _forget(self, batch_id: str, task: asyncio.Task[None]) -> None:
        tasks = self._tasks[batch_id]
        tasks.remove(task)
        if not tasks:
            del self._tasks[batch_id]
            self._cancelling.discard(batch_id)
            self._context.observer.metrics.note_batches(len(self._tasks))

    async def _drive(self, batch_id: str, before: Sequence[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
        task = asyncio.current_task()
        assert task is not None
        run = BatchRun(self._context, self._files, self._store, self._claims, self._shared, self._now, batch_id)
        retries = Retries(self._database, self._news)
        while True:
            retries.begin()
            try:
                await run.run()
                return
            except Exception as error:
                if self._is_stopped or self._tasks[batch_id][-1] is not task:
                    return  # an error on the way out has taken the place of the CancelledError
                while task.cancelling():  # Before Python 3.13 a TaskGroup that fails while it ends leaves one behind,
                    task.uncancel()  # and the next one would raise CancelledError for its errors.
                # A full disk needs no traceback in the log.
                trace = None if is_of_disk(error) else error
                cause = _first(error)
                message = "Batch %s stopped and is retried %s: %s"
                logger.error(message, batch_id, retries.failed(cause), cause, exc_info=trace)
            await retries.wait()

    async def _keep(self) -> None:
        interval, last_sweep = self._files.sweep_interval, -math.inf
        while True:
            try:
                await self._files.expire()
                if interval is not None and time.monotonic() - last_sweep >= interval:
                    last_sweep = time.monotonic()
                    await self._files.remove_leftovers()
            except (OSError, sqlite3.Error, HttpError, ConfigError) as error:
                trace = None if is_of_disk(error) or isinstance(error, ConfigError) else error
                logger.error("Cannot remove expired files, or contents without a file: %s", error, exc_info=trace)
            await asyncio.sleep(_EXPIRE_INTERVAL)


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error
