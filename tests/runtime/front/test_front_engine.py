"""Several fronts before one engine, all of them in this process but the engine, which is the fake one."""

import asyncio
import contextlib
import dataclasses
import json

import msgspec
import pytest

from palladio.runtime.front.engine_owner import EngineOwner
from palladio.runtime.front.front_engine import FrontEngine
from palladio.runtime.interface.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, EngineDeadError, EngineNotReadyError, InvalidRequestError
from palladio.runtime.interface.generation_request import GenerationRequest, SamplingParams
from palladio.runtime.interface.weight_update import UpdateOptions
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.runtime.process.shared_state import SharedState
from tests.runtime.fake_core import FACTORY
from tests.runtime.process.crashes import QUEUED, kill, once, tokens, until


class Server:
    """A parent and its fronts, as far as the engine concerns them."""

    def __init__(self, tmp_path, knobs, num_fronts=2, **flags):
        flags = {"skip_tokenizer_init": True, "json_model_override_args": json.dumps(knobs), **flags}
        self.config = EngineConfig.from_flags({"model_path": str(tmp_path), **flags})
        self.owner = EngineOwner(self.config, ProcessTransport(FACTORY, has_fronts=True), self._abort_all, self._tell)
        self.fronts = []
        self.num_fronts = num_fronts
        self.loaded = set()

    def add_front(self, number):
        front = FrontEngine(self.config, self.owner.steer, lambda: self._note_loaded(number), number)
        self.fronts.append(front)
        front.follow(self.shared)
        return front

    @property
    def shared(self):
        shared = msgspec.structs.replace(self.owner.shared, is_open=len(self.loaded) >= self.num_fronts)
        return msgspec.msgpack.decode(msgspec.msgpack.encode(shared), type=SharedState)

    def _note_loaded(self, number):
        self.loaded.add(number)
        asyncio.get_running_loop().call_soon(self._tell)

    async def _abort_all(self):
        return sum([await front.abort(None) for front in self.fronts])

    def _tell(self):
        for front in self.fronts:
            front.follow(self.shared)


@contextlib.asynccontextmanager
async def serving(tmp_path, knobs=None, **flags):
    server = Server(tmp_path, knobs or {}, **flags)
    fronts = [server.add_front(number + 1) for number in range(server.num_fronts)]
    for engine in (server.owner, *fronts):
        await engine.start()
    for engine in (server.owner, *fronts):
        with contextlib.suppress(ConfigError, EngineDeadError):
            await engine.wait_ready()
    try:
        yield server
    finally:
        for front in server.fronts:
            await front.shutdown()
        await server.owner.shutdown()


async def test_each_front_gets_the_tokens_of_its_own_requests(tmp_path):
    async with serving(tmp_path) as server:
        first, second = server.fronts
        alone = await tokens(first, "alone")
        together = await asyncio.gather(*(tokens(front, name, n=2) for front, name in ((first, "a"), (second, "b"))))
        for found in together:
            assert [token for index, token in found if index == 0] == [token for _, token in alone]
        assert sorted(together[0]) == sorted(together[1])
        unseeded = [await tokens(front, "any", seed=None) for front in (first, second)]
        assert unseeded[0] != unseeded[1], "each front has seeds of its own"
        assert (await first.stats()).total.num_running == 0


async def test_an_id_runs_once_whichever_front_it_comes_to(tmp_path):
    async with serving(tmp_path, {"step_delay": 0.01}) as server:
        first, second = server.fronts
        running = first.generate(GenerationRequest("same", [5], SamplingParams(max_tokens=250)))
        await anext(running)
        with pytest.raises(InvalidRequestError, match="a request with id 'same' is already running") as error:
            await tokens(second, "same", n=2)
        assert error.value.param == "rid"
        assert await second.stats() is not None
        assert [output.finish async for output in running][-1].type == "length"
        assert len(await tokens(second, "same", max_tokens=3)) == 3


async def test_an_heir_goes_on_with_the_ids_of_the_dead(tmp_path):
    """The parent's word that a front has ended may come to the engine after the heir's first request."""
    async with serving(tmp_path, {"step_delay": 0.01}) as server:
        first, second = server.fronts
        running = first.generate(GenerationRequest("line", [5], SamplingParams(max_tokens=250)))
        await anext(running)
        second.end_front(1)
        assert len(await tokens(second, "line", max_tokens=3)) == 3
        await running.aclose()


async def test_no_front_is_ready_before_all_are(tmp_path):
    """Whoever has seen one say so may meet another one next."""
    server = Server(tmp_path, {})
    first = server.add_front(1)
    await server.owner.start()
    await first.start()
    await server.owner.wait_ready()
    await until(lambda: server.loaded)
    assert first.state == "starting"
    second = server.add_front(2)
    await second.start()
    await first.wait_ready()
    await second.wait_ready()
    for engine in (first, second, server.owner):
        await engine.shutdown()


async def test_a_front_that_ends_takes_its_requests_along(tmp_path):
    async with serving(tmp_path, {"step_delay": 0.01}) as server:
        first, second = server.fronts
        gone = first.generate(GenerationRequest("gone", [5], SamplingParams(max_tokens=250)))
        await anext(gone)
        stays = asyncio.create_task(tokens(second, "stays", max_tokens=40))
        while (await second.stats()).total.num_running < 2:
            await asyncio.sleep(0.01)
        server.fronts.remove(first)
        first._link._disconnect()  # as its end does
        server.owner.end_front(1)
        await until_running(second, 1)
        assert len(await stays) == 40
        third = server.add_front(3)
        await third.start()
        await third.wait_ready()
        assert len(await tokens(third, "next")) == 20
        await gone.aclose()


async def until_running(front, count):
    async with asyncio.timeout(10):
        while (await front.stats()).total.num_running != count:
            await asyncio.sleep(0.01)


async def test_what_one_front_orders_of_the_model_all_see(tmp_path):
    async with serving(tmp_path, {"step_delay": 0.01}) as server:
        first, second = server.fronts
        with pytest.raises(InvalidRequestError, match="mode must be one of"):
            await first.model.pause("never")
        running = asyncio.create_task(tokens(second, "running", max_tokens=250))
        await until_running(first, 1)
        await first.model.pause("abort")
        async with asyncio.timeout(10):
            assert len(await running) < 250, "the pause aborts the requests of all fronts"
        assert second.model.paused == "abort"
        await second.model.go_on()
        assert first.model.paused is None
        await first.model.release(["kv_cache"])
        assert (first.state, second.state) == ("released", "released")
        with pytest.raises(EngineNotReadyError, match="released device memory"):
            await tokens(second, "refused")
        await second.model.resume()
        (tmp_path / "model.safetensors").write_bytes(bytes([50, 51, 2]))
        assert await first.model.update(tmp_path, UpdateOptions("v2")) == 0
        assert (second.model.version, second.model.path) == ("v2", str(tmp_path))
        assert await tokens(second, "new") == [(0, 50), (0, 51), (0, 2)]


async def test_a_failed_engine_is_restarted_for_all_fronts(tmp_path):
    async with serving(tmp_path, QUEUED) as server:
        first, second = server.fronts
        alone = await tokens(first, "alone")
        served = first.generate(GenerationRequest("served", [5], SamplingParams(max_tokens=250)))
        await anext(served)
        waiting = asyncio.create_task(tokens(second, "waiting"))
        await until_running(second, 2)
        kill(server.owner)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            async for _ in served:
                pass
        await until(lambda: second.state == "restarting")
        with pytest.raises(EngineNotReadyError, match="restarting after a failure"):
            await tokens(second, "new")
        assert await waiting == alone
        await until(lambda: first.state == "ready")
        assert await tokens(first, "after") == alone
        assert first.num_restarts == second.num_restarts == 1


@pytest.mark.slow
async def test_an_engine_that_is_not_restarted_is_dead_in_all_fronts(tmp_path):
    async with serving(tmp_path, max_engine_restarts=0) as server:
        kill(server.owner)
        await until(lambda: all(front.state == "dead" for front in server.fronts))
        for front in server.fronts:
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await tokens(front, "new")


@pytest.mark.slow
async def test_a_front_that_comes_while_the_engine_restarts_serves_the_next_one(tmp_path):
    async with serving(tmp_path, once(tmp_path, {}, start_delay=0.3)) as server:
        kill(server.owner)
        await until(lambda: server.owner.state == "restarting")
        late = server.add_front(9)
        await late.start()
        await late.wait_ready()
        assert len(await tokens(late, "late")) == 20


async def test_a_wrong_flag_is_told_to_every_front(tmp_path):
    async with serving(tmp_path, {"start_error": "config"}) as server:
        for engine in (server.owner, *server.fronts):
            with pytest.raises(ConfigError, match="makes no sense to a fake"):
                await engine.wait_ready()


@pytest.mark.slow
async def test_a_duplicate_id_refuses_one_request(tmp_path):
    """Whatever sends an id twice: the engine goes on, and so does every other request."""
    async with serving(tmp_path, {"step_delay": 0.01}) as server:
        first, second = server.fronts
        other = asyncio.create_task(tokens(second, "other", max_tokens=60))
        twice = first.generate(GenerationRequest("twice", [5], SamplingParams(max_tokens=60)))
        await anext(twice)
        (sent,) = first._streams.requests_to_resend(first._loaded_front().room)
        first._transport.send(dataclasses.replace(sent))
        outputs = [output async for output in twice]
        assert "already running" in outputs[-1].finish.message
        assert len(await other) == 60
        assert server.owner.num_restarts == 0
