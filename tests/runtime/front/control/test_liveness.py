"""Whether the engine answers: what the front asks, what counts as silence, and what the engine says of long work."""

import asyncio
import os
import signal
import time

import pytest

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.messages.engine_state import EngineBusy
from palladio.runtime.process.busy_reports import BusyReports
from palladio.runtime.process.liveness import Liveness
from palladio.runtime.telemetry.activity import Activity
from tests.runtime.process.crashes import QUEUED, running, tokens, until


def test_silence_is_counted_from_a_question_on() -> None:
    asked: list[int] = []
    liveness = Liveness(lambda: asked.append(1), 4.0)
    assert liveness.interval == 1.0
    for _ in range(5):
        liveness.heard()
        liveness.tick()
    assert asked == [], "an engine that talks is not asked"
    liveness.tick()
    assert asked == [1]
    for _ in range(3):
        liveness.tick()
    assert (liveness.stall, asked) == (None, [1])
    liveness.tick()
    assert liveness.stall is not None
    assert "has not responded for 4 s (--health-timeout 4)" in liveness.stall
    liveness.heard()
    assert liveness.stall is None
    liveness.tick()
    assert (asked, liveness.stall) == ([1], None)
    liveness.tick()
    assert asked == [1, 1]


def test_one_that_is_busy_is_not_silent() -> None:
    liveness = Liveness(lambda: None, 2.0)
    for _ in range(20):
        liveness.tick()
        liveness.heard_busy("compiling x")
    assert (liveness.stall, liveness.busy) == (None, "compiling x")
    for _ in range(5):
        liveness.tick()
    assert liveness.stall is not None, "it says nothing of it any more"
    liveness.reset()
    assert (liveness.stall, liveness.busy) == (None, "")


def test_it_can_be_switched_off() -> None:
    liveness = Liveness(lambda: pytest.fail("it asked"), 0.0)
    for _ in range(1000):
        liveness.tick()
    assert liveness.stall is None
    with pytest.raises(ConfigError, match="--health-timeout must be a number of seconds"):
        EngineConfig.from_flags({"model_path": "x", "health_timeout": -1.0})


def test_long_work_is_told_and_short_work_is_not() -> None:
    activity, told = Activity(), []
    with BusyReports(activity, told.append, interval=0.05):
        for _ in range(100):
            activity.begin_step()
            time.sleep(0.002)
        time.sleep(0.2)  # a step, however long, tells nothing
        assert told == []
        with activity.compiling("decode[bs=8]"):
            deadline = time.monotonic() + 10
            while len(told) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        assert str(told[0].doing).startswith("compiling decode[bs=8] for step 100, since ")
        count = len(told)
        time.sleep(0.2)
        assert count <= len(told) <= count + 1
    assert all(isinstance(message, EngineBusy) for message in told)


async def test_an_engine_that_hangs_is_told(tmp_path) -> None:
    async with running(tmp_path, {}, health_timeout=1.0) as engine:
        await asyncio.sleep(1.5)
        assert engine.liveness.stall is None, "it has nothing to do, and answers"
        pid = engine._transport.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await until(lambda: engine.liveness.stall is not None)
            assert engine.state == "ready"
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: engine.liveness.stall is None)
        assert await tokens(engine, "after")


async def test_one_that_compiles_is_not(tmp_path) -> None:
    knobs = {**QUEUED, "compile_at_step": 2, "compile_seconds": 3.0}
    async with running(tmp_path, knobs, health_timeout=1.0) as engine:
        request = asyncio.create_task(tokens(engine, "r"))
        await until(lambda: "compiling decode[bs=8] for step 2" in engine.liveness.busy)
        while not request.done():
            assert engine.liveness.stall is None
            await asyncio.sleep(0.05)
        assert len(await request) == 20
        await until(lambda: engine.liveness.busy == "")
