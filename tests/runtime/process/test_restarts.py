"""The engine's process dies, fails or hangs under requests, and is started again."""

import asyncio
import json
import os
import signal
import time

import pytest

from palladio.runtime.front.control.supervisor import WINDOW, RestartBudget, Supervisor
from palladio.runtime.interface.errors import DeadlineError, EngineDeadError, EngineNotReadyError, OverloadedError
from palladio.runtime.interface.messages.calls import AbortRequests
from palladio.runtime.interface.messages.engine_state import EngineFailed
from palladio.runtime.interface.messages.model_messages import UpdateOptions
from tests.runtime.process.crashes import QUEUED, kill, make, once, running, serve_and_queue, tokens, until
from tests.runtime.process.test_engine_process import is_alive


async def test_waiting_requests_survive_with_the_same_tokens(tmp_path, caplog):
    async with running(tmp_path, QUEUED, max_queued_requests=5) as engine:
        alone = await tokens(engine, "alone", n=2)
        served, waiting = await serve_and_queue(engine, 2, n=2)
        with pytest.raises(OverloadedError, match="--max-queued-requests"):
            await tokens(engine, "full")
        asking = asyncio.create_task(engine._calls.ask(lambda _: AbortRequests([]), 30))  # which has no answer
        await asyncio.sleep(0)
        pid = kill(engine)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            async for _ in served:
                pass
        assert engine.state == "restarting"
        assert "SIGKILL" in engine.failure
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await asking
        with pytest.raises(EngineNotReadyError, match=r"restarting after a failure \(the engine .*SIGKILL") as error:
            await tokens(engine, "new")
        assert error.value.retry_after > 0
        with pytest.raises(EngineNotReadyError):
            await engine.stats()
        assert await asyncio.gather(*waiting) == [alone, alone]
        assert (engine.state, engine.failure) == ("ready", None)
        assert not is_alive(pid)
        assert await tokens(engine, "after", n=2) == alone
    lines = "\n".join(caplog.messages)
    assert "1 requests with output were aborted, 2 wait for the restart" in lines
    assert "Restarting the engine (1 of 3 restarts within an hour)" in lines
    assert "resending 4 samples" in lines


@pytest.mark.slow  # a hung one is below
async def test_a_failing_step_restarts_too(tmp_path):
    async with running(tmp_path, once(tmp_path, {**QUEUED, "fail_at_step": 3})) as engine:
        served = asyncio.create_task(tokens(engine, "served"))
        waiting = asyncio.create_task(tokens(engine, "waiting"))
        with pytest.raises(EngineDeadError, match="ZeroDivisionError: by the fake"):
            await served
        assert len(await waiting) == 20


async def test_a_restarted_engine_has_the_last_weights(tmp_path, caplog):
    """And the pause and the memory that its predecessor had."""
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(bytes((50, 51, 52)) * 10)
    async with running(tmp_path, once(tmp_path, QUEUED), weight_version="v0") as engine:
        await engine.model.update(weights, UpdateOptions(weight_version="v1"))
        await engine.model.pause("in_place")
        asking = asyncio.create_task(tokens(engine, "waits"))
        kill(engine)
        await until(lambda: engine.num_restarts == 1 and engine.state == "ready")
        await asyncio.sleep(0.1)
        assert not asking.done()
        await engine.model.go_on()
        assert (await asking)[:3] == [(0, 50), (0, 51), (0, 52)]
        assert engine.model.version == "v1"
        await engine.model.release(["kv_cache"])
        (weights / "model.safetensors").unlink()
        kill(engine)
        await until(lambda: engine.num_restarts == 2 and engine.state == "released")
        assert (engine.model.version, engine.model.path) == ("v0", None)
        assert "with the weights of the start (version v0), not with those of version v1" in caplog.text


async def test_aborts_and_closed_readers_while_it_restarts(tmp_path):
    async with running(tmp_path, once(tmp_path, QUEUED, start_delay=0.5)) as engine:
        served, waiting = await serve_and_queue(engine, 3)
        kill(engine)
        await until(lambda: engine.state == "restarting")
        await served.aclose()
        waiting[0].cancel()
        assert await engine.abort("w1") == 1
        assert await waiting[1] == []
        assert engine.state == "restarting"
        assert len(await waiting[2]) == 20
        assert (await engine.stats()).total.num_running == 0


async def test_deadlines_pass_while_it_restarts(tmp_path):
    async with running(tmp_path, once(tmp_path, QUEUED, start_delay=60)) as engine:
        _, waiting = await serve_and_queue(engine, 2, timeout=1.0)
        begun = time.monotonic()
        kill(engine)
        for task in waiting:
            with pytest.raises(DeadlineError, match="timeout of 1 s"):
                await task
        assert time.monotonic() - begun < 5
        assert engine.state == "restarting"


@pytest.mark.slow  # tests/runtime/front/requests/test_request_table.py counts them
async def test_a_request_that_meets_two_crashes_ends(tmp_path):
    """It may be what crashes the engine; who comes later is not to blame."""
    async with running(tmp_path, {"die_at_step": 1, "step_delay": 0.1}) as engine:
        with pytest.raises(EngineDeadError, match="status 7; see its log; the engine failed 2 times"):
            await tokens(engine, "poison")


@pytest.mark.slow  # a start that fails is below
async def test_a_failed_start_is_no_crash_of_those_who_wait(tmp_path, caplog):
    later = {"start_error": "crash", "once": str(tmp_path / "second"), "later": {}}
    async with running(tmp_path, once(tmp_path, QUEUED, **later)) as engine:
        served, (waiting,) = await serve_and_queue(engine, 1)
        kill(engine)
        assert len(await waiting) == 20
        await served.aclose()
    assert "could not start: RuntimeError: no device" in caplog.text
    assert "(2 of 3 restarts within an hour)" in caplog.text


async def test_restarts_are_bounded(tmp_path):
    knobs = once(tmp_path, QUEUED, start_error="crash")
    async with running(tmp_path, knobs, max_engine_restarts=2) as engine:
        _, (waiting,) = await serve_and_queue(engine, 1)
        kill(engine)
        with pytest.raises(EngineDeadError) as error:
            await waiting
        assert str(error.value) == engine.failure
        assert "failed 3 times within an hour and is not restarted again (--max-engine-restarts 2)" in engine.failure
        assert "RuntimeError: no device" in engine.failure
        assert engine.state == "dead"
        with pytest.raises(EngineDeadError):
            await tokens(engine, "late")


async def test_no_restarts_if_none_are_wanted(tmp_path):
    async with running(tmp_path, QUEUED, max_engine_restarts=0) as engine:
        order: list[str] = []
        serving = asyncio.create_task(tokens(engine, "served"))
        serving.add_done_callback(lambda _: order.append("request"))
        watching = asyncio.create_task(engine.wait_dead())
        watching.add_done_callback(lambda _: order.append("watcher"))
        await asyncio.sleep(0)
        kill(engine)
        with pytest.raises(EngineDeadError):
            await serving
        await watching
        assert order == ["watcher", "request"]
        assert engine.state == "dead"
        assert engine.failure == (
            "the engine process was killed by SIGKILL: by a user, or by the kernel because the host or container "
            "ran out of memory (see `dmesg`)"
        )


async def test_draining_waits_for_the_next_engine(tmp_path):
    engine = make(tmp_path, once(tmp_path, QUEUED, start_delay=0.3))
    await engine.start()
    await engine.wait_ready()
    served, (waiting,) = await serve_and_queue(engine, 1)
    kill(engine)
    await until(lambda: engine.state == "restarting")
    stopping = asyncio.create_task(engine.shutdown(20))
    await until(lambda: engine.state == "draining")
    with pytest.raises(EngineNotReadyError, match="shutting down"):
        await tokens(engine, "new")
    await served.aclose()
    assert len(await waiting) == 20
    await stopping
    assert engine.state == "dead"


@pytest.mark.slow  # a restart and draining are above, each by itself
async def test_a_crash_while_draining(tmp_path):
    engine = make(tmp_path, once(tmp_path, QUEUED))
    await engine.start()
    await engine.wait_ready()
    served, (waiting,) = await serve_and_queue(engine, 1)
    stopping = asyncio.create_task(engine.shutdown(20))
    await until(lambda: engine.state == "draining")
    kill(engine)
    with pytest.raises(EngineDeadError):
        async for _ in served:
            pass
    assert engine.state == "draining"
    assert len(await waiting) == 20
    await stopping


async def test_shutdown_cuts_a_restart_short(tmp_path):
    engine = make(tmp_path, once(tmp_path, QUEUED, start_delay=60))
    await engine.start()
    await engine.wait_ready()
    served, (waiting,) = await serve_and_queue(engine, 1)
    kill(engine)
    await served.aclose()
    await until(lambda: engine.state == "restarting" and engine.progress is not None)
    pid = engine._transport.pid
    draining = asyncio.create_task(engine.shutdown(60))
    await asyncio.sleep(0.05)
    begun = time.monotonic()
    await engine.shutdown(0)
    await draining
    assert time.monotonic() - begun < 4
    assert await waiting == []
    assert not is_alive(pid)


async def test_no_restart_of_an_engine_that_fails_while_it_is_ended(tmp_path, monkeypatch):
    engine = make(tmp_path, QUEUED)
    await engine.start()
    await engine.wait_ready()
    stop = engine._transport.stop

    async def fail_and_stop(timeout):
        engine._on_message(EngineFailed("in its last step", config=False))
        await stop(timeout)

    monkeypatch.setattr(engine._transport, "stop", fail_and_stop)
    await engine.shutdown()
    await asyncio.sleep(0.05)
    assert (engine.state, engine.num_restarts, engine._transport.pid) == ("dead", 0, None)


async def test_a_hung_step_is_restarted(tmp_path, capfd, caplog):
    knobs = once(tmp_path, {**QUEUED, "hang_at_step": 3})
    folder = tmp_path / "dumps"
    async with running(tmp_path, knobs, watchdog_timeout=0.5, crash_dump_folder=str(folder)) as engine:
        begun = time.monotonic()
        served = asyncio.create_task(tokens(engine, "served"))
        waiting = asyncio.create_task(tokens(engine, "waiting"))
        with pytest.raises(EngineDeadError, match=r"within 0.5 s \(--watchdog-timeout\).* in step 3, since"):
            await served
        assert time.monotonic() - begun < 5
        assert len(await waiting) == 20
    (stacks,) = folder.glob("stacks-*.txt")
    assert stacks.stat().st_mode & 0o777 == 0o600
    for text in (stacks.read_text(), capfd.readouterr().err):
        assert "no step finished within 0.5 s" in text
        assert 'fake_core.py", line' in text
    (dump,) = folder.glob("crash-*.json")
    assert "no step finished" in json.loads(dump.read_text())["failure"]


@pytest.mark.slow  # a hung one is above
async def test_a_step_that_keeps_pythons_lock_is_ended_too(tmp_path):
    knobs = once(tmp_path, {**QUEUED, "hang_at_step": 3, "hang_keeps_lock": True})
    async with running(tmp_path, knobs, watchdog_timeout=0.4) as engine:
        with pytest.raises(EngineDeadError, match="exited with status 1"):
            await asyncio.wait_for(tokens(engine, "served"), 10)
        assert len(await tokens_when_ready(engine)) == 20


async def tokens_when_ready(engine):
    await until(lambda: engine.state == "ready")
    return await tokens(engine, "again")


async def test_a_long_compile_is_no_hang(tmp_path, capfd):
    knobs = {"compile_at_step": 3, "compile_seconds": 1.5, "step_delay": 0.01}
    async with running(tmp_path, knobs, watchdog_timeout=0.4) as engine:
        pid = engine._transport.pid
        assert len(await tokens(engine, "r")) == 20
        assert engine._transport.pid == pid
    lines = [line for line in capfd.readouterr().err.splitlines() if "Still compiling decode[bs=8]" in line]
    assert 1 <= len(lines) <= 3  # two, unless the machine is busy


async def test_a_stopped_process_does_not_hang(tmp_path):
    """The watchdog's own clock stands still meanwhile."""
    async with running(tmp_path, {"step_delay": 0.3}, watchdog_timeout=1.0) as engine:
        pid = engine._transport.pid
        task = asyncio.create_task(tokens(engine, "r", max_tokens=4))
        await asyncio.sleep(0.2)
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(1.5)
        os.kill(pid, signal.SIGCONT)
        assert len(await task) == 4
        assert engine._transport.pid == pid


async def test_pauses_between_starts_that_fail_grow_to_30_seconds(monkeypatch):
    pauses, here, wait = [], asyncio.get_running_loop(), asyncio.sleep

    async def sleep(seconds):
        if asyncio.get_running_loop() is not here:  # a server that other tests share
            await wait(seconds)
        else:
            pauses.append(seconds)

    class Transport:
        async def stop(self, timeout):
            pass

        def start(self, config, receive):
            raise OSError("no more processes")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(EngineDeadError, match="OSError: no more processes"):
        await Supervisor(Transport(), RestartBudget(9)).restart(None, None)
    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_the_budget_is_per_hour():
    now = [0.0]
    budget = RestartBudget(2, clock=lambda: now[0])
    assert [budget.take() for _ in range(3)] == [True, True, False]
    now[0] = WINDOW - 1
    assert not budget.take()
    now[0] = WINDOW
    assert budget.num_used == 0
    assert budget.take()
    assert "3 times within an hour" in budget.spent("why")
    assert "why" in budget.spent("why")
    assert RestartBudget(0).spent("why") == "why"
