"""`palladio migrate-storage`, into a real PostgreSQL."""

import asyncio
from pathlib import Path

import pytest

from palladio.commands.migrate_storage import migrate_storage
from palladio.http.batches.batch_records import LineResult
from palladio.http.responses.response_store import ResponseStore, StoredResponse
from palladio.http.security.callers import SERVER
from palladio.http.storage import migration
from palladio.http.storage.storage import SharedDatabase, Storage
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.batches.batch_files import chat_line, jsonl
from tests.http.batches.batch_server import Server, serving
from tests.http.conftest import database_url, postgres, tokenizer

pytestmark = pytest.mark.postgres

__all__ = ["database_url", "postgres", "tokenizer"]  # fixtures

NUM_LINES = 300


async def fill(folder: Path, tokenizer: Tokenizer) -> str:
    """A batch whose lines have results in part, and responses of which one goes on from the other."""
    engine = FakeEngine(tokenizer, reply="x")
    engine.delay = 60.0
    async with serving(folder, engine) as server:
        batch_id = await server.submit(jsonl([chat_line(number) for number in range(NUM_LINES)]))
        await server.wait_for(batch_id, lambda batch: batch.status == "in_progress")
        await server.store.add_results(batch_id, [LineResult(line, True, b'{"custom_id": "-"}') for line in (1, 200)])
        responses = ResponseStore(server.storage.database, 10)
        for number, previous in ((1, None), (2, "resp_1")):
            item = {"id": f"msg_{number}", "type": "message"}
            response = {"id": f"resp_{number}", "previous_response_id": previous, "status": "completed", "output": []}
            await responses.add(StoredResponse(response), [item], SERVER)
    return batch_id


def run(folder: Path, url: SecretUrl) -> int:
    return migrate_storage(["--file-storage-path", str(folder), "--database-url", url.value], {})


def test_all_records_are_copied_once_and_servers_go_on_with_them(
    tmp_path: Path,
    tokenizer: Tokenizer,
    database_url: SecretUrl,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch_id = asyncio.run(fill(tmp_path, tokenizer))
    with monkeypatch.context() as patch:  # it breaks off in the middle
        patch.setitem(migration.TABLES, "responses", ("no_such_column",))
        assert run(tmp_path, database_url) == 1
    assert "goes on" in capsys.readouterr().err
    for _ in range(2):
        assert run(tmp_path, database_url) == 0
    told = capsys.readouterr().out.splitlines()
    counts = [line.split() for line in told if " rows, " in line]
    first, second = counts[: len(counts) // 2], counts[len(counts) // 2 :]
    assert {line[0]: (line[1], line[3]) for line in first}["batches:"] == ("1", "0")
    assert {line[0]: (line[1], line[3]) for line in first}["responses:"] == ("2", "2")
    assert {line[3] for line in second} == {"0"}
    shared = SharedDatabase(database_url, num_connections=2)

    async def go_on() -> None:
        server = Server(tmp_path, FakeEngine(tokenizer, reply="x"), None, lambda folder: Storage(folder, shared=shared))
        await server.worker.start()
        batch = await server.ended(batch_id)
        assert (batch.status, batch.completed) == ("completed", NUM_LINES)
        assert len(server.engine.calls) == NUM_LINES - 2
        assert len(server.results(batch.output_file_id)) == NUM_LINES
        responses = ResponseStore(server.storage.database, 10)
        found = await responses.conversation("resp_2", "previous_response_id", SERVER)
        assert [item["id"] for item in found] == ["msg_1", "msg_2"]
        await server.worker.stop()
        server.storage.close()

    asyncio.run(go_on())
    with pytest.raises(ConfigError, match="belongs to the database of a --database-url"):
        Storage(tmp_path)


@pytest.mark.slow
def test_a_directory_that_is_in_use_or_has_nothing_is_refused(
    tmp_path: Path, database_url: SecretUrl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, database_url) == 2
    assert "no palladio.db is there" in capsys.readouterr().err
    server = Storage(tmp_path)
    assert run(tmp_path, database_url) == 2
    assert "in use by another server" in capsys.readouterr().err
    server.close()
