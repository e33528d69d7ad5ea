"""--blob-store against a real object store: OpenStack Swift's S3 API. `make object-store` brings it."""

import asyncio
import contextlib
import os
import random
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import httpx
import obstore
import openai
import pytest

from palladio.default_model import DEFAULT_MODEL_NAME
from palladio.http.files.file_store import RESULT_PREFIX, FileStore
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage import blob_bucket
from palladio.http.storage.blob_bucket import open_bucket
from palladio.http.storage.object_lists import new_id
from palladio.http.storage.storage import Storage
from palladio.runtime.text.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.batches.batch_files import both, chat_line, jsonl, submit, wait_for
from tests.http.conftest import running_server
from tests.http.files.uploads import CONTENT, upload
from tests.http.storage.pieces import in_pieces, one_piece, read_all, scan
from tests.integration.serving import EMBEDDED_LIMITS, Server
from tests.integration.swift import READER, READER_SECRET, Swift, running_swift
from tests.tiny_tokenizer import build_tiny_tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("OBJECT_STORE_PYTHON" not in os.environ, reason="`make object-store` has the package swift"),
]
MIB = 1 << 20
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


def objects(swift: Swift, bucket: str) -> set[str]:
    name, _, prefix = bucket.removeprefix("s3://").partition("/")
    return {one["path"].removeprefix(f"{prefix}/") for some in obstore.list(swift.store(name), prefix) for one in some}


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
        ({"AWS_ACCESS_KEY_ID": READER, "AWS_SECRET_ACCESS_KEY": READER_SECRET}, None, "AccessDenied.*check the cred"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, None, r"Connection refused.*check AWS_ENDPOINT_URL"),
    ],
    ids=["absent", "wrong-key", "denied", "away"],
)
def test_a_server_whose_bucket_cannot_be_used_does_not_start(
    swift: Swift, bucket: str, tmp_path: Path, changes: dict[str, str], url: str | None, told: str
) -> None:
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


def test_a_batch_waits_while_the_store_is_away(
    swift: Swift, bucket: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer = Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    engine = FakeEngine(tokenizer, reply="x")
    engine.first_delay = 0.5
    storage = Storage(tmp_path / "storage", bucket=lambda: open_bucket(bucket, 512 * MIB))
    with running_server(engine, HttpConfig(), storage=storage) as url, httpx.Client(base_url=url, timeout=60) as http:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="None", max_retries=0, timeout=60)
        kept = upload(http).raise_for_status().json()["id"]
        batch = submit(client, jsonl(chat_line(number) for number in range(50)))
        wait_for(client, batch.id, "in_progress")
        swift.stop("proxy")  # which answers clients
        try:
            for answer in (upload(http), http.get(f"/v1/files/{kept}/content")):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "blob_store_unavailable")
            assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
            time.sleep(2)
            assert client.batches.retrieve(batch.id).status in ("in_progress", "finalizing")
        finally:
            swift.start()
        done = wait_for(client, batch.id, seconds=90.0)
        output, errors = both(client, done)
        assert [one["custom_id"] for one in output] == [f"line-{number}" for number in range(50)]
        assert (done.status, errors) == ("completed", [])
        assert http.get(f"/v1/files/{kept}/content").content == CONTENT
    assert objects(swift, bucket) == {kept, batch.input_file_id, done.output_file_id}


@pytest.fixture
def start(environment: None, bucket: str, tmp_path: Path) -> Iterator["Start"]:
    with contextlib.ExitStack() as stack:
        yield Start(stack, bucket, tmp_path)


class Start:
    """Starts a real server on the bucket, as often as it is called."""

    def __init__(self, stack: contextlib.ExitStack, bucket: str, folder: Path) -> None:
        self._stack, self._bucket, self._folder, self._count = stack, bucket, folder, 0

    def __call__(self) -> Server:
        self._count += 1
        storage = shlex.quote(str(self._folder / "storage"))
        server = Server(
            f"{sys.executable} -m palladio serve --host 127.0.0.1 {EMBEDDED_LIMITS} --blob-store {self._bucket} "
            f"--file-storage-path {storage}",
            self._folder / f"log{self._count}",
        )
        self._stack.callback(server.stop)
        return server


def kill(server: Server) -> None:
    server.process.kill()
    server.process.wait(30)


def sweep(bucket: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a day had passed."""
    monkeypatch.setattr(blob_bucket, "SETTLING", -3600.0)

    async def run(storage: Storage) -> None:
        files = FileStore(storage.database, storage.blobs)
        await files.check()
        await files.remove_leftovers()

    with contextlib.closing(Storage(folder, bucket=lambda: open_bucket(bucket, 512 * MIB))) as storage:
        asyncio.run(run(storage))


def test_a_server_killed_within_an_upload_leaves_no_file(
    swift: Swift, bucket: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    kept = upload(server.http).json()["id"]
    head = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    before = swift.num_stored()
    with socket.create_connection((server.http.base_url.host, server.http.base_url.port)) as connection:
        connection.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n"
            b"Content-Type: multipart/form-data; boundary=B\r\n\r\n" + head + random.randbytes(17 * MIB)
        )
        deadline = time.monotonic() + 30
        while swift.num_stored() < before + 2:  # parts
            assert time.monotonic() < deadline
            time.sleep(0.05)
        kill(server)
    assert objects(swift, bucket) == {blob_bucket.OWNER, kept}
    orphan = new_id(RESULT_PREFIX)
    asyncio.run(open_bucket(bucket, MIB).put(orphan, one_piece(b"of a server that was killed before the row")))
    server = start()
    assert [one["id"] for one in server.http.get("/v1/files").json()["data"]] == [kept]
    assert server.http.get(f"/v1/files/{kept}/content").content == CONTENT
    server.stop()
    assert orphan in objects(swift, bucket)  # it is not a day old
    sweep(bucket, tmp_path / "storage", monkeypatch)
    assert objects(swift, bucket) == {blob_bucket.OWNER, kept}


def test_a_server_killed_while_it_writes_results_leaves_one_file_of_them(
    swift: Swift, bucket: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, number = {blob_bucket.OWNER}, 24
    for delay in (0.0, 0.02, 0.1):
        server = start()
        with server.client() as client:
            lines = [chat_line(line, model=DEFAULT_MODEL_NAME, max_tokens=2) for line in range(number)]
            lines[3]["body"]["temperature"] = -1
            batch = submit(client, jsonl(lines))
            while (found := client.batches.retrieve(batch.id)).status in ("validating", "in_progress"):
                time.sleep(0.005)
            time.sleep(delay)
            kill(server)
        server = start()
        with server.client() as client:
            found = wait_for(client, batch.id, seconds=60.0)
            output, errors = both(client, found)
            listed = [one.id for one in client.files.list(purpose="batch_output")]
        server.stop()
        ids = [one["custom_id"] for one in (*output, *errors)]
        assert sorted(ids) == sorted(f"line-{line}" for line in range(number))
        assert (found.status, len(errors)) == ("completed", 1)
        known |= {found.input_file_id, found.output_file_id, found.error_file_id}
        assert set(listed) == {name for name in known if name.startswith(RESULT_PREFIX)}
    sweep(bucket, tmp_path / "storage", monkeypatch)
    assert objects(swift, bucket) == known
