"""Files and batches whose contents are in a bucket (--blob-store): what is there, what an outage does, what is
swept."""

import asyncio
import contextlib
import datetime
import time
from pathlib import Path

import obstore
import openai
import pytest

from palladio.http.app import open_storage
from palladio.http.files.file_store import RESULT_PREFIX, FileStore
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.blobs import blob_bucket
from palladio.http.storage.records.object_lists import new_id
from palladio.http.storage.storage import Storage
from palladio.runtime.interface.errors import ConfigError
from tests.http.batches.batch_files import both, chat_line, jsonl, wait_for
from tests.http.files.uploads import CONTENT, names, upload
from tests.http.storage.blobs.memory_bucket import MemoryBucket
from tests.http.storage.blobs.pieces import one_piece, read_all, scan


def test_an_outage_of_the_bucket_pauses_what_needs_it_and_nothing_else(start, tmp_path: Path) -> None:
    bucket = MemoryBucket()
    storage = Storage(tmp_path / "storage", bucket=lambda: bucket)
    http = start(storage)
    client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="None", max_retries=0)
    kept = upload(http, CONTENT).raise_for_status().json()
    assert http.get(f"/v1/files/{kept['id']}/content").content == CONTENT
    assert upload(http, CONTENT, purpose="nonsense").status_code == 400
    assert set(asyncio.run(scan(bucket))) == {kept["id"]}
    assert names(storage) == set()

    file = upload(http, jsonl(chat_line(number) for number in range(20))).json()
    bucket.flaky.fail_all()
    for answer in (upload(http), http.get(f"/v1/files/{kept['id']}/content")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "blob_store_unavailable")
    assert http.get(f"/v1/files/{kept['id']}").json() == kept
    assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
    batch = client.batches.create(input_file_id=file["id"], endpoint="/v1/chat/completions", completion_window="24h")
    assert http.delete(f"/v1/files/{kept['id']}").json()["deleted"]
    time.sleep(0.1)
    assert client.batches.retrieve(batch.id).status == "validating"

    bucket.flaky.failing = {}
    batch = wait_for(client, batch.id)
    output, errors = both(client, batch)
    assert [one["custom_id"] for one in output] == [f"line-{number}" for number in range(20)]
    assert (batch.status, errors) == ("completed", [])
    assert set(asyncio.run(scan(bucket))) == {
        kept["id"],
        file["id"],
        batch.output_file_id,
    }  # the first: until the sweep


def test_results_wait_for_the_bucket(start, tmp_path: Path) -> None:
    bucket = MemoryBucket()
    http = start(Storage(tmp_path / "storage", bucket=lambda: bucket))
    client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="None", max_retries=0)
    file = upload(http, jsonl([*(chat_line(number) for number in range(5)), "{bad"])).json()
    bucket.flaky.failing["put"] = bucket.flaky.exceptions.PermissionDeniedError("read-only")
    batch = client.batches.create(input_file_id=file["id"], endpoint="/v1/chat/completions", completion_window="24h")
    assert wait_for(client, batch.id, "finalizing").request_counts.completed == 5
    del bucket.flaky.failing["put"]
    output, errors = both(client, wait_for(client, batch.id))
    assert (len(output), len(errors)) == (5, 1)


async def test_a_sweep_removes_old_contents_without_a_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = MemoryBucket()
    with contextlib.closing(Storage(tmp_path / "storage", bucket=lambda: bucket)) as storage:
        files = FileStore(storage.database, storage.blobs)
        made = await files.put(RESULT_PREFIX, one_piece(b"x"))
        await files.add(files.describe(made, purpose="batch", filename="a", expires_after=None, owner=""))
        orphans = [new_id(RESULT_PREFIX) for _ in range(3)]
        for name in orphans:
            await bucket.put(name, one_piece(b"x"))
        await files.remove_leftovers()
        assert set(await scan(bucket)) == {made.id, *orphans}  # they are young: their files may still come
        monkeypatch.setattr(blob_bucket, "SETTLING", -60.0)
        monkeypatch.setattr("palladio.http.files.file_store._LOOKED_UP", 2)
        await files.remove_leftovers()
        assert set(await scan(bucket)) == {made.id}
        assert await read_all(bucket, made.id) == b"x"


@pytest.mark.parametrize("days", [-10, 10])
async def test_a_sweep_goes_by_the_clock_of_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """This host's is wrong: what others upload at this moment is neither old nor of the future."""
    bucket = MemoryBucket()
    bucket.flaky.ahead = datetime.timedelta(days=days)
    with contextlib.closing(Storage(tmp_path / "storage", bucket=lambda: bucket)) as storage:
        files = FileStore(storage.database, storage.blobs)
        name = new_id(RESULT_PREFIX)
        await bucket.put(name, one_piece(b"x"))
        await files.remove_leftovers()
        assert set(await scan(bucket)) == {name}
        with monkeypatch.context() as patched:
            patched.setattr(blob_bucket, "SETTLING", -60.0)
            bucket.flaky.failing["head"] = FileNotFoundError("another server that sweeps was faster")
            await files.remove_leftovers()
            assert set(await scan(bucket)) == {name}
            del bucket.flaky.failing["head"]
            await files.remove_leftovers()
        assert await scan(bucket) == {}
        assert [one["path"] for page in obstore.list(bucket.memory) for one in page] == [blob_bucket.OWNER]


async def test_no_sweep_removes_contents_of_another_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryBucket()
    await bucket.check("another database")
    name = new_id(RESULT_PREFIX)
    await bucket.put(name, one_piece(b"x"))
    monkeypatch.setattr(blob_bucket, "SETTLING", -60.0)
    with contextlib.closing(Storage(tmp_path / "storage", bucket=lambda: bucket)) as storage:
        files = FileStore(storage.database, storage.blobs)
        with pytest.raises(ConfigError, match="holds the files of another database"):
            await files.remove_leftovers()
    assert set(await scan(bucket)) == {name}


async def test_a_bucket_stays_with_the_database_that_began_it(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    for _ in range(2):
        with contextlib.closing(Storage(tmp_path / "one", bucket=lambda: bucket)) as storage:
            await FileStore(storage.database, storage.blobs).check()
    with contextlib.closing(Storage(tmp_path / "two", bucket=lambda: bucket)) as storage:
        files = FileStore(storage.database, storage.blobs)
        with pytest.raises(ConfigError, match="holds the files of another database"):
            await files.check()


def test_a_shared_database_needs_a_folder() -> None:
    with pytest.raises(ConfigError, match="--database-url needs --file-storage-path"):
        open_storage(HttpConfig(database_url="postgresql://127.0.0.1:1/palladio"))


def test_a_bucket_needs_a_database_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--blob-store needs --file-storage-path"):
        open_storage(HttpConfig(blob_store="s3://bucket/prefix"))
    config = HttpConfig(blob_store="s3://bucket/prefix", file_storage_path=str(tmp_path))
    with contextlib.closing(open_storage(config)) as storage:
        assert isinstance(storage.blobs, blob_bucket.BucketBlobs)
