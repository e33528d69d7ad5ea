"""Retries: what failed while the database was away goes on when it is back, whenever the attempt began."""

import asyncio
import types
from collections.abc import Callable
from typing import Any

import pytest

from palladio.http.storage.records import retries
from palladio.http.storage.records.news import News
from palladio.http.storage.records.retries import Retries
from palladio.http.wire.errors import ErrorBody, HttpError

AWAY = HttpError(ErrorBody(503, "", code="database_unavailable"))
FULL = HttpError(ErrorBody(507, "", code="storage_full"))


class Database:
    """Attributes: wakers: of who has subscribed."""

    def __init__(self) -> None:
        self.is_away = False
        self.wakers: list[Callable[[], None]] = []

    def subscribe(self, wake: Callable[[], None]) -> None:
        self.wakers.append(wake)

    def come_back(self) -> None:
        self.is_away = False
        for wake in self.wakers:
            wake()


@pytest.fixture(autouse=True)
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here waits for the end of one."""
    for name in ("FIRST_PAUSE", "MAX_PAUSE", "LOOK"):
        monkeypatch.setattr(retries, name, 600.0)


def made(clock: Callable[[], float] = lambda: 0.0) -> tuple[Database, Retries]:
    database: Any = Database()
    return database, Retries(database, News(database), clock)


async def test_a_database_that_comes_back_ends_the_wait() -> None:
    database, attempts = made()
    database.is_away = True
    assert attempts.failed(AWAY) == "once the database is back"
    waiting = asyncio.create_task(attempts.wait())
    await asyncio.sleep(0.01)
    database.wakers[0]()  # news of something else
    await asyncio.sleep(0.01)
    assert not waiting.done()
    database.come_back()
    await asyncio.wait_for(waiting, 20)


async def test_a_database_that_came_back_during_the_attempt_is_tried_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retries, "AWAY_PAUSE", 0.01)
    _, attempts = made()
    assert attempts.failed(AWAY) == "in 0 s"
    await asyncio.wait_for(attempts.wait(), 20)


async def test_pauses_grow_and_begin_anew_after_an_attempt_that_took_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    # Not asyncio.sleep itself: other tests of this process may have servers that wait by it.
    monkeypatch.setattr(retries, "asyncio", types.SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(retries, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(retries, "MAX_PAUSE", 60.0)
    now = 0.0
    _, attempts = made(lambda: now)
    for error, lasts in ((FULL, 0), (FULL, 1), (FULL, 4), (FULL, 8.5), *((FULL, 0),) * 6, (AWAY, 0)):
        attempts.begin()
        now += lasts
        attempts.failed(error)
        await attempts.wait()
    assert slept == [1, 2, 4, 1, 2, 4, 8, 16, 32, 60, 5]
