"""PostgresqlDatabase: what its callers rely on, against a real PostgreSQL."""

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palladio.http.storage.records.database import Connection
from palladio.http.storage.records.schema import CHANGES, SCHEMA
from palladio.http.storage.storage import SharedDatabase, Storage
from palladio.http.wire.errors import HttpError
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.interface.errors import ConfigError
from tests.postgres_server import PostgresServer, missing

if missing() is None:
    import psycopg

    from palladio.http.storage.postgresql import postgresql_heartbeat
    from palladio.http.storage.postgresql.postgresql import PostgresqlDatabase

pytestmark = pytest.mark.postgres

TABLES = SCHEMA + "CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, word TEXT)"


@pytest.fixture
def database(database_url: SecretUrl) -> Iterator["PostgresqlDatabase"]:
    with contextlib.closing(PostgresqlDatabase(database_url, TABLES, CHANGES, 2)) as opened:
        yield opened


def add(number: int, word: str = "") -> object:
    return lambda connection: connection.execute("INSERT INTO t VALUES (?, ?)", (number, word))


async def numbers(database: "PostgresqlDatabase") -> list[int]:
    query = "SELECT n FROM t ORDER BY n"
    return await database.run(lambda connection: [row["n"] for row in connection.execute(query)])


async def test_a_caller_that_is_cancelled_does_not_undo_its_transaction(database: "PostgresqlDatabase") -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work(connection: Connection) -> None:
        begun.set()
        go_on.wait()
        connection.execute("INSERT INTO t VALUES (5)")
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).add_done_callback(lambda _: ended.set())

    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(database.run(work))
    await asyncio.to_thread(begun.wait)
    running.cancel()
    await asyncio.wait([running])
    go_on.set()
    await asyncio.to_thread(ended.wait)
    async with asyncio.timeout(10):
        while await numbers(database) != [5]:
            await asyncio.sleep(0.01)


async def test_an_error_takes_back_all_of_a_transaction(database: "PostgresqlDatabase") -> None:
    def half(connection: Connection) -> None:
        connection.execute("INSERT INTO t VALUES (1)")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await database.run(half)
    assert await numbers(database) == []


async def test_signs_that_are_special_in_a_statement_or_to_postgresql(database: "PostgresqlDatabase") -> None:
    await database.run(add(1, "100% of %s? a\0b"))
    query = "SELECT n FROM t WHERE word LIKE '100%' AND word = ?"
    assert await database.run(lambda connection: connection.execute(query, ("100% of %s? a\0b",)).fetchall()) == [
        {"n": 1}
    ]


async def test_a_transaction_whose_connection_is_lost_is_done_again_as_long_as_nothing_is_committed(
    database: "PostgresqlDatabase",
) -> None:
    attempts = []

    def work(connection: Connection) -> None:
        attempts.append(1)
        connection.execute("INSERT INTO t VALUES (7)")
        if len(attempts) == 1:
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    await database.run(work)
    assert (await numbers(database), len(attempts)) == ([7], 2)


async def is_free(database: "PostgresqlDatabase", name: str) -> bool:
    async with database.exclusive(name) as ours:
        return ours


async def test_of_two_holders_of_a_name_one_has_it_and_it_is_free_when_its_process_ends(
    database: "PostgresqlDatabase", database_url: SecretUrl
) -> None:
    other = PostgresqlDatabase(database_url, TABLES, CHANGES, 1)
    async with other.exclusive("a") as first, database.exclusive("a") as second, database.exclusive("b") as third:
        assert (first, second, third) == (True, False, True)
        async with database.exclusive("b") as again:
            assert not again
        other._locks._session.close()  # as when its process ends
        async with asyncio.timeout(10):
            while not await is_free(database, "a"):
                await asyncio.sleep(0.01)
    other.close()


async def test_a_lock_whose_connection_has_ended_meanwhile_is_taken_at_once(
    database: "PostgresqlDatabase", caplog: pytest.LogCaptureFixture
) -> None:
    assert await is_free(database, "a")
    await asyncio.wrap_future(database._locks.take("b"))
    pid = database._locks._session.info.backend_pid
    query = "SELECT pg_terminate_backend(?, 5000)"  # ms that it waits for the end
    await database.run(lambda connection: connection.execute(query, (pid,)).fetchall())
    assert await is_free(database, "a")
    assert caplog.text == ""


async def test_a_transaction_that_stood_still_for_too_long_is_a_503(
    database: "PostgresqlDatabase", postgres: PostgresServer
) -> None:
    def work(connection: Connection) -> None:
        connection.execute("INSERT INTO t VALUES (1, NULL)")
        pid = connection.execute("SELECT pg_backend_pid() AS pid").fetchone()["pid"]
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 20")
        with psycopg.connect(postgres.url(), autocommit=True) as other:  # as if this process had been stopped meanwhile
            while other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone():
                time.sleep(0.01)

    with pytest.raises(HttpError) as caught:
        await database.run(work)
    assert (caught.value.body.status, caught.value.body.code) == (503, "database_unavailable")
    assert await numbers(database) == []


async def test_subscribers_of_all_servers_hear_of_what_is_committed(
    database: "PostgresqlDatabase", database_url: SecretUrl
) -> None:
    other, heard = PostgresqlDatabase(database_url, TABLES, CHANGES, 1), asyncio.Event()
    loop = asyncio.get_running_loop()
    other.subscribe(lambda: loop.call_soon_threadsafe(heard.set))
    async with asyncio.timeout(10):
        while not heard.is_set():  # until it listens
            await database.run(lambda connection: connection.notify())
            await asyncio.sleep(0.05)
    other.close()


async def test_subscribers_hear_that_the_database_is_back(
    database: "PostgresqlDatabase", postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_heartbeat, "_PAUSE", 0.02)
    connector, heard = database._heartbeat._connector, threading.Event()
    connect, is_away = connector.connect, threading.Event()

    def refuse(**options: bool) -> object:
        if is_away.is_set():
            raise psycopg.OperationalError("no route to host")
        return connect(**options)

    monkeypatch.setattr(connector, "connect", refuse)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%INTO servers%'"
    is_away.set()
    with psycopg.connect(postgres.url(), autocommit=True) as other:
        async with asyncio.timeout(10):
            while not database.is_away:  # until the heartbeat's connection, which may have just begun, has ended
                other.execute(f"{end} AND pid <> pg_backend_pid()")
                await asyncio.sleep(0.02)
    database.subscribe(lambda: None if database.is_away else heard.set())
    assert not heard.is_set()
    is_away.clear()
    assert await asyncio.to_thread(heard.wait, 10)


async def test_missing_tables_are_told_with_the_remedy_and_all_goes_on_when_they_are_back(
    database_url: SecretUrl, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(PostgresqlDatabase(database_url, TABLES, CHANGES, 2, lease=0.4)) as database:
        await database.run(add(1))
        await database.run(lambda connection: connection.execute("ALTER TABLE t RENAME TO away"))
        for _ in range(3):
            with pytest.raises(HttpError) as caught:
                await numbers(database)
            assert (caught.value.body.status, caught.value.body.code) == (503, "storage_gone")
        (told,) = [text for text in caplog.messages if 'relation "t" does not exist' in text]
        assert "restore the tables, or the rights, from a backup; this server goes on by itself then" in told
        database.check()  # the server's own are there
        await database.run(lambda connection: connection.execute("ALTER TABLE away RENAME TO t"))
        assert await numbers(database) == [1]
        for name, there in (("servers RENAME TO away", False), ("away RENAME TO servers", True)):
            await database.run(lambda connection, name=name: connection.execute(f"ALTER TABLE {name}"))
            async with asyncio.timeout(10):
                while (await is_usable(database)) != there:
                    await asyncio.sleep(0.05)


async def is_usable(database: "PostgresqlDatabase") -> bool:
    with contextlib.suppress(HttpError):
        database.check()
        return True
    return False


async def test_a_server_that_ends_signs_itself_off(database_url: SecretUrl) -> None:
    """Its lease would go on for a minute."""
    first, second = (PostgresqlDatabase(database_url, TABLES, CHANGES, 1) for _ in range(2))
    for expected in ({first.server, second.server}, {second.server}):
        rows = await second.run(lambda connection: connection.execute("SELECT id FROM servers").fetchall())
        assert {row["id"] for row in rows} == expected
        first.close() if len(rows) > 1 else second.close()


def test_servers_that_start_at_once_make_the_tables_once(database_url: SecretUrl) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(lambda _: PostgresqlDatabase(database_url, SCHEMA, CHANGES, 1), range(4)))
    assert len({one.identity for one in opened}) == 1
    for one in opened:
        one.close()
    with pytest.raises(ConfigError, match="made by a later version"):
        PostgresqlDatabase(database_url, SCHEMA, (), 1)


@pytest.mark.slow
async def test_while_the_database_is_away_a_503_comes_at_once_and_then_all_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = PostgresServer.create()
    server.start()
    database = PostgresqlDatabase(SecretUrl(server.url()), TABLES, CHANGES, 1)
    await database.run(add(1))
    server.stop()
    for _ in range(3):
        with pytest.raises(HttpError) as error:
            await asyncio.wait_for(database.run(add(2)), 5)
        assert (error.value.body.status, error.value.body.code) == (503, "database_unavailable")
        assert error.value.body.headers["Retry-After"]
    with pytest.raises(HttpError, match="cannot be reached"):
        database.check()
    assert database.failures == {"database_unavailable": 1}
    assert len([text for text in caplog.messages if "cannot be used" in text]) == 1
    server.start()
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(HttpError):
                await database.run(add(3))
                break
            await asyncio.sleep(0.1)
    assert await numbers(database) == [1, 3]
    async with asyncio.timeout(20):
        while database._heartbeat.trouble is not None:
            await asyncio.sleep(0.1)
    database.check()
    database.close()
    server.remove()


def test_servers_of_one_database_share_a_folder_and_others_are_refused(
    tmp_path: Path, database_url: SecretUrl, postgres: PostgresServer
) -> None:
    shared = SharedDatabase(database_url, 1)
    first, second = (Storage(tmp_path, shared=shared) for _ in range(2))
    assert first.database.server != second.database.server
    with pytest.raises(ConfigError, match="in use by another server"):
        Storage(tmp_path)
    with pytest.raises(ConfigError, match="belongs to another database"):
        Storage(tmp_path, shared=SharedDatabase(SecretUrl(postgres.schema_url("another")), 1))
    first.close()
    second.close()
    own = Storage(tmp_path / "own")
    with pytest.raises(ConfigError, match="in use by another server"):
        Storage(tmp_path / "own", shared=shared)
    own.close()


def test_no_error_tells_the_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    for url in (
        "postgresql://u:se%63ret@127.0.0.1:1/db",
        "postgresql://u@127.0.0.1:1/db?password=secret",
        "postgresql://u:secret@[127/db",
        "postgresql://u:secret@127.0.0.1:1/db?nonsense=1",
    ):
        with pytest.raises(ConfigError, match="--database-url") as error:
            Storage(tmp_path, shared=SharedDatabase(SecretUrl(url), 1))
        assert "secret" not in str(error.value) + caplog.text
        assert error.value.__suppress_context__
