"""Database: what a transaction promises to its callers."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from palladio.http.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "a.db", "CREATE TABLE IF NOT EXISTS t (n INTEGER)")
    yield opened
    opened.close()


def add(number: int) -> object:
    return lambda connection: connection.execute("INSERT INTO t VALUES (?)", (number,))


async def numbers(database: Database) -> list[int]:
    return await database.run(lambda connection: [row["n"] for row in connection.execute("SELECT n FROM t")])


async def test_what_waits_for_its_turn_is_done_though_its_caller_is_cancelled(database: Database) -> None:
    busy = threading.Event()
    first = asyncio.ensure_future(database.run(lambda _: busy.wait()))
    second = asyncio.ensure_future(database.run(add(5)))
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.wait([second])
    assert second.cancelled()
    busy.set()
    await first
    assert await numbers(database) == [5]


async def test_an_error_takes_back_all_of_a_transaction(database: Database) -> None:
    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (1)")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await database.run(half)
    assert await numbers(database) == []
