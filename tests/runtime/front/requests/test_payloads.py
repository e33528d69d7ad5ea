"""The rows of prompts are in files while requests have them, however these end."""

import asyncio
import contextlib
import fcntl
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.requests import payloads
from palladio.runtime.front.requests.payloads import PayloadStore
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import EngineDeadError, EngineNotReadyError, InvalidRequestError, OverloadedError
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.prompt_parts import Media, join_parts
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.transport import ThreadTransport
from tests.runtime.fake_core import FakeEngineCore, started

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]


def made(path: str) -> int:
    return Path(path).parent.stat().st_mode & 0o777


async def test_one_file_a_content_while_somebody_has_it(folder):
    store = PayloadStore()
    one, other = Media.of(ROWS), Media.of(-ROWS)
    first, second = await asyncio.gather(store.keep([one, other]), store.keep([one]))
    assert first[0].path == second[0].path != first[1].path
    assert made(first[0].path) == 0o700
    assert first[0].content == b"", "it does not travel"
    assert len(files(folder)) == 2
    np.testing.assert_array_equal(first[1].read(), -ROWS)
    store.drop(first)
    assert [str(path) for path in files(folder)] == [second[0].path]
    (again,) = await store.keep([other])
    np.testing.assert_array_equal(again.read(), -ROWS)
    held = again.read()
    store.drop([again])
    store.drop(second)
    assert files(folder) == []
    np.testing.assert_array_equal(held, -ROWS)  # who reads it still does
    with pytest.raises(InvalidRequestError, match="cannot be read: No such file"):
        again.read()
    store.close()
    assert list(folder.iterdir()) == []


async def test_what_a_killed_server_left_is_removed(folder):
    left, others, fresh = (folder / f"palladio-media-{name}" for name in ("left", "others", "fresh"))
    for path in (left, others, fresh):
        path.mkdir()
        (path / "rows").touch()
    (left / "lock").touch()
    with (others / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store, second = PayloadStore(), PayloadStore()
        kept = [await each.keep([Media.of(ROWS)]) for each in (store, second)]
    np.testing.assert_array_equal(kept[0][0].read(), ROWS)
    assert [path.exists() for path in (left, others, fresh)] == [False, True, True], "it may not have its lock yet"
    store.close()
    second.close()
    assert sorted(folder.iterdir()) == [fresh, others]


async def test_a_full_disk(folder, monkeypatch):
    async def write(handle, content):
        with open(handle, "wb"):
            raise OSError(28, "No space left on device")

    store = PayloadStore()
    (kept,) = await store.keep([Media.of(ROWS)])
    monkeypatch.setattr(payloads, "_write", write)
    results = await asyncio.gather(
        *(store.keep([Media.of(ROWS), Media.of(-ROWS)]) for _ in range(2)), return_exceptions=True
    )
    for error in results:
        assert isinstance(error, OverloadedError)
        assert str(error).endswith("the temporary directory (No space left on device): set TMPDIR")
    assert [str(path) for path in files(folder)] == [kept.path]
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    store.drop(await store.keep([Media.of(-ROWS)]))
    store.drop([kept])
    assert files(folder) == []


async def test_a_caller_that_leaves_while_its_rows_are_written(folder):
    store = PayloadStore()
    keeping = asyncio.create_task(store.keep([Media.of(ROWS)]))
    await asyncio.sleep(0)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    for _ in range(100):
        if not files(folder):
            break
        await asyncio.sleep(0.01)
    assert files(folder) == []


class Core(FakeEngineCore):
    """Reads the rows when a request comes, as the real one does."""

    def add(self, request):
        self.rows = [part.read() for part in request.media]
        self.paths = [part.path for part in request.media]
        assert all(part.content == b"" for part in request.media)
        super().add(request)


@contextlib.asynccontextmanager
async def running(folder, **knobs):
    cores = []

    def create(config, on_progress, on_fatal):
        cores.append(Core(config, knobs))
        return cores[0]

    flags = {"model_path": str(folder), "skip_tokenizer_init": True, "json_model_override_args": json.dumps(knobs)}
    engine = AsyncEngine(EngineConfig.from_flags(flags), ThreadTransport(create))
    async with started(engine):
        yield engine, cores[0]


def request(name="r", rows=ROWS, **params):
    ids, media = join_parts([[5], Media.of(rows), [6]])
    return GenerationRequest(name, ids, SamplingParams(**{"max_tokens": 5, **params}), media=media)


async def read(engine, asked):
    return [output async for output in engine.generate(asked)]


async def test_files_are_gone_when_requests_have_ended(folder):
    async with running(folder) as (engine, core):
        await read(engine, request(n=2))
        np.testing.assert_array_equal(core.rows[0], ROWS)
        assert [made.media[0].start for made in core.requests] == [1, 1]
        with pytest.raises(InvalidRequestError, match="superstitious"):
            await read(engine, request(logit_bias={13: 13.0}))
        with pytest.raises(InvalidRequestError, match="prompt_logprobs needs a prompt of token ids alone"):
            await read(engine, request(prompt_logprobs=1))
        assert files(folder) == []
        await read(engine, GenerationRequest("text", [5], SamplingParams(max_tokens=1)))
    assert list(folder.iterdir()) == []


async def test_files_are_gone_when_requests_are_cut_short(folder):
    async with running(folder, step_delay=0.01) as (engine, _):
        outputs = engine.generate(request("left", max_tokens=200))
        await anext(outputs)
        assert len(files(folder)) == 1
        await outputs.aclose()
        assert files(folder) == []
        reading = asyncio.create_task(read(engine, request("aborted", max_tokens=200)))
        twin = asyncio.create_task(read(engine, request("twin", max_tokens=200)))
        while len(engine._streams._streams) < 2:
            await asyncio.sleep(0.005)
        with pytest.raises(InvalidRequestError, match="already running"):
            await read(engine, request("twin"))
        assert len(files(folder)) == 1, "three requests had it"
        await engine.abort("aborted")
        await reading
        assert len(files(folder)) == 1, "its twin has it still"
        twin.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await twin
        assert files(folder) == []
        running_on = asyncio.create_task(read(engine, request("at the end", max_tokens=200)))
        while not engine._streams._streams:
            await asyncio.sleep(0.005)
    with pytest.raises(EngineNotReadyError, match="--drain-timeout"):
        await running_on
    assert list(folder.iterdir()) == []


async def test_an_engine_that_dies_while_rows_are_written(folder, monkeypatch):
    """Whoever waited for the disk is told, and leaves nothing behind."""
    write = payloads._write

    async def slow(handle, content):
        await asyncio.sleep(0.05)
        await write(handle, content)

    monkeypatch.setattr(payloads, "_write", slow)
    async with running(folder, fail_at_step=1) as (engine, _):
        reading = asyncio.create_task(read(engine, request()))
        with pytest.raises(EngineDeadError):
            await read(engine, GenerationRequest("text", [5], SamplingParams(max_tokens=1)))
        with pytest.raises((EngineDeadError, EngineNotReadyError)):
            await asyncio.wait_for(reading, 10)
        assert files(folder) == []
