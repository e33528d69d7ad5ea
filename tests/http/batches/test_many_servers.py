"""Batches of servers that share a database: each line has one result, whichever of them end, and when."""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from palladio.http.batches import batch_run, batch_worker
from palladio.http.batches.batch_claims import BatchClaims
from palladio.http.batches.batch_records import LineResult
from palladio.http.files.file_store import INPUT_PREFIX, Contents, FileStore
from palladio.http.security.callers import SERVER
from palladio.http.storage.records.object_lists import new_id
from palladio.http.storage.storage import SharedDatabase, Storage
from palladio.http.wire.errors import HttpError
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.batches.batch_files import chat_line, jsonl
from tests.http.batches.batch_server import Server, serving

pytestmark = pytest.mark.postgres

LEASE = 0.8  # seconds

OpenStorage = Callable[[Path], Storage]


@pytest.fixture
def shared(database_url: SecretUrl, monkeypatch: pytest.MonkeyPatch) -> OpenStorage:
    monkeypatch.setattr(batch_run, "POLL", 0.2)
    monkeypatch.setattr(batch_worker, "POLL", 0.2)
    database = SharedDatabase(database_url, num_connections=2, lease=LEASE)
    return lambda folder: Storage(folder, shared=database)


@pytest.fixture
def long_lease(database_url: SecretUrl, shared: OpenStorage) -> OpenStorage:
    database = SharedDatabase(database_url, num_connections=2, lease=600.0)
    return lambda folder: Storage(folder, shared=database)


def slow_engine(tokenizer: Tokenizer) -> FakeEngine:
    engine = FakeEngine(tokenizer, reply="x")
    engine.delay = 0.005
    return engine


async def end(server: Server) -> None:
    """In good order."""
    await server.worker.stop()
    server.storage.close()


async def kill(server: Server) -> None:
    """As if its process ended: nothing is released, nothing goes on; its lease ends by itself."""
    for tasks in server.worker._tasks.values():
        for task in tasks:
            task.cancel()
    for keeper in server.worker._keepers:
        keeper.cancel()
    database: Any = server.storage.database
    database._heartbeat.close()
    database._locks.close()


async def test_servers_share_the_lines_and_one_writes_the_files(
    tmp_path: Path, tokenizer: Tokenizer, shared: OpenStorage
) -> None:
    engines = [slow_engine(tokenizer) for _ in range(2)]
    async with (
        serving(tmp_path, engines[0], None, shared) as first,
        serving(tmp_path, engines[1], None, shared) as second,
    ):
        batch_id = await first.submit(jsonl([*(chat_line(number) for number in range(400)), "{bad"]))
        batch = await second.ended(batch_id)
        assert (batch.status, batch.completed, batch.failed) == ("completed", 400, 1)
        found = [one["custom_id"] for one in second.results(batch.output_file_id)]
        assert found == [f"line-{number}" for number in range(400)]
        calls = [len(engine.calls) for engine in engines]
        assert sum(calls) == 400
        assert min(calls) >= 64
        async with asyncio.timeout(20):  # the slower of the two may be about to drop the same files
            names = {batch.input_file_id, batch.output_file_id, batch.error_file_id}
            while {path.name for path in first.storage.files.iterdir()} != names:
                await asyncio.sleep(0.02)


async def begin_and_end(first: Server, end: Callable[[Server], Awaitable[None]], heir: FakeEngine) -> str:
    """A server of a batch of 200 lines ends amid them, and only then is the engine of its heir ready.

    Returns:
        The batch.
    """
    heir.state = "restarting"
    await first.worker.start()
    batch_id = await first.submit(jsonl([chat_line(number) for number in range(200)]))
    await first.wait_for(batch_id, lambda batch: batch.completed > 0)
    await end(first)
    heir.state = "ready"
    return batch_id


async def test_lines_of_a_server_that_dies_are_answered_by_another_one_after_its_lease(
    tmp_path: Path, tokenizer: Tokenizer, shared: OpenStorage
) -> None:
    heir = slow_engine(tokenizer)
    async with serving(tmp_path, heir, None, shared) as second:
        batch_id = await begin_and_end(Server(tmp_path, slow_engine(tokenizer), None, shared), kill, heir)
        batch = await second.ended(batch_id)
        assert (batch.status, batch.completed) == ("completed", 200)
        found = [one["custom_id"] for one in second.results(batch.output_file_id)]
        assert found == [f"line-{number}" for number in range(200)]


async def test_lines_of_a_server_that_ends_in_good_order_are_answered_by_another_one_at_once(
    tmp_path: Path, tokenizer: Tokenizer, long_lease: OpenStorage
) -> None:
    heir = slow_engine(tokenizer)
    async with serving(tmp_path, heir, None, long_lease) as second:
        first = Server(tmp_path, slow_engine(tokenizer), None, long_lease)
        batch_id = await begin_and_end(first, end, heir)
        batch = await second.ended(batch_id)
        assert (batch.status, batch.completed) == ("completed", 200)


async def test_a_host_whose_clock_is_wrong_takes_no_lines_of_live_servers(
    tmp_path: Path, tokenizer: Tokenizer, long_lease: OpenStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases are measured by the database's clock, and renewed by it, also those of a host whose clock is slow."""
    now, days = time.time(), 24 * 3600
    monkeypatch.setattr("time.time", lambda: now - 10 * days)
    engine = slow_engine(tokenizer)
    engine.delay = 60.0
    async with serving(tmp_path, engine, None, long_lease) as first:
        batch_id = await first.submit(jsonl([chat_line(number) for number in range(10)]))
        await first.wait_for(batch_id, lambda batch: batch.status == "in_progress")
        async with asyncio.timeout(20):
            while not engine._running:
                await asyncio.sleep(0.01)
        for shift in (0, -10 * days, 10 * days):
            monkeypatch.setattr("time.time", lambda shift=shift: now + shift)
            storage = long_lease(tmp_path)
            assert await BatchClaims(storage.database).next(batch_id, 0) is None
            assert abs(storage.database.now() - now) < 3600
            storage.close()


async def test_a_cancel_at_one_server_ends_the_batch_at_all(
    tmp_path: Path, tokenizer: Tokenizer, shared: OpenStorage
) -> None:
    engines = [slow_engine(tokenizer) for _ in range(2)]
    for engine in engines:
        engine.delay = 30.0
    async with (
        serving(tmp_path, engines[0], None, shared) as first,
        serving(tmp_path, engines[1], None, shared) as second,
    ):
        batch_id = await first.submit(jsonl([chat_line(number) for number in range(200)]))
        async with asyncio.timeout(20):
            while not all(engine._running for engine in engines):
                await asyncio.sleep(0.01)
        await second.store.cancel(batch_id, SERVER)
        batch = await first.ended(batch_id)
        assert (batch.status, batch.num_left) == ("cancelled", 200)
        async with asyncio.timeout(20):
            while any(engine._running for engine in engines):
                await asyncio.sleep(0.01)


async def test_lines_of_a_batch_that_others_have_cancelled_and_ended_meanwhile_are_dropped(
    tmp_path: Path, tokenizer: Tokenizer, shared: OpenStorage
) -> None:
    """A busy server may look only when the batch is not `cancelling` any more."""
    engine = slow_engine(tokenizer)
    engine.delay = 120.0
    elsewhere = Server(tmp_path, slow_engine(tokenizer), None, shared)

    async def cancel_and_end() -> None:
        await elsewhere.store.cancel(batch_id, SERVER)
        await elsewhere.store.end(batch_id, None, None)

    async with serving(tmp_path, engine, None, shared) as server:
        batch_id = await server.submit(jsonl([chat_line(number) for number in range(10)]))
        async with asyncio.timeout(20):
            while not engine._running:
                await asyncio.sleep(0.01)
        other = threading.Thread(target=lambda: asyncio.run(cancel_and_end()))
        other.start()
        other.join()  # and this event loop stands still
        async with asyncio.timeout(20):
            while engine._running or server.worker._tasks:
                await asyncio.sleep(0.01)
        assert (await server.ended(batch_id)).status == "cancelled"
    elsewhere.storage.close()


async def test_a_batch_that_begins_while_a_server_looks_for_others_is_not_taken_for_ended(
    tmp_path: Path, tokenizer: Tokenizer, shared: OpenStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = slow_engine(tokenizer)
    engine.holds = True
    async with serving(tmp_path, engine, None, shared) as server:
        live, begun = server.store.live, list[str]()

        async def look() -> dict[str, Any]:
            found = dict(await live())
            if not begun:
                begun.append(await server.submit(jsonl([chat_line(number) for number in range(10)])))
                async with asyncio.timeout(20):
                    while len(engine._running) < 10:
                        await asyncio.sleep(0.01)
            return found

        monkeypatch.setattr(server.store, "live", look)
        async with asyncio.timeout(20):
            while len(engine._running) < 10:
                await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)  # several looks
        engine.holds = False
        assert (await server.ended(begun[0])).completed == 10
        assert len(engine.calls) == 10


async def test_a_late_result_changes_nothing(tmp_path: Path, tokenizer: Tokenizer, shared: OpenStorage) -> None:
    async with serving(tmp_path, FakeEngine(tokenizer, reply="x"), None, shared) as server:
        batch_id = await server.submit(jsonl([chat_line(number) for number in range(3)]))
        ended = await server.ended(batch_id)
        await server.store.add_results(batch_id, [LineResult(2, True, b"{}"), LineResult(9, True, b"{}")], {1})
        assert await server.store.get(batch_id, SERVER) == ended
        assert await server.store.lines_done(batch_id) == set()
        again, contents = await server.store.end(batch_id, None, None)
        assert (again, contents) == (ended, [])


@pytest.mark.slow
async def test_a_server_that_stops_leaves_its_lines_to_others_at_once(
    tmp_path: Path, tokenizer: Tokenizer, shared: OpenStorage
) -> None:
    engines = [slow_engine(tokenizer) for _ in range(2)]
    engines[0].delay = 30.0
    async with serving(tmp_path, engines[1], None, shared) as second:
        engines[1].state = "restarting"
        async with serving(tmp_path, engines[0], None, shared) as first:
            batch_id = await first.submit(jsonl([chat_line(number) for number in range(100)]))
            async with asyncio.timeout(20):
                while not engines[0]._running:
                    await asyncio.sleep(0.01)
        query = "SELECT count(*) AS number FROM batch_ranges WHERE server IS NOT NULL"
        run = second.storage.database.run
        assert (await run(lambda connection: connection.execute(query).fetchone()))["number"] == 0
        engines[1].state = "ready"
        assert (await second.ended(batch_id)).completed == 100


async def test_a_server_whose_engine_is_dead_holds_no_lines(
    tmp_path: Path, tokenizer: Tokenizer, shared: OpenStorage
) -> None:
    ill = slow_engine(tokenizer)
    ill.delay = 60.0
    async with serving(tmp_path, ill, None, shared) as first:
        batch_id = await first.submit(jsonl([chat_line(number) for number in range(10)]))
        async with asyncio.timeout(20):
            while not ill._running:
                await asyncio.sleep(0.01)
        ill.state, ill.failure = "dead", "out of memory"
        async with serving(tmp_path, slow_engine(tokenizer), None, shared) as second:
            assert (await second.ended(batch_id)).completed == 10


async def test_a_clock_that_is_wrong_ends_no_batch(
    tmp_path: Path, tokenizer: Tokenizer, shared: OpenStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch's window is measured by the database's clock."""
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 10 * 24 * 3600)
    async with serving(tmp_path, slow_engine(tokenizer), None, shared) as server:
        assert abs(server.store.now() - now) < 3600
        batch_id = await server.submit(jsonl([chat_line(1)]))
        query = "UPDATE batches SET expires_at = ? WHERE id = ?"
        await server.storage.database.run(lambda connection: connection.execute(query, (int(now) + 3600, batch_id)))
        assert (await server.ended(batch_id)).status == "completed"


async def select(storage: Storage, query: str, values: tuple[str, ...]) -> list[str]:
    found = await storage.database.run(lambda connection: connection.execute(query, values).fetchall())
    return [row["id"] for row in found]


async def test_a_clock_that_is_wrong_expires_no_file_and_keeps_none(
    tmp_path: Path, shared: OpenStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's time is measured by the database's clock."""
    now = time.time()
    for shift in (-10 * 24 * 3600, 10 * 24 * 3600):
        monkeypatch.setattr("time.time", lambda shift=shift: now + shift)
        with contextlib.closing(shared(tmp_path)) as storage:
            files = FileStore(storage.database, storage.blobs)
            made = {"purpose": "batch", "filename": "a", "expires_after": 3600, "owner": ""}
            kept, past = [files.describe(Contents(new_id(INPUT_PREFIX), 1), **made) for _ in range(2)]
            assert abs(kept.created_at - now) < 600
            kept = dataclasses.replace(kept, expires_at=int(now) + 3600)
            past = dataclasses.replace(past, expires_at=int(now) - 3600)
            for file in (kept, past):
                await files.add(file)
            with pytest.raises(HttpError):
                await files.get(past.id, SERVER)
            await files.expire()
            assert await files.get(kept.id, SERVER) == kept
            query = "SELECT id FROM files WHERE id IN (?, ?)"
            ids = (kept.id, past.id)
            assert await select(storage, query, ids) == [kept.id], "its record stays"
