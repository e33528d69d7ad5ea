"""ResultBuffer: collects the results of lines that end at about the same time, for one transaction."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from palladio.http.batches.batch_records import LineResult
from palladio.http.batches.batch_store import BatchStore

INTERVAL = 0.03  # seconds that a result waits for others
MAX_WAITING = 1024  # results; more than these wait for the disk


class ResultBuffer:
    """Collects results of one batch and stores them together."""

    def __init__(self, store: BatchStore, batch_id: str) -> None:
        self._store = store
        self._batch_id = batch_id
        self._results: list[LineResult] = []
        self._finished: set[int] = set()
        self._added = asyncio.Event()
        self._kept = asyncio.Event()
        self._flushing = asyncio.Lock()

    def add(self, result: LineResult) -> None:
        self._results.append(result)
        self._added.set()

    def finish(self, first_line: int) -> None:
        """The results of all lines of this range have been added."""
        self._finished.add(first_line)
        self._added.set()

    async def room(self) -> None:
        """Waits while results come faster than the disk takes them."""
        while len(self._results) >= MAX_WAITING:
            self._kept.clear()
            await self._kept.wait()

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None, None]:
        """Keeps what is added within; at the end, all of it, even if it ends early.

        Raises:
            ExceptionGroup: of sqlite3.Error, such as a full disk.
        """
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(self._write())
            try:
                yield
            finally:
                await self._flush()
                writer.cancel()

    async def _write(self) -> None:
        while True:
            await self._added.wait()
            await asyncio.sleep(INTERVAL)
            self._added.clear()
            await self._flush()

    async def _flush(self) -> None:
        """Store all results that were added before this call, those of a write that already runs as well."""
        async with self._flushing:
            results, self._results = self._results, []
            finished, self._finished = self._finished, set()
            if results or finished:
                await self._store.add_results(self._batch_id, results, finished)
            self._kept.set()
