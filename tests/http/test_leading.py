"""What a front process does once it leads, while its database may be away."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from palladio.http import server
from palladio.http.fronts.peers import Alone
from palladio.http.wire.errors import ErrorBody, HttpError


class Heir(Alone):
    is_alone = False

    async def lead(self) -> list[str]:
        return ["host-1"]


class Database:
    """Away for the first calls."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.signed_off: list[str] = []

    async def sign_off(self, servers: list[str]) -> None:
        self.touch()
        self.signed_off += servers

    def touch(self) -> None:
        self.away -= 1
        if self.away >= 0:
            raise HttpError(ErrorBody(503, "away", code="database_unavailable"))


class Worker:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.found: list[list[str]] = []

    async def start(self) -> None:
        self.database.touch()
        self.found.append(list(self.database.signed_off))

    async def stop(self) -> None:
        pass


@pytest.mark.parametrize("away", [0, 3])
async def test_an_heir_signs_the_dead_off_before_it_looks_for_what_they_left(
    away: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_LEAD_PAUSE", 0.001)
    database = Database(away)
    worker, storage = Worker(database), SimpleNamespace(database=database)
    stored: Any = storage
    await asyncio.wait_for(server._lead(Heir(), stored, [worker]), 20)
    assert worker.found == [["host-1"]]
    assert len([text for text in caplog.messages if "leads, and cannot begin yet" in text]) == away


async def test_the_only_front_does_not_start_without_its_database() -> None:
    database = Database(1)
    stored: Any = SimpleNamespace(database=database)
    with pytest.raises(HttpError):
        await server._lead(Alone(), stored, [Worker(database)])
