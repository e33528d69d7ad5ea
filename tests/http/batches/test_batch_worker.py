"""BatchWorker against a real SQLite store, without HTTP: what survives a server that ends at any moment."""

import asyncio
import contextlib
import itertools
import re
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from palladio.http.batches.batch import Batch
from palladio.http.batches.line_runner import MAX_CRASHES
from palladio.http.security.callers import SERVER
from palladio.http.storage.blobs import blob_folder
from palladio.http.storage.records.sqlite import SqliteDatabase
from palladio.runtime.interface.errors import EngineDeadError
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.http.batches.batch_files import chat_line, jsonl
from tests.http.batches.batch_server import Server, serving
from tests.http.conftest import OpenStorage
from tests.properties import examples


async def test_a_stop_aborts_lines_at_once_and_the_next_server_runs_only_what_is_missing(
    tmp_path: Path, tokenizer: Tokenizer, open_storage: OpenStorage
) -> None:
    first = FakeEngine(tokenizer, reply="x")
    first.delay = 0.01
    async with serving(tmp_path, first, None, open_storage) as server:
        batch_id = await server.submit(jsonl([chat_line(number) for number in range(300)]))
        done = await server.wait_for(batch_id, lambda batch: batch.completed > 0)
        await server.worker.stop()
        assert not first._running
        assert (await server.store.get(batch_id, SERVER)).status == "in_progress"
        done = await server.store.get(batch_id, SERVER)
        kept = await server.store.lines_done(batch_id)
        server.worker.run(batch_id)  # after the stop: left to the next server
    assert done.completed == len(kept) < 300
    second = FakeEngine(tokenizer, reply="x")
    async with serving(tmp_path, second, None, open_storage) as server:
        batch = await server.ended(batch_id)
        assert (batch.status, batch.completed, batch.failed) == ("completed", 300, 0)
        assert len(second.calls) == 300 - len(kept)
        found = [one["custom_id"] for one in server.results(batch.output_file_id)]
    assert found == [f"line-{number}" for number in range(300)]


class Killed(Exception):
    """The server has ended at this point."""


class Killer:
    """Ends a server at one of the moments when it does something to the disk; nothing happens there any more.

    Args:
        countdown: moments before that.
    """

    def __init__(self, countdown: int, patch: pytest.MonkeyPatch) -> None:
        self.countdown = countdown
        self._wrap(patch, SqliteDatabase, "_transact")
        for name in ("__init__", "write", "seal", "discard"):
            self._wrap(patch, blob_folder._NewFile, name)
        unlink = blob_folder._unlink
        patch.setattr(blob_folder, "_unlink", lambda paths: self._around(unlink, paths))

    @property
    def has_struck(self) -> bool:
        return self.countdown < 0

    def _wrap(self, patch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        original = vars(kind)[name]
        patch.setattr(kind, name, lambda *arguments: self._around(original, *arguments))

    def _around(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self._step()
        result = work(*arguments)
        self._step()  # it is done, and nobody has heard of it
        return result

    def _step(self) -> None:
        self.countdown -= 1
        if self.has_struck:
            raise Killed


LINES = [
    *(chat_line(number) for number in range(40)),
    "{bad",
    chat_line(3),
    chat_line(50, temperature=-1),
    *(chat_line(number) for number in range(60, 90)),
]


async def run_with_kills(folder: Path, tokenizer: Tokenizer, kills: list[int], cancels: bool) -> None:
    async with serving(folder, FakeEngine(tokenizer, reply="x")) as server:
        await server.worker.stop()
        batch_id = await server.submit(jsonl(LINES))
        if cancels:
            await server.store.begin(batch_id, total=len(LINES), last_line=len(LINES), model="m")
            await server.store.cancel(batch_id, SERVER)
    for countdown in kills:
        with pytest.MonkeyPatch.context() as patch:
            server = Server(folder, FakeEngine(tokenizer, reply="x"))
            killer = Killer(countdown, patch)
            with contextlib.suppress(Killed):
                await server.worker.start()
            while not killer.has_struck and server.worker._tasks:
                await asyncio.sleep(0.002)
            killer.countdown = -1
            await server.worker.stop()
        server.storage.close()
    async with serving(folder, FakeEngine(tokenizer, reply="x")) as server:
        batch = await server.ended(batch_id)
        output, errors = server.results(batch.output_file_id), server.results(batch.error_file_id)
        assert batch.status == ("cancelled" if cancels else "completed")
        assert (len(output), len(errors)) == (batch.completed, batch.failed + batch.num_left)
        assert batch.total == len(LINES) == len(output) + len(errors)
        if not cancels:
            good = [f"line-{number}" for number in (*range(40), *range(60, 90))]
            assert [one["custom_id"] for one in output] == good
            assert [one["custom_id"] for one in errors] == [None, "line-3", "line-50"]
            usage = Counter[str]()
            for one in output:
                usage.update({"input": one["response"]["body"]["usage"]["prompt_tokens"]})
            assert batch.input_tokens == usage["input"]
    left = {path.name for path in (folder / "files").iterdir()}
    assert left == {batch.input_file_id, *filter(None, (batch.output_file_id, batch.error_file_id))}
    with contextlib.closing(sqlite3.connect(folder / "palladio.db")) as connection:
        for table in ("batch_results", "batch_crashes", "file_holds"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


@examples(8)
@hypothesis.given(kills=st.lists(st.integers(0, 60), max_size=4), cancels=st.booleans())
def test_every_line_has_one_result_wherever_servers_end(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, kills: list[int], cancels: bool
) -> None:
    caplog.set_level("CRITICAL")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run_with_kills(Path(folder), tokenizer, kills, cancels))


class FragileEngine(FakeEngine):
    """Fails whenever it meets a prompt that `kills`, and takes all requests with it; is ready again soon after, but not
    after `last` failures.

    Attributes:
        lost: the text of each request that it had when it failed, failure by failure.
    """

    def __init__(self, tokenizer: Tokenizer, kills: Callable[[list[int]], bool], last: int | None = None) -> None:
        super().__init__(tokenizer, reply="x")
        self.kills = kills
        self._last = last
        self.num_failures = 0
        self._failed = asyncio.Event()
        self.lost: dict[int, list[str]] = {}
        self.first_delay = 0.05

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Any]:
        failed, number = self._failed, self.num_failures
        async with contextlib.aclosing(super().generate(request)) as outputs:
            async for output in outputs:
                if not failed.is_set() and self.kills(request.prompt_ids):
                    self.num_failures += 1
                    failed.set()
                    self._failed, self.state = asyncio.Event(), "restarting"
                    if self.num_failures != self._last:
                        asyncio.get_running_loop().call_later(0.05, setattr, self, "state", "ready")
                if failed.is_set():
                    self.lost.setdefault(number, []).append(self.tokenizer.decode(request.prompt_ids))
                    raise EngineDeadError("it failed")
                yield output


async def test_a_line_that_kills_the_engine_gets_a_500_and_its_neighbours_their_answers(
    tmp_path: Path, tokenizer: Tokenizer, open_storage: OpenStorage
) -> None:
    poison = chat_line(7)
    poison["body"]["messages"][0]["content"] = "poison"
    word = tokenizer.encode("poison", False)
    engine = FragileEngine(tokenizer, lambda ids: any(ids[i : i + len(word)] == word for i in range(len(ids))))
    async with serving(tmp_path, engine, None, open_storage) as server:
        lines = [chat_line(number) for number in range(200)]
        lines[7] = poison
        batch = await server.ended(await server.submit(jsonl(lines)))
        assert (batch.status, batch.completed, batch.failed) == ("completed", 199, 1)
        (error,) = server.results(batch.error_file_id)
        assert (error["custom_id"], error["response"]["status_code"]) == ("line-7", 500)
        assert error["response"]["body"]["error"]["message"] == BLAME
        assert engine.num_failures == MAX_CRASHES


BLAME = (
    "the engine failed 3 times while it had this line, the last time with no other line that it had failed with as "
    "often, so this line may be the cause and is not run again; look for what is unusual in it. If the engine ended "
    "for another reason, send the line again in a new batch. The last failure: it failed"
)


@pytest.mark.slow  # one line that kills is above
async def test_lines_fail_that_were_there_at_three_crashes_and_no_others_however_often_somebody_kills_the_engine(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    asked = itertools.count(1)
    engine = FragileEngine(tokenizer, lambda ids: engine.num_failures < 8 and next(asked) % 9 == 0)
    async with serving(tmp_path, engine) as server:
        batch = await server.ended(await server.submit(jsonl([chat_line(number) for number in range(150)])))
        failed = {
            error["custom_id"]: error["response"]["body"]["error"] for error in server.results(batch.error_file_id)
        }
    assert engine.num_failures == 8
    seen = Counter[str]()
    for texts in engine.lost.values():
        names = [f"line-{re.findall(r'hi ([0-9]+)', text)[0]}" for text in texts]
        assert sum(seen[name] >= MAX_CRASHES - 1 for name in names) <= 1, "it is not clear which of them it was"
        seen.update(names)
    assert failed
    assert set(failed) == {name for name, count in seen.items() if count >= MAX_CRASHES}
    assert all(error["message"] == BLAME for error in failed.values())
    assert batch.completed == 150 - len(failed)


async def test_crashes_are_remembered_by_the_next_server(
    tmp_path: Path, tokenizer: Tokenizer, open_storage: OpenStorage
) -> None:
    engine = FragileEngine(tokenizer, lambda ids: True, last=MAX_CRASHES - 1)
    async with serving(tmp_path, engine, None, open_storage) as server:
        batch_id = await server.submit(jsonl([chat_line(1)]))
        async with asyncio.timeout(20):
            while await server.store.crashes(batch_id) != {1: MAX_CRASHES - 1}:
                await asyncio.sleep(0.001)
    engine = FragileEngine(tokenizer, lambda ids: True)
    async with serving(tmp_path, engine, None, open_storage) as server:
        batch = await server.ended(batch_id)
        assert (batch.completed, batch.failed) == (0, 1)
        assert engine.num_failures == 1


async def test_an_engine_that_is_dead_for_good_leaves_the_batch_for_the_next_server(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    dead = FakeEngine(tokenizer)
    dead.state, dead.failure = "dead", "out of memory"
    async with serving(tmp_path, dead) as server:
        batch_id = await server.submit(jsonl([chat_line(1)]))
        await server.wait_for(batch_id, lambda batch: batch.status == "in_progress")
        await asyncio.sleep(0.3)
        assert (await server.store.get(batch_id, SERVER)).failed == 0
    async with serving(tmp_path, FakeEngine(tokenizer, reply="x")) as server:
        assert (await server.ended(batch_id)).completed == 1


async def test_a_full_disk_delays_a_batch(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    engine = FakeEngine(tokenizer, reply="x")
    engine.first_delay = 0.2
    async with serving(tmp_path, engine) as server:
        batch_id = await server.submit(jsonl([chat_line(1)]))
        with monkeypatch.context() as patch:
            patch.setattr(blob_folder._NewFile, "seal", full)
            await server.wait_for(batch_id, lambda batch: batch.status == "finalizing")
            async with asyncio.timeout(10):
                while "stopped and is retried" not in caplog.text:
                    await asyncio.sleep(0.01)
            assert {path.name for path in server.storage.files.iterdir()} == {
                (await server.store.get(batch_id, SERVER)).input_file_id
            }
        batch = await server.ended(batch_id)
        assert (batch.status, len(server.results(batch.output_file_id))) == ("completed", 1)


async def test_contents_that_somebody_removed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    engine = FakeEngine(tokenizer, reply="x")
    engine.state = "starting"
    async with serving(tmp_path, engine) as server:
        running = await server.submit(jsonl([chat_line(1)]))
        batch = await server.wait_for(running, lambda batch: batch.status == "in_progress")
        await server.worker.stop()
        (server.storage.files / batch.input_file_id).unlink()
        fresh = await server.submit(jsonl([chat_line(1)]))
        (server.storage.files / (await server.store.get(fresh, SERVER)).input_file_id).unlink()
    async with serving(tmp_path, FakeEngine(tokenizer, reply="x")) as server:
        batch = await server.ended(running)
        assert (batch.status, batch.total, batch.completed, batch.failed) == ("completed", 1, 0, 0)
        batch = await server.ended(fresh)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert "gone from the server's storage" in batch.errors


async def test_each_change_of_status_is_one_line_of_the_log_and_lines_are_none(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(tmp_path, FakeEngine(tokenizer, reply="x")) as server:
        batch = await server.ended(await server.submit(jsonl([chat_line(number) for number in range(50)])))
    told = [record.getMessage() for record in caplog.records if "atch" in record.getMessage()]
    assert [line.partition(": ")[2].partition(",")[0] for line in told] == ["in_progress", "finalizing", "completed"]
    assert all(batch.id in line for line in told)
    assert "50 completed and 0 failed of 50 lines" in told[-1]
    assert "hi 7" not in caplog.text


async def test_a_database_that_is_deleted_under_a_batch_loses_no_line(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch waits, and says so; from the copy that was saved, the next server runs only what is missing."""
    first = FakeEngine(tokenizer, reply="x")
    first.delay = 0.01
    async with serving(tmp_path, first) as server:
        batch_id = await server.submit(jsonl([chat_line(number) for number in range(300)]))
        await server.wait_for(batch_id, lambda batch: batch.completed > 0)
        (tmp_path / "palladio.db").unlink()
        async with asyncio.timeout(30):
            while not any(f"Batch {batch_id} stopped and is retried" in text for text in caplog.messages):
                await asyncio.sleep(0.01)
    assert len([text for text in caplog.messages if "was deleted or replaced while the server ran" in text]) == 1
    assert not (tmp_path / "palladio.db").exists()
    (saved,) = tmp_path.glob("palladio.db.saved-*")
    for left in tmp_path.glob("palladio.db-*"):
        left.unlink()
    saved.rename(tmp_path / "palladio.db")
    second = FakeEngine(tokenizer, reply="x")
    async with serving(tmp_path, second) as server:
        batch = await server.ended(batch_id)
        assert (batch.status, batch.completed, batch.failed) == ("completed", 300, 0)
        found = [one["custom_id"] for one in server.results(batch.output_file_id)]
    assert found == [f"line-{number}" for number in range(300)]
    assert len(second.calls) < 300


async def test_results_are_written_though_the_folder_of_contents_is_gone(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with serving(tmp_path, FakeEngine(tokenizer, reply="x")) as server:
        seal = asyncio.Event()
        finalize = server.store.finalize

        async def finalize_without_folder(batch_id: str, *, is_expired: bool) -> Batch:
            shutil.rmtree(server.storage.files)
            seal.set()
            return await finalize(batch_id, is_expired=is_expired)

        server.store.finalize = finalize_without_folder  # type: ignore[method-assign]
        batch = await server.ended(await server.submit(jsonl([chat_line(number) for number in range(9)])))
        assert seal.is_set()
        assert (batch.status, batch.completed) == ("completed", 9)
        assert len(server.results(batch.output_file_id)) == 9
