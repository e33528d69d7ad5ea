"""Retries: when something that the database or the disk did not take is tried again."""

import asyncio
import time
from collections.abc import Callable

from palladio.http.storage.records.database import Database
from palladio.http.storage.records.disk_errors import code_of
from palladio.http.storage.records.news import News

FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0  # seconds
AWAY_PAUSE = 5.0  # seconds, the longest after a database that could not be reached, but can be by now
LOOK = 5.0  # seconds between looks at whether the database is back, if no news come


class Retries:
    """Pauses of a task that is retried. It calls `begin` before each attempt, and `failed` and `wait` after a failure.

    Args:
        clock: seconds.
    """

    def __init__(self, database: Database, news: News, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._news = news
        self._clock = clock
        self._begun = clock()
        self._pause = FIRST_PAUSE
        self._longest = MAX_PAUSE

    def begin(self) -> None:
        self._begun = self._clock()

    def failed(self, error: Exception) -> str:
        """Returns when it is tried again, for the log."""
        if self._clock() - self._begun > self._pause:  # it got on before it failed
            self._pause = FIRST_PAUSE
        self._longest = AWAY_PAUSE if code_of(error) == "database_unavailable" else MAX_PAUSE
        if self._is_away():
            return "once the database is back"
        return f"in {min(self._pause, self._longest):.0f} s"

    async def wait(self) -> None:
        if not self._is_away():
            await asyncio.sleep(min(self._pause, self._longest))
            self._pause = min(2 * self._pause, MAX_PAUSE)
            return
        self._news.listen()
        while self._is_away():  # news come when it is back: none between this check and the wait are missed
            await self._news.wait(LOOK)
        self._pause = FIRST_PAUSE

    def _is_away(self) -> bool:
        return self._database.is_away
