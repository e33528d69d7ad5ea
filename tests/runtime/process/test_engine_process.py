import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, EngineDeadError, InvalidRequestError
from palladio.runtime.interface.messages.calls import (
    AbortRequests,
    ControlReply,
    FlushCache,
    GetStats,
    Shutdown,
    StepOutputs,
)
from palladio.runtime.interface.messages.engine_state import EngineFailed, LoadProgress
from palladio.runtime.interface.messages.engine_stats import EngineStats, HistogramData, RankStats
from palladio.runtime.interface.outputs.request_trace import RequestTimes
from palladio.runtime.interface.outputs.token_output import FinishReason, PlainTokens, TokenLogprob, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.process.codec import from_engine_codec, to_engine_codec
from palladio.runtime.process.engine_child import EarlyEngine
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.runtime.process.transport import ThreadTransport
from tests.runtime.fake_core import EOS, FACTORY, FakeEngineCore, make_ready, next_token, started
from tests.tiny_tokenizer import build_tiny_tokenizer

REPOSITORY = Path(__file__).parents[3]


def make(tmp_path, transport=None, **knobs):
    flags = {"skip_tokenizer_init": True, "json_model_override_args": json.dumps(knobs), "max_engine_restarts": 0}
    config = EngineConfig.from_flags({"model_path": str(tmp_path), **flags})
    return AsyncEngine(config, transport or ProcessTransport(FACTORY))


@contextlib.asynccontextmanager
async def running(tmp_path, **knobs):
    engine = make(tmp_path, **knobs)
    async with started(engine):
        yield engine


async def collect(engine, prompt, request_id="r", **params):
    return [output async for output in engine.generate(GenerationRequest(request_id, prompt, SamplingParams(**params)))]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pid, seconds):
    deadline = time.monotonic() + seconds
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still alive after {seconds} s"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "message",
    [
        GenerationRequest(
            "a", [1, 2], SamplingParams(seed=2**64 - 1, logit_bias={3: -1.5}, stop=["x", "é"]), (2,), 1.5
        ),
        GenerationRequest("a", [1], SamplingParams(), (), 1.5, RequestOptions("salt", -7, 2.5)),
        AbortRequests(["a", "b"]),
        FlushCache(1),
        GetStats(2),
        Shutdown(),
    ],
)
def test_codec_to_engine(message):
    codec = to_engine_codec()
    assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        LoadProgress("load", 1, 2),
        make_ready(),
        EngineFailed("no", config=True),
        ControlReply(1, ok=True, stats=EngineStats([])),
        ControlReply(
            1,
            ok=True,
            stats=EngineStats(
                [RankStats()], RankStats(num_waiting=2), 6, device_idle=HistogramData([0.5], [1, 2], 3.0)
            ),
        ),
        ControlReply(
            1,
            ok=True,
            stats=EngineStats([RankStats(1, 2, 3, 4, 5.0, 0.5, 6, 7, 8, 9, 10, 11)], integrity_error="two"),
        ),
        StepOutputs(
            [
                TokenOutput("a", [1]),
                TokenOutput(
                    "b",
                    [1, EOS],
                    [TokenLogprob(1, -0.5, ((1, -0.5), (2, float("-inf")))), TokenLogprob(EOS, 0)],
                    [TokenLogprob(7, None)],
                    FinishReason("stop", matched=EOS),
                    16,
                    1,
                    b"\x00\x01",
                    "eos",
                    RequestTimes(1.0, 2.0, None, 3.0),
                ),
                TokenOutput("c", [], finish=FinishReason("stop", matched="x")),
            ],
            [PlainTokens.of(["d", "e"], [[1], [2, EOS]], place=2)],
        ),
    ],
)
def test_codec_from_engine(message):
    codec = from_engine_codec()
    assert codec.decode(codec.encode(message)) == message


async def test_serves(tmp_path):
    async with running(tmp_path, step_delay=0.001) as engine:
        assert 0 < engine.info.startup_seconds < 60
        assert dataclasses.replace(engine.info, startup_seconds=0.0) == make_ready()
        outputs = await asyncio.gather(
            *(collect(engine, [5 + i], str(i), max_tokens=20, temperature=0.0) for i in range(10))
        )
        for i, result in enumerate(outputs):
            assert result[0].token_ids[0] == next_token(5 + i)
            assert result[-1].completion_tokens == 20
        with pytest.raises(InvalidRequestError, match="superstitious"):
            await collect(engine, [5], logit_bias={13: 13.0})
        source = engine.generate(GenerationRequest("r", [5], SamplingParams()))
        await anext(source)
        await source.aclose()
        assert (await engine.stats()).total.num_running == 0
        await engine.flush_cache()
        pid = engine._transport.pid
    assert not is_alive(pid)


async def test_killed_child_reaches_every_stream_at_once(tmp_path):
    async with running(tmp_path, step_delay=0.01) as engine:
        tasks = [asyncio.create_task(collect(engine, [5], str(i))) for i in range(3)]
        await asyncio.sleep(0.1)
        os.kill(engine._transport.pid, signal.SIGKILL)
        killed = time.monotonic()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - killed < 2.0
        assert all(isinstance(result, EngineDeadError) for result in results)
        assert engine.state == "dead"
        assert "SIGKILL" in engine.failure
        with pytest.raises(EngineDeadError):
            await collect(engine, [5], "late")


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGSEGV,
        *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGABRT, signal.SIGBUS)),
    ],
    ids=["SEGV", "ABRT", "BUS"],
)
async def test_a_crash_of_native_code_is_not_taken_for_want_of_memory(tmp_path, number, capfd):
    async with running(tmp_path) as engine:
        os.kill(engine._transport.pid, number)
        while engine.failure is None or engine.state != "dead":
            await asyncio.sleep(0.01)
        # Printing the stacks of all threads may crash by itself: then the process ends with that signal.
        assert re.search(rf"crashed with ({number.name}|SIGSEGV) in native code", engine.failure)
        assert "memory" not in engine.failure
    # The stacks that the message names; none is "current" where a thread that is not of Python gets the signal.
    assert re.search(r"Fatal Python error: .*\n\n(Current t|T)hread 0x\w+ \(most recent", capfd.readouterr().err)


async def test_exiting_child_is_noticed(tmp_path):
    async with running(tmp_path, die_at_step=3) as engine:
        with pytest.raises(EngineDeadError, match="exited with status 7"):
            await collect(engine, [5])


async def test_failing_step_says_why(tmp_path, capfd):
    async with running(tmp_path, fail_at_step=3) as engine:
        with pytest.raises(EngineDeadError, match="by the fake"):
            await collect(engine, [5])
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize(("kind", "error"), [("config", ConfigError), ("crash", EngineDeadError)])
async def test_failing_start(tmp_path, kind, error):
    engine = make(tmp_path, start_error=kind)
    await engine.start()
    with pytest.raises(error):
        await engine.wait_ready()
    await engine.shutdown()


async def test_shutdown_while_starting_kills(tmp_path):
    engine = make(tmp_path, start_delay=60)
    await engine.start()
    while engine.progress is None:
        await asyncio.sleep(0.01)
    pid = engine._transport.pid
    await asyncio.wait_for(engine.shutdown(), 5)
    assert not is_alive(pid)


async def test_child_ignores_the_terminals_signals(tmp_path):
    async with running(tmp_path) as engine:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine._transport.pid, number)
        await asyncio.sleep(0.1)
        assert len(await collect(engine, [5], max_tokens=2)) > 0


async def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with running(tmp_path):
        assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o700]
    assert list(tmp_path.iterdir()) == []


def create_talking_core(config, on_progress, on_fatal):
    for level in (logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger("palladio.engine").log(level, "to tell")
    return FakeEngineCore.create(config, on_progress, on_fatal)


@pytest.mark.parametrize("level", [logging.INFO, pytest.param(logging.ERROR, marks=pytest.mark.slow)])
async def test_the_childs_lines_look_like_ours(tmp_path, capfd, monkeypatch, level):
    monkeypatch.setattr(logging.getLogger(), "level", level)
    engine = make(tmp_path, ProcessTransport(f"{__name__}:create_talking_core"))
    await engine.start()
    await engine.wait_ready()
    await engine.shutdown()
    stamp = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] (.*to tell)$", re.MULTILINE)
    all_lines = ["to tell", "WARNING: to tell", "ERROR: to tell"]
    assert stamp.findall(capfd.readouterr().err) == all_lines[-3 if level == logging.INFO else -1 :]


async def test_a_child_that_was_started_early_is_the_first_one(tmp_path):
    early = EarlyEngine({})
    first = early._process.pid
    transport = ProcessTransport(FACTORY, early=early)
    engine = make(tmp_path, transport)
    async with started(engine):
        assert transport.pid == first
        assert len(await collect(engine, [1, 2], max_tokens=3)) == 3
    wait_gone(first, 5)
    async with started(make(tmp_path, transport)):  # a second one is started as usual
        assert transport.pid not in {first, None}


async def test_the_child_gets_more_environment(tmp_path):
    transport = ProcessTransport(f"{__name__}:create_core_with_environment", environment={"PALLADIO_TEST": "there"})
    engine = make(tmp_path, transport)
    await engine.start()
    with pytest.raises(ConfigError, match="there"):
        await engine.wait_ready()
    await engine.shutdown()


def create_core_with_environment(config, on_progress, on_fatal):
    raise ConfigError(os.environ["PALLADIO_TEST"])


async def test_the_engine_is_told_of_local_directories(tmp_path):
    transport = ThreadTransport(create_core_with_paths)
    tokenizer = build_tiny_tokenizer(tmp_path / "tokenizer")
    config = EngineConfig.from_flags({"model_path": str(tmp_path), "tokenizer_path": str(tokenizer)})
    engine = AsyncEngine(config, transport)
    await engine.start()
    with pytest.raises(ConfigError) as error:
        await engine.wait_ready()
    assert str(error.value) == f"{tmp_path} {tokenizer}"
    assert engine.tokenizer is not None
    await engine.shutdown()


def create_core_with_paths(config, on_progress, on_fatal):
    raise ConfigError(f"{config.source.model_path} {config.source.tokenizer_path}")


async def test_progress_is_shown(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    async with running(tmp_path):
        shown = capfd.readouterr().err
    assert "Loading weights: 100%" in shown
    assert "2/2" in shown


@pytest.mark.parametrize("how", ["SIGKILL", pytest.param("exit", marks=pytest.mark.slow)])
def test_child_does_not_survive_its_parent(tmp_path, how):
    program = f"""
        import asyncio, os
        from palladio.runtime.front.async_engine import AsyncEngine
        from palladio.runtime.interface.config.config import EngineConfig
        from palladio.runtime.process.process_transport import ProcessTransport

        async def main():
            config = EngineConfig.from_flags({{"model_path": {str(tmp_path)!r}, "skip_tokenizer_init": True}})
            engine = AsyncEngine(config, ProcessTransport({FACTORY!r}))
            await engine.start()
            await engine.wait_ready()
            print(engine._transport.pid, flush=True)
            if {how!r} == "exit":
                os._exit(0)
            await asyncio.sleep(60)

        asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as parent:
        pid = int(parent.stdout.readline())
        if how == "SIGKILL":
            assert is_alive(pid)
            parent.kill()
        parent.wait()
    wait_gone(pid, 2.0)


@pytest.mark.parametrize("attempt", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2))])
async def test_a_message_sent_the_moment_it_is_ready_arrives(tmp_path, attempt):
    async with running(tmp_path) as engine:
        assert (await engine.stats(timeout=5)).total.num_running == 0
