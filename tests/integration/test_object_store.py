"""--blob-store against a real object store: OpenStack Swift's S3 API. `make object-store` brings it."""

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from palladio.commands.migrate_storage import migrate_storage
from palladio.http.files.file_store import RESULT_PREFIX, FileStore
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.blobs import blob_bucket
from palladio.http.storage.blobs.blob_bucket import open_bucket
from palladio.http.storage.records.object_lists import new_id
from palladio.http.storage.storage import SharedDatabase, Storage
from palladio.http.wire.secret_url import SecretUrl
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.batches.batch_files import both, chat_line, jsonl, submit, wait_for
from tests.http.conftest import running_server
from tests.http.files.uploads import CONTENT, upload
from tests.http.storage.blobs.pieces import in_pieces, one_piece, read_all, scan
from tests.integration.bucket_hosts import MIB, Host, begun_upload, objects
from tests.integration.swift import READER, READER_SECRET, Swift, running_swift
from tests.postgres_server import PostgresServer, missing
from tests.tiny_tokenizer import build_tiny_tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("OBJECT_STORE_PYTHON" not in os.environ, reason="`make object-store` has the package swift"),
]
Start = Callable[..., Host]
PREFIX = "backend_input_file-"


@pytest.fixture(scope="module")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    with running_swift(tmp_path_factory.mktemp("swift")) as one:
        yield one


@pytest.fixture
def bucket(swift: Swift, monkeypatch: pytest.MonkeyPatch) -> str:
    """The --blob-store of a bucket of this test's own, whose credentials the environment has."""
    for name, value in swift.environment().items():
        monkeypatch.setenv(name, value)
    name = f"test-{random.randrange(10**9)}"
    swift.make_bucket(name)
    return f"s3://{name}/some/prefix"


async def test_contents_of_every_size_come_back_and_what_breaks_off_leaves_no_parts(swift: Swift, bucket: str) -> None:
    blobs = open_bucket(bucket, 512 * MIB)
    await blobs.check("database")
    for size in (0, 1, 5 * MIB - 1, 5 * MIB, 23 * MIB + 7):
        name, content = new_id(PREFIX), random.randbytes(size)
        pieces = [content[begin : begin + MIB] for begin in range(0, size, MIB)]
        assert await blobs.put(name, in_pieces(pieces)) == size
        assert await read_all(blobs, name) == content
        assert (await scan(blobs))[name].size == size
    before, known = swift.num_stored(), set(await scan(blobs))

    async def endless() -> AsyncGenerator[bytes, None]:
        for _ in range(17):
            yield random.randbytes(MIB)
        reached.set()
        await asyncio.sleep(0 if fails else 60)
        raise ValueError("the client went away")

    for fails in (True, False):
        reached = asyncio.Event()
        upload = asyncio.create_task(blobs.put(new_id(PREFIX), endless()))
        await reached.wait()
        if not fails:
            upload.cancel()
        with pytest.raises(ValueError if fails else asyncio.CancelledError):
            await upload
    assert (swift.num_stored(), set(await scan(blobs))) == (before, known)
    await blobs.delete(known)
    assert await scan(blobs) == {}


@pytest.mark.parametrize(
    ("changes", "url", "told"),
    [
        ({}, "s3://absent/prefix", r"NoSuchBucket: .*; make the bucket, or correct its name"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong-secret"}, None, r"(SignatureDoesNotMatch|AccessDenied).*check the credent"),
        (
            {"AWS_ACCESS_KEY_ID": READER, "AWS_SECRET_ACCESS_KEY": READER_SECRET},
            None,
            "be written: AccessDenied.*the c",
        ),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, None, r"Connection refused.*check AWS_ENDPOINT_URL"),
    ],
    ids=["absent", "wrong-key", "denied", "away"],
)
def test_a_server_whose_bucket_cannot_be_used_does_not_start(
    swift: Swift, bucket: str, tmp_path: Path, changes: dict[str, str], url: str | None, told: str
) -> None:
    asyncio.run(open_bucket(bucket, MIB).check("a database"))  # it has been in use
    command = [sys.executable, "-m", "palladio", "serve", "--port", "0", "--blob-store", url or bucket]
    command += ["--file-storage-path", str(tmp_path)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"} | changes
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    output = done.stdout + done.stderr
    (line,) = [line for line in output.splitlines() if line.startswith("error:")]
    assert f"--blob-store {url or bucket} cannot be " in line
    assert re.search(told, line), line
    assert done.returncode != 0
    assert "Traceback" not in output
    for secret in (environment["AWS_SECRET_ACCESS_KEY"], "AWS4-HMAC"):
        assert secret not in output


@pytest.mark.parametrize("fault", ["away", "read-only"])
def test_a_batch_waits_while_the_store_cannot_be_used(
    swift: Swift,
    bucket: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    fault: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    engine = FakeEngine(tokenizer, reply="x")
    engine.first_delay = 0.5
    storage = Storage(tmp_path / "storage", bucket=lambda: open_bucket(bucket, 512 * MIB))
    with running_server(engine, HttpConfig(), storage=storage) as url, httpx.Client(base_url=url, timeout=60) as http:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="None", max_retries=0, timeout=60)
        kept, unwanted = (upload(http).raise_for_status().json()["id"] for _ in range(2))
        batch = submit(client, jsonl(chat_line(number) for number in range(50)))
        wait_for(client, batch.id, "in_progress")
        with without_proxy(swift) if fault == "away" else swift.read_only():
            refused = [upload(http), upload(http, b"x" * 6 * MIB)]
            read = http.get(f"/v1/files/{kept}/content")
            if fault == "away":
                refused.append(read)
            else:
                assert read.content == CONTENT
                assert http.delete(f"/v1/files/{unwanted}").json()["deleted"]
            for answer in refused:
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "blob_store_unavailable")
            assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
            if fault == "read-only":  # its lines are read and answered
                wait_for(client, batch.id, "finalizing", seconds=60.0)
            time.sleep(2)
            assert client.batches.retrieve(batch.id).status in ("in_progress", "finalizing")
        done = wait_for(client, batch.id, seconds=90.0)
        output, errors = both(client, done)
        assert [one["custom_id"] for one in output] == [f"line-{number}" for number in range(50)]
        assert (done.status, errors) == ("completed", [])
        assert http.get(f"/v1/files/{kept}/content").content == CONTENT
    assert f"Batch {batch.id} stopped and is retried" in caplog.text
    assert "Traceback" not in caplog.text
    # The sweep's look at the bucket, which names its owner, may have been cut off, too.
    contents = {name for name in objects(swift, bucket) if not name.startswith("palladio-")}
    assert contents == {kept, unwanted, batch.input_file_id, done.output_file_id}


@contextlib.contextmanager
def without_proxy(swift: Swift) -> Iterator[None]:
    swift.stop("proxy")  # which answers clients
    try:
        yield
    finally:
        swift.start()


@pytest.fixture
def start(bucket: str, tmp_path: Path) -> Iterator[Start]:
    hosts: list[Host] = []
    tokenizer = build_tiny_tokenizer(tmp_path / "tokenizer")

    def begin(name: str = "one", **config: Any) -> Host:
        log = tmp_path / f"log{len(hosts)}"
        stored = {"file_storage_path": str(tmp_path / name), "blob_store": bucket}
        hosts.append(Host(tokenizer, log, stored | config))
        return hosts[-1]

    yield begin
    for host in hosts:
        host.end(signal.SIGKILL)


def sweep(bucket: str, folder: Path, monkeypatch: pytest.MonkeyPatch, shared: SharedDatabase | None = None) -> None:
    """As if a day had passed."""
    monkeypatch.setattr(blob_bucket, "SETTLING", -3600.0)

    async def run(storage: Storage) -> None:
        files = FileStore(storage.database, storage.blobs)
        await files.check()
        await files.remove_leftovers()

    opened = Storage(folder, bucket=lambda: open_bucket(bucket, 512 * MIB), shared=shared)
    with contextlib.closing(opened) as storage:
        asyncio.run(run(storage))


def test_a_server_killed_within_an_upload_leaves_no_file(
    swift: Swift, bucket: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = start()
    kept = upload(host.http).json()["id"]
    with begun_upload(host, swift):
        host.end(signal.SIGKILL)
    assert objects(swift, bucket) == {blob_bucket.OWNER, kept}
    orphan = new_id(RESULT_PREFIX)
    asyncio.run(open_bucket(bucket, MIB).put(orphan, one_piece(b"of a server that was killed before the row")))
    host = start()
    assert [one["id"] for one in host.http.get("/v1/files").json()["data"]] == [kept]
    assert host.http.get(f"/v1/files/{kept}/content").content == CONTENT
    with begun_upload(host, swift):
        assert host.end() == 0
    assert objects(swift, bucket) == {blob_bucket.OWNER, kept, orphan}  # it is not a day old
    sweep(bucket, tmp_path / "one", monkeypatch)
    assert objects(swift, bucket) == {blob_bucket.OWNER, kept}


LINES = 60
OF_LINES = {"max_tokens": 60, "logprobs": True, "top_logprobs": 20}  # about 10 MiB of results


def check_results(client: openai.OpenAI, batch_id: str) -> set[str]:
    """Each line has one result; returns the names of the batch's files."""
    found = wait_for(client, batch_id, seconds=90.0)
    output, errors = both(client, found)
    assert [one["custom_id"] for one in output] == [f"line-{line}" for line in range(LINES)]
    assert (found.status, found.request_counts.completed, len(errors)) == ("completed", LINES, 1)
    return {found.input_file_id, found.output_file_id, found.error_file_id}


def wait_for_point(client: openai.OpenAI, batch_id: str, point: str, delay: float) -> None:
    while client.batches.retrieve(batch_id).status in ("validating", *(["in_progress"] * (point == "finalizing"))):
        time.sleep(0.005)
    time.sleep(delay)


def test_a_server_killed_while_it_writes_results_leaves_one_file_of_them(
    swift: Swift, bucket: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, content = {blob_bucket.OWNER}, jsonl([*(chat_line(line, **OF_LINES) for line in range(LINES)), "{bad"])
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2):
        host = start()
        with host.client() as client:
            batch = submit(client, content).id
            wait_for_point(client, batch, "finalizing", delay)
        host.end(signal.SIGKILL)
        host = start()
        with host.client() as client:
            known |= check_results(client, batch)
            assert {one.id for one in client.files.list()} == known - {blob_bucket.OWNER}
        assert host.end() == 0
    sweep(bucket, tmp_path / "one", monkeypatch)
    assert objects(swift, bucket) == known


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    if (why := missing()) is not None:
        pytest.skip(why)
    server = PostgresServer.create()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_two_hosts_with_one_bucket_and_one_database_lose_and_double_nothing(
    swift: Swift,
    bucket: str,
    start: Start,
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file that is uploaded to one is a batch of the other. In turn, they are killed: while lines are answered, while
    the files of results are written, which have several parts, and within an upload."""
    config = {"database_url": postgres.url(), "database_lease": 3.0}
    hosts = {name: start(name, **config) for name in ("one", "two")}
    known, content = {blob_bucket.OWNER}, jsonl([*(chat_line(line, **OF_LINES) for line in range(LINES)), "{bad"])
    points = ("in_progress", "finalizing", "finalizing", "upload", "upload", "finalizing", "finalizing", "in_progress")
    for turn, point in enumerate(points):
        killed, other = ("one", "two") if turn % 2 else ("two", "one")
        file = upload(hosts[other].http, content).raise_for_status().json()["id"]
        with hosts[killed].client() as client:
            asked = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
            batch = client.batches.create(input_file_id=file, **asked).id
            wait_for_point(client, batch, point, random.uniform(0, 0.2))
        with begun_upload(hosts[killed], swift) if point == "upload" else contextlib.nullcontext():
            hosts[killed].end(signal.SIGKILL)
        with hosts[other].client() as client:
            known |= check_results(client, batch)
        hosts[killed] = start(killed, **config)
        listed = hosts[killed].http.get("/v1/files").json()["data"]
        assert {one["id"] for one in listed} == known - {blob_bucket.OWNER}
        assert hosts[killed].http.get(f"/v1/files/{file}/content").content == content
    assert [host.end() for host in hosts.values()] == [0, 0]
    print(f"{len(objects(swift, bucket) - known)} orphans before the sweep")
    sweep(bucket, tmp_path / "one", monkeypatch, SharedDatabase(SecretUrl(postgres.url())))
    assert objects(swift, bucket) == known


def test_a_server_moves_to_a_bucket_and_a_shared_database(
    swift: Swift, bucket: str, start: Start, postgres: PostgresServer, tmp_path: Path
) -> None:
    host, content = start(blob_store=None), jsonl([*(chat_line(line, **OF_LINES) for line in range(LINES)), "{bad"])
    with host.client() as client:
        batch = submit(client, content).id
        known = check_results(client, batch)
    assert host.end() == 0
    assert {path.name for path in (tmp_path / "one" / "files").iterdir()} == known
    flags = ["--file-storage-path", str(tmp_path / "one"), "--blob-store", bucket, "--database-url", postgres.url()]
    assert [migrate_storage(flags, {}) for _ in range(2)] == [0, 0]
    assert objects(swift, bucket) == {blob_bucket.OWNER, *known}
    for name in ("one", "two"):
        host = start(name, database_url=postgres.url())
        with host.client() as client:
            assert check_results(client, batch) == known
            assert client.files.content(client.batches.retrieve(batch).input_file_id).read() == content
