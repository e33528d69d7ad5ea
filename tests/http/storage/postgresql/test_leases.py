"""Leases: whose work servers of one PostgreSQL take up, and when. Time passes only where a test says so: it sets the
times in the table back."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from palladio.http.batches.batch import Batch
from palladio.http.batches.batch_claims import BatchClaims, make_ranges
from palladio.http.responses.response_store import ResponseStore, StoredResponse
from palladio.http.security.callers import SERVER
from palladio.http.storage.records.schema import CHANGES, SCHEMA
from palladio.http.storage.records.store import insert_row
from palladio.http.wire.secret_url import SecretUrl
from tests.postgres_server import missing

if TYPE_CHECKING or missing() is None:
    import psycopg
    from psycopg.rows import dict_row

    from palladio.http.storage.postgresql.postgresql import PostgresqlDatabase

pytestmark = pytest.mark.postgres

LEASE = 60.0  # seconds
STEP = LEASE / 4
BATCH, RESPONSE = "batch_1", "resp_1"

Open = Callable[..., "PostgresqlDatabase"]


@pytest.fixture
def start(database_url: SecretUrl) -> Iterator[Open]:
    """Makes a server's database whose lease is renewed only by `renew`."""
    with contextlib.ExitStack() as stack:

        def run(lease: float = LEASE) -> "PostgresqlDatabase":
            made = PostgresqlDatabase(database_url, SCHEMA, CHANGES, 1, lease)
            made._heartbeat.close()
            return stack.enter_context(contextlib.closing(made))

        yield run


@pytest.fixture
def pass_time(database_url: SecretUrl) -> Callable[..., None]:
    def go(seconds: float, renewing: Sequence["PostgresqlDatabase"] = ()) -> None:
        """Args: renewing: the servers that reach PostgreSQL meanwhile, and after that."""
        rest = seconds
        with psycopg.connect(database_url.value, autocommit=True, row_factory=dict_row) as session:
            while rest > 0:
                columns = ("lease_until", "judges_from", "judges_until")
                back = ", ".join(f"{name} = {name} - {min(STEP, rest)}" for name in columns)
                session.execute(f"UPDATE servers SET {back}")
                rest -= STEP
                for server in renewing:
                    server._renew(session)

    return go


async def begin_work(server: "PostgresqlDatabase") -> None:
    """It makes a response, and answers the lines of a batch."""
    response = {"id": RESPONSE, "previous_response_id": None, "status": "in_progress", "output": []}
    await ResponseStore(server, limit=10).add(StoredResponse(response, {"input": "hi"}), [], SERVER)
    batch = Batch(
        id=BATCH,
        endpoint="/v1/completions",
        input_file_id="file-1",
        completion_window="24h",
        status="in_progress",
        created_at=1,
        expires_at=2**40,
    )
    await server.run(lambda connection: insert_row(connection, "batches", dataclasses.asdict(batch)))
    await server.run(lambda connection: make_ranges(connection, BATCH, last_line=10))
    assert await BatchClaims(server).next(BATCH, 0) is not None


async def takes(server: "PostgresqlDatabase") -> tuple[bool, bool, bool]:
    """Whether it finds the response, and gets that and the lines."""
    responses = ResponseStore(server, limit=10)
    found = await responses.unfinished() == [RESPONSE]
    taken = await responses.take_up(RESPONSE) is not None
    return found, taken, await BatchClaims(server).next(BATCH, 0) is not None


NOTHING, ALL = (False,) * 3, (True,) * 3


async def test_the_work_of_a_server_that_dies_is_taken_up_when_its_lease_ends(start: Open, pass_time) -> None:
    first, second = start(), start()
    await begin_work(second)
    pass_time(LEASE - STEP, renewing=[first])
    assert await takes(first) == NOTHING
    pass_time(2 * STEP, renewing=[first])
    assert await takes(first) == ALL


async def test_who_is_back_first_after_an_outage_takes_nothing_of_live_servers(start: Open, pass_time) -> None:
    """All leases ended meanwhile."""
    first, second = start(), start()
    await begin_work(second)
    pass_time(2 * LEASE)
    assert await takes(first) == NOTHING  # a transaction came back before the heartbeat
    pass_time(1, renewing=[first])
    assert await takes(first) == NOTHING
    pass_time(LEASE - STEP, renewing=[first])
    assert await takes(first) == NOTHING
    pass_time(LEASE, renewing=[first, second])
    assert await takes(first) == NOTHING
    pass_time(2 * LEASE, renewing=[first])
    assert await takes(first) == ALL


async def test_an_outage_after_which_only_the_lease_of_another_server_has_ended(start: Open, pass_time) -> None:
    """It renewed last a quarter of a lease before this one."""
    first, second = start(), start()
    await begin_work(second)
    pass_time(STEP, renewing=[first])
    pass_time(LEASE - STEP / 2)
    assert await takes(first) == NOTHING
    pass_time(STEP / 4, renewing=[first])
    assert await takes(first) == NOTHING


async def test_the_work_of_a_server_that_died_in_an_outage_is_taken_up_a_lease_after_it(start: Open, pass_time) -> None:
    first, second = start(), start()
    await begin_work(second)
    pass_time(2 * LEASE)
    pass_time(LEASE, renewing=[first])
    assert await takes(first) == NOTHING
    pass_time(2 * STEP, renewing=[first])
    assert await takes(first) == ALL


async def test_a_new_server_waits_only_if_postgresql_has_started_less_than_a_lease_ago(start: Open, pass_time) -> None:
    second = start()
    await begin_work(second)
    pass_time(2 * LEASE)
    new = start(lease=10 * 24 * 3600.0)
    assert await takes(new) == NOTHING
    earlier = "UPDATE servers SET judges_from = judges_from - 10 * 24 * 3600 WHERE id = ?"
    await new.run(lambda connection: connection.execute(earlier, (new.server,)))
    assert await takes(new) == ALL
