"""Batches and uploads that are broken off at awkward moments, or find the disk ill: nothing is lost or twice."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from palladio.http.batches.batch_run import BatchRun
from palladio.http.batches.batch_store import BatchStore
from palladio.http.files import routes_files
from palladio.http.files.file_store import INPUT_PREFIX
from palladio.http.files.upload import Upload
from palladio.http.responses.response_store import ResponseStore
from palladio.http.security.callers import SERVER
from palladio.http.settings.http_config import HttpConfig
from palladio.http.storage.records import retries
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import MODEL, FakeEngine
from tests.http.batches.batch_files import chat_line, jsonl
from tests.http.batches.batch_server import serving
from tests.http.storage.blobs.pieces import one_piece


async def test_a_stop_while_the_last_transaction_is_under_way_loses_no_file(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, end = asyncio.Event(), BatchStore.end

    async def told(store: BatchStore, *arguments: Any) -> Any:
        asyncio.get_running_loop().call_soon(reached.set)  # when it has been handed to the database
        return await end(store, *arguments)

    monkeypatch.setattr(BatchStore, "end", told)
    async with serving(tmp_path, FakeEngine(tokenizer, reply="x")) as server:
        batch_id = await server.submit(jsonl([*(chat_line(number) for number in range(5)), "bad"]))
        await reached.wait()
        await server.worker.stop()
    async with serving(tmp_path, FakeEngine(tokenizer, reply="x")) as server:
        batch = await server.ended(batch_id)
        assert (batch.status, batch.completed, batch.failed) == ("completed", 5, 1)
        assert len(server.results(batch.output_file_id)) == 5
        assert len(server.results(batch.error_file_id)) == 1


async def test_an_upload_that_is_cancelled_while_it_is_made_known_is_a_whole_file(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, FakeEngine(tokenizer)) as server:
        new = await server.files.put(INPUT_PREFIX, one_piece(b"content"))

        async def read(*_: object) -> Upload:
            return Upload(new, "a.jsonl", "batch", None)

        monkeypatch.setattr(routes_files, "read_upload", read)
        begun, go_on = threading.Event(), threading.Event()
        busy = asyncio.ensure_future(server.storage.database.run(lambda _: begun.set() or go_on.wait()))
        add, reached = server.files.add, asyncio.Event()

        async def told(*arguments: Any) -> None:
            asyncio.get_running_loop().call_soon(reached.set)
            await add(*arguments)

        monkeypatch.setattr(server.files, "add", told)
        upload = asyncio.ensure_future(routes_files._upload(Request({"type": "http"}), SERVER, server.files, 100))
        await reached.wait()
        upload.cancel()
        await asyncio.wait([upload])
        assert upload.cancelled()
        go_on.set()
        await busy
        file = await server.files.get(new.id, SERVER)
        assert (server.storage.files / file.id).read_bytes() == b"content"


async def test_one_run_of_a_batch_at_a_time_however_often_it_is_begun_again(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, num_begun = 0, 0, 0

    async def run(_: BatchRun) -> None:
        nonlocal running, most, num_begun
        num_begun += 1
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)  # such as a last transaction
            running -= 1

    monkeypatch.setattr(BatchRun, "run", run)
    async with serving(tmp_path, FakeEngine(tokenizer)) as server:
        for _ in range(3):
            server.worker.run("batch_a")
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert (num_begun, running, most) == (2, 1, 1)  # the second was dropped while it waited for the first
        server.worker.run("batch_a")
        await server.worker.stop()
        assert running == 0


def response_line(number: int, **body: Any) -> dict[str, Any]:
    full = {"model": MODEL, "input": "hi", "max_output_tokens": 16} | body
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/responses", "body": full}


def failing(original: Callable[..., Any], errors: list[Exception]) -> Callable[..., Any]:
    """Raises these one after the other, then does what it should."""

    async def run(*arguments: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return await original(*arguments)

    return run


def sqlite_error(message: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(("num_lines", "delay"), [(10, 0.0), (1, 0.1)])  # while lines are read, and after that
async def test_an_answer_that_cannot_be_stored_makes_the_batch_wait(
    tmp_path: Path,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    num_lines: int,
    delay: float,
) -> None:
    errors: list[Exception] = [
        sqlite_error("database or disk is full", sqlite3.SQLITE_FULL),
        sqlite_error("database is locked", sqlite3.SQLITE_BUSY),
        OSError(5, "Input/output error"),
    ]
    monkeypatch.setattr(ResponseStore, "add", failing(ResponseStore.add, errors))
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.02)
    engine = FakeEngine(tokenizer, reply="x")
    engine.first_delay = delay
    async with serving(tmp_path, engine) as server:
        lines = [response_line(number, store=True) for number in range(num_lines)]
        batch = await server.ended(await server.submit(jsonl(lines), "/v1/responses"))
    assert errors == []
    assert (batch.status, batch.completed, batch.failed) == ("completed", num_lines, 0)
    assert "stopped and is retried" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_line_that_is_run_again_takes_the_place_of_what_it_stored(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [sqlite_error("disk I/O error", sqlite3.SQLITE_IOERR)]
    monkeypatch.setattr(BatchStore, "add_results", failing(BatchStore.add_results, errors))
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.02)
    engine = FakeEngine(tokenizer, reply="x")
    async with serving(tmp_path, engine) as server:
        batch = await server.ended(await server.submit(jsonl([response_line(1, store=True)]), "/v1/responses"))
        (result,) = server.results(batch.output_file_id)
        query = "SELECT id FROM responses"
        stored = await server.storage.database.run(lambda connection: [row["id"] for row in connection.execute(query)])
    assert len(engine.calls) == 2
    assert stored == [result["response"]["body"]["id"]] == [f"resp_{batch.id}-req_1"]


async def test_a_limit_that_was_lowered_while_a_batch_ran(tmp_path: Path, tokenizer: Tokenizer) -> None:
    engine = FakeEngine(tokenizer)
    engine.state = "starting"
    async with serving(tmp_path, engine) as server:
        batch_id = await server.submit(jsonl([chat_line(1), chat_line(2, user="x" * 1000)]))
        await server.wait_for(batch_id, lambda batch: batch.status == "in_progress")
    async with serving(tmp_path, FakeEngine(tokenizer, reply="x"), HttpConfig(max_request_bytes=500)) as server:
        batch = await server.ended(batch_id)
        assert (batch.status, batch.completed, batch.failed) == ("completed", 1, 1)
        (error,) = server.results(batch.error_file_id)
        assert (error["response"], error["error"]["code"]) == (None, "line_too_large")
