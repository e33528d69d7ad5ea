"""`palladio migrate-storage`, into a real PostgreSQL."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from palladio.commands import migrate_storage as command
from palladio.commands.migrate_storage import migrate_storage
from palladio.http.batches.batch_records import LineResult
from palladio.http.files.file_store import FileStore
from palladio.http.responses.response_store import ResponseStore, StoredResponse
from palladio.http.security.callers import SERVER
from palladio.http.storage.postgresql import migration
from palladio.http.storage.records.object_lists import new_id
from palladio.http.storage.storage import SharedDatabase, Storage
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.batches.batch_files import chat_line, jsonl
from tests.http.batches.batch_server import Server, serving
from tests.http.conftest import database_url, postgres, tokenizer
from tests.http.storage.blobs.memory_bucket import MemoryBucket
from tests.http.storage.blobs.pieces import one_piece, read_all

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


@pytest.mark.postgres
def test_all_records_are_copied_once_and_servers_go_on_with_them(
    tmp_path: Path,
    tokenizer: Tokenizer,
    database_url: SecretUrl,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(migration, "_ROWS", 1)  # that are copied at a time
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
@pytest.mark.postgres
def test_a_directory_that_is_in_use_or_has_nothing_is_refused(
    tmp_path: Path, database_url: SecretUrl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, database_url) == 2
    assert "no palladio.db is there" in capsys.readouterr().err
    server = Storage(tmp_path)
    assert run(tmp_path, database_url) == 2
    assert "in use by another server" in capsys.readouterr().err
    server.close()


def test_contents_are_copied_to_a_bucket_of_the_same_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, names = MemoryBucket(), [new_id("backend_input_file-") for _ in range(3)]

    async def fill_folder() -> None:
        with contextlib.closing(Storage(tmp_path)) as storage:
            for number, name in enumerate(names):
                await storage.blobs.put(name, one_piece(b"x" * 1500 * number))

    async def look() -> None:
        assert {name: len(await read_all(bucket, name)) for name in names} == {
            name: 1500 * number for number, name in enumerate(names)
        }
        with contextlib.closing(Storage(tmp_path, bucket=lambda: bucket)) as storage:
            await FileStore(storage.database, storage.blobs).check()

    asyncio.run(fill_folder())
    monkeypatch.setattr(command, "open_bucket", lambda url, max_bytes: bucket)
    arguments = ["--file-storage-path", str(tmp_path), "--blob-store", "s3://bucket/prefix"]
    bucket.flaky.fail_all()
    assert migrate_storage(arguments, {}) == 2
    assert "--blob-store s3://bucket/prefix cannot be read" in capsys.readouterr().err
    bucket.flaky.failing = {}
    for told in ("3 files, 3 copied (4500 bytes), 0 there already", "3 files, 0 copied (0 bytes), 3 there already"):
        assert migrate_storage(arguments, {}) == 0
        printed = capsys.readouterr().out
        assert told in printed
        assert f"Start the servers with --file-storage-path {tmp_path} --blob-store s3://bucket/prefix" in printed
    asyncio.run(look())
    assert migrate_storage(arguments[:2], {}) == 2
    assert "give --database-url, --blob-store or both" in capsys.readouterr().err
    assert migrate_storage([*arguments[:2], "--blob-store", "bucket"], {}) == 2
