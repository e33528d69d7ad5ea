"""News: waits for what other servers, or other parts of this one, have done to the database."""

import asyncio
import contextlib

from palladio.http.storage.records.database import Database


class News:
    """Begun by `listen`, in the event loop that then has it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._came = asyncio.Event()
        self._is_listening = False

    def listen(self) -> None:
        """A second call does nothing."""
        if self._is_listening:
            return
        self._is_listening = True
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before the database
                loop.call_soon_threadsafe(self._wake)

        self._database.subscribe(wake)

    async def wait(self, seconds: float) -> None:
        """For news, and no longer than that: some may be missed."""
        came = self._came
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await came.wait()

    def _wake(self) -> None:
        self._came.set()
        self._came = asyncio.Event()
