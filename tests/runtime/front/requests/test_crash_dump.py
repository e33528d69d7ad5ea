"""What a crash leaves behind: which requests are remembered, the file, and disks that do not take it."""

import asyncio
import json
import os
import resource
import stat
import time

import pytest

from palladio.runtime.folders.private_folder import NUM_KEPT
from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.requests.crash_dump import (
    FORMAT,
    MAX_AGE,
    MAX_FINISHED,
    MAX_TOKENS,
    CrashRecorder,
    prepare_folder,
    write_dump,
)
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, EngineDeadError
from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.transport import ThreadTransport
from tests.runtime.fake_core import FACTORY, make_ready
from tests.runtime.process.crashes import QUEUED, kill, once, running, serve_and_queue, tokens, until

LENGTH = FinishReason("length")


def request(request_id, prompt_ids=(5, 6), received=0.0):
    params = SamplingParams(max_tokens=4, seed=2**64 - 1, logit_bias={3: -1.5}, stop=["x"])
    return GenerationRequest(request_id, list(prompt_ids), params, (2,), received)


def recorder():
    now = [1000.0]
    return CrashRecorder(clock=lambda: now[0]), now


def test_running_and_finished_samples_are_remembered_by_arrival():
    record, now = recorder()
    record.begin([request("late", received=2.0)])
    record.begin([request("early", received=1.0)])
    record.add_tokens("late", [])
    record.add_tokens("late", [7, 8])
    now[0] += 1
    record.add_tokens("late", [9])
    record.end("late", LENGTH)
    record.end("late", FinishReason("abort"))  # ended already
    early, late = record.samples()
    assert (early.request.request_id, early.token_ids, early.finish) == ("early", [], None)
    assert (late.token_ids, late.finish, late.first_token, late.finished) == ([7, 8, 9], LENGTH, 1000.0, 1001.0)
    late.token_ids.append(1)
    assert record.samples()[1].token_ids == [7, 8, 9]


def test_what_has_finished_is_forgotten_by_age_number_and_size():
    record, now = recorder()

    def finish(request_id, prompt_ids=(1,)):
        record.begin([request(request_id, prompt_ids, received=now[0])])
        record.end(request_id, LENGTH)

    record.begin([request("running", [1] * MAX_TOKENS)])  # never forgotten
    for i in range(MAX_FINISHED + 5):
        finish(f"{i}")
    assert len(record.samples()) == MAX_FINISHED + 1
    assert record.samples()[1].request.request_id == "5"
    finish("large", [1] * (MAX_TOKENS - 3))
    assert [sample.request.request_id for sample in record.samples()][1:] == ["1002", "1003", "1004", "large"]
    finish("larger", [1] * (MAX_TOKENS + 1))
    assert [sample.request.request_id for sample in record.samples()] == ["running"]
    finish("old")
    now[0] += MAX_AGE + 1
    assert [sample.request.request_id for sample in record.samples()] == ["running"]


def test_the_file(tmp_path, caplog):
    record, _ = recorder()
    record.begin([request("a")])
    record.add_tokens("a", [7])
    before = time.time()
    write_dump(tmp_path, "it broke", {"page_size": 8}, make_ready(), record.samples())
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("crash-20")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = json.loads(path.read_text())
    assert (content["format"], content["failure"], content["flags"]) == (FORMAT, "it broke", {"page_size": 8})
    assert before <= content["written"] <= time.time()
    assert {"palladio", "python", "jax", "jaxlib"} == set(content["versions"])
    assert content["ready"]["vocab_size"] == make_ready().vocab_size
    (sample,) = content["requests"]
    assert (sample["request"]["prompt_ids"], sample["token_ids"], sample["finish"]) == ([5, 6], [7], None)
    assert sample["request"]["params"]["seed"] == 2**64 - 1
    assert str(path) in caplog.text


def test_a_full_disk_costs_a_warning(tmp_path, caplog):
    record, _ = recorder()
    record.begin([request("a", range(5000))])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        write_dump(tmp_path, "it broke", {}, make_ready(), record.samples())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"Cannot write the crash dump to {tmp_path}: [Errno 27] File too large" in caplog.text
    assert list(tmp_path.iterdir()) == []
    write_dump(tmp_path / "gone", "it broke", {}, make_ready(), record.samples())
    assert "No such file or directory" in caplog.text


def test_a_folder_that_cannot_be_written_is_a_mistake(tmp_path):
    made = prepare_folder(str(tmp_path / "a" / "b"))
    assert (list(made.iterdir()), stat.S_IMODE(made.stat().st_mode)) == ([], 0o700)
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nothing"):
        with pytest.raises(ConfigError, match=f"cannot write to --crash-dump-folder {folder}"):
            prepare_folder(str(folder))


async def test_a_server_with_such_a_folder_does_not_start(tmp_path):
    (tmp_path / "file").touch()
    flags = {"model_path": str(tmp_path), "skip_tokenizer_init": True, "crash_dump_folder": str(tmp_path / "file")}
    engine = AsyncEngine(EngineConfig.from_flags(flags), ThreadTransport(FACTORY))
    await engine.start()
    with pytest.raises(ConfigError, match="--crash-dump-folder"):
        await engine.wait_ready()


async def test_a_crash_leaves_a_dump(tmp_path):
    """Of those that ran, waited and had ended; and one for each crash."""
    folder = tmp_path / "dumps"
    async with running(tmp_path, once(tmp_path, QUEUED), crash_dump_folder=str(folder)) as engine:
        finished = await tokens(engine, "finished", max_tokens=3)
        served, waiting = await serve_and_queue(engine, 2)
        kill(engine)
        with pytest.raises(EngineDeadError):
            async for _ in served:
                pass
        await asyncio.gather(*waiting)
        await until(lambda: len(list(folder.glob("crash-*"))) == 1)
        kill(engine)
        await until(lambda: len(list(folder.glob("crash-*"))) == 2)
        first, second = (json.loads(path.read_text()) for path in sorted(folder.iterdir()))
    by_id = {sample["request"]["request_id"].partition("~")[0]: sample for sample in first["requests"]}
    assert list(by_id) == ["finished", "served", "w0", "w1"]
    assert by_id["finished"]["token_ids"] == [token for _, token in finished]
    assert by_id["finished"]["finish"]["type"] == "length"
    assert len(by_id["served"]["token_ids"]) > 0
    assert by_id["served"]["finish"] is None
    assert by_id["w0"]["token_ids"] == []
    assert "SIGKILL" in first["failure"]
    assert first["flags"]["crash_dump_folder"] == str(folder)
    assert [sample["finish"]["type"] for sample in second["requests"]] == ["length", "abort", "length", "length"]


@pytest.mark.slow  # tests/integration/test_survival.py has one
async def test_a_folder_that_vanishes_does_no_harm(tmp_path, caplog):
    folder = tmp_path / "dumps"
    async with running(tmp_path, once(tmp_path, QUEUED), crash_dump_folder=str(folder)) as engine:
        served, waiting = await serve_and_queue(engine, 2)
        os.rmdir(folder)
        kill(engine)
        assert [len(result) for result in await asyncio.gather(*waiting)] == [20, 20]
        await served.aclose()
    assert "Cannot write the crash dump" in caplog.text


async def test_offline_too(tmp_path):
    folder = tmp_path / "dumps"
    knobs = json.dumps({"fail_at_step": 3})
    flags = {"model_path": str(tmp_path), "skip_tokenizer_init": True, "json_model_override_args": knobs}
    config = EngineConfig.from_flags(flags | {"crash_dump_folder": str(folder)})
    engine = AsyncEngine(config, ThreadTransport(FACTORY))
    await engine.start()
    await engine.wait_ready()
    with pytest.raises(EngineDeadError, match="by the fake"):
        await tokens(engine, "r")
    assert engine.state == "dead"
    await engine.shutdown()
    (path,) = folder.iterdir()
    assert len(json.loads(path.read_text())["requests"][0]["token_ids"]) == 2


def test_the_folder_keeps_the_newest_dumps(tmp_path):
    for minute in range(NUM_KEPT + 5):
        (tmp_path / f"crash-20200101-00{minute:02}00-000-1.json").write_text("{}")
    (tmp_path / "notes.json").write_text("somebody else's")
    write_dump(tmp_path, "it broke", {}, make_ready(), CrashRecorder().samples())
    names = sorted(path.name for path in tmp_path.glob("crash-*"))
    assert len(names) == NUM_KEPT
    assert names[0] == "crash-20200101-000600-000-1.json"
    assert names[-1] > "crash-2026", "the new one"
    assert (tmp_path / "notes.json").exists()
