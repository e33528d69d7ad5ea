"""Database: what a transaction promises to its callers."""

import asyncio
import contextlib
import gc
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from palladio.http.storage.records.sqlite import SqliteDatabase
from palladio.http.wire.errors import ErrorBody, HttpError


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    opened = SqliteDatabase(tmp_path / "a.db", "CREATE TABLE IF NOT EXISTS t (n INTEGER)")
    yield opened
    opened.close()


def add(number: int) -> object:
    return lambda connection: connection.execute("INSERT INTO t VALUES (?)", (number,))


async def numbers(database: SqliteDatabase) -> list[int]:
    return await database.run(lambda connection: [row["n"] for row in connection.execute("SELECT n FROM t")])


async def test_what_waits_for_its_turn_is_done_though_its_caller_is_cancelled(database: SqliteDatabase) -> None:
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


async def test_an_error_takes_back_all_of_a_transaction(database: SqliteDatabase) -> None:
    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (1)")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await database.run(half)
    assert await numbers(database) == []


def replace(path: Path) -> None:
    new = path.with_name("new.db")
    with contextlib.closing(sqlite3.connect(new)) as connection:
        connection.execute("CREATE TABLE t (n INTEGER)")
    os.replace(new, path)


@pytest.mark.parametrize("error", [HttpError(ErrorBody(503, "away")), ValueError("a defect")])
async def test_what_fails_after_its_caller_has_gone_is_told_if_it_is_a_defect(
    error: Exception, database: SqliteDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    def work(connection: object) -> None:
        go_on.wait()
        raise error

    begun = asyncio.ensure_future(database.run(work))
    await asyncio.sleep(0)
    begun.cancel()
    await asyncio.wait([begun])
    go_on.set()
    await numbers(database)
    await asyncio.sleep(0)
    gc.collect()  # asyncio tells then of errors that nobody has asked for
    expected = [] if isinstance(error, HttpError) else ["A transaction failed whose caller had gone"]
    assert [text.partition("\n")[0] for text in caplog.messages] == expected


LOSSES = {
    "deleted": lambda path: path.unlink(),
    "replaced": replace,
    "its log deleted": lambda path: path.with_name("a.db-wal").unlink(),
    "moved away": lambda path: path.rename(path.with_name("b.db")),
}


@pytest.mark.parametrize("how", LOSSES)
async def test_files_that_are_gone_are_noticed_and_nothing_is_lost(
    how: str, database: SqliteDatabase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.db"
    for number in range(3):
        await database.run(add(number))
    LOSSES[how](path)
    there = path.read_bytes() if path.exists() else None
    for _ in range(3):
        with pytest.raises(HttpError) as error:
            await database.run(add(9))
        assert (error.value.body.status, error.value.body.code) == (503, "storage_gone")
        assert str(tmp_path) not in error.value.body.message  # a client's
    with pytest.raises(HttpError, match="were deleted or replaced"):
        database.check()
    assert database.failures == {"storage_gone": 1}
    assert there == (path.read_bytes() if path.exists() else None)
    (told,) = [message for message in caplog.messages if "was deleted or replaced while the server ran" in message]
    (saved,) = tmp_path.glob("a.db.saved-*")
    assert f"what it held is in {saved}: stop the server, give that file the name a.db" in told
    assert saved.stat().st_mode & 0o777 == 0o600
    for left in tmp_path.glob("a.db*"):
        if left != saved:
            left.unlink()
    saved.rename(path)
    again = SqliteDatabase(path, "")
    assert await numbers(again) == [0, 1, 2]
    again.close()


async def test_a_folder_that_is_gone_is_told_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "storage"
    folder.mkdir()
    opened = SqliteDatabase(folder / "a.db", "CREATE TABLE t (n INTEGER)")
    shutil.rmtree(folder)
    with pytest.raises(HttpError, match="were deleted or replaced"):
        await opened.run(add(1))
    assert "what it held could not be saved" in caplog.messages[0]
    opened.close()
    assert not folder.exists()
