"""A PostgreSQL that hangs: its connections stay open, and nothing comes."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator

import pytest

from palladio.http.storage.records.database import Connection
from palladio.http.storage.records.schema import CHANGES, SCHEMA
from palladio.http.wire.errors import HttpError
from palladio.http.wire.secret_url import SecretUrl
from tests.http.conftest import wait_until
from tests.postgres_server import PostgresServer, missing

if missing() is None:
    from palladio.http.storage.postgresql import postgresql, postgresql_heartbeat, postgresql_locks
    from palladio.http.storage.postgresql.postgresql import PostgresqlDatabase

pytestmark = pytest.mark.postgres

PATIENCE = 60.0  # seconds, on a busy machine
TABLES = SCHEMA + "CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY)"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """One that the test may stop."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    monkeypatch.setattr(postgresql, "_ANSWER", 0.6)
    monkeypatch.setattr(postgresql, "_ANSWER_AWAY", 0.6)
    monkeypatch.setattr(postgresql_heartbeat, "_ANSWER", 0.6)
    monkeypatch.setattr(postgresql_locks, "_ANSWER", 0.6)
    made = PostgresServer.create()
    made.start()
    try:
        yield made
    finally:
        made.thaw()
        made.stop(signal.SIGKILL)  # an orderly end would first hear of all that came meanwhile
        made.remove()


def url_of(server: PostgresServer) -> SecretUrl:
    return SecretUrl(f"{server.url()}?connect_timeout=2")


def count(connection: Connection) -> int:
    return int(connection.execute("SELECT count(*) AS number FROM t").fetchone()["number"])


def add(connection: Connection) -> None:
    connection.execute("INSERT INTO t VALUES (1)")


async def test_who_waits_is_told_that_it_is_away_and_all_goes_on_later(server: PostgresServer) -> None:
    with contextlib.closing(PostgresqlDatabase(url_of(server), TABLES, CHANGES, 1, lease=2.0)) as database:
        async with database.exclusive("a") as is_ours:
            assert is_ours
            assert await database.run(count) == 0
            server.freeze()
            try:
                async with asyncio.timeout(PATIENCE):
                    with pytest.raises(HttpError, match="cannot be reached"):
                        await database.run(add)
                    with pytest.raises(HttpError, match="cannot be reached"):
                        async with database.exclusive("b"):
                            pass
                    while not database.is_away:  # so that work which it is of no use for is refused before it begins
                        await asyncio.sleep(0.05)
                with pytest.raises(HttpError, match="cannot be reached"):
                    database.check()
            finally:
                server.thaw()
        await asyncio.to_thread(wait_until, lambda: not database.is_away, PATIENCE)
        database.check()
        assert await database.run(count) == 0
        await database.run(add)
        assert await database.run(count) == 1


def test_a_server_can_end_meanwhile(server: PostgresServer) -> None:
    database = PostgresqlDatabase(url_of(server), TABLES, CHANGES, 2, lease=2.0)
    asyncio.run(database.run(count))
    server.freeze()
    closing = threading.Thread(target=database.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()


async def test_who_gets_an_answer_in_time_is_left_alone(server: PostgresServer) -> None:
    """The time is each statement's, not the transaction's."""

    def slow(connection: Connection) -> int:
        add(connection)
        for _ in range(4):
            connection.execute("SELECT pg_sleep(0.2)")
        return count(connection)

    with contextlib.closing(PostgresqlDatabase(url_of(server), TABLES, CHANGES, 1)) as database:
        assert await database.run(slow) == 1
        assert await database.run(count) == 1
