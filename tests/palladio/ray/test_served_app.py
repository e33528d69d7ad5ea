"""ServedApp over the fake engine: what differs from a server of its own."""

import asyncio

import httpx
import pytest

from palladio.flags.server_args import ServerArgs
from palladio.http.settings.http_config import HttpConfig
from palladio.ray.served_app import FIGURES, ServedApp
from palladio.runtime.interface.config.model_source import ModelSource
from palladio.runtime.interface.errors import EngineDeadError
from palladio.runtime.interface.messages.engine_stats import RankStats
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine
from tests.tiny_tokenizer import build_tiny_tokenizer

ARGS = ServerArgs(source=ModelSource(model_path="m"), http=HttpConfig(ui=False, host="0.0.0.0"))
BODY = {"prompt": "Hello", "max_tokens": 2}


@pytest.fixture(scope="module")
def engine_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def engine(engine_tokenizer: Tokenizer) -> FakeEngine:
    return FakeEngine(engine_tokenizer)


def served(engine: FakeEngine, *, hold_seconds: float = 5.0, has_files: bool = True) -> ServedApp:
    return ServedApp(ARGS, engine, hold_seconds=hold_seconds, has_files=has_files)


def client(app: ServedApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def test_requests_wait_while_the_engine_restarts_and_probes_do_not(engine: FakeEngine) -> None:
    async with client(served(engine)) as http:
        engine.state = "restarting"
        waiting = asyncio.create_task(http.post("/v1/completions", json=BODY))
        assert (await http.get("/health")).status_code == 503
        await asyncio.sleep(0.15)
        assert not waiting.done()
        engine.state = "ready"
        assert (await waiting).status_code == 200


async def test_after_hold_seconds_they_get_a_503(engine: FakeEngine) -> None:
    engine.state = "restarting"
    async with client(served(engine, hold_seconds=0.1)) as http:
        assert (await http.post("/v1/completions", json=BODY)).status_code == 503


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
async def test_files_and_batches_are_of_one_replica(engine: FakeEngine, path: str) -> None:
    async with client(served(engine, has_files=False)) as http:
        answer = await http.get(path)
        assert answer.status_code == 501
        assert "or num_replicas to 1" in answer.json()["error"]["message"]
    async with client(served(engine)) as http:
        assert (await http.get(path)).status_code == 200


async def test_the_id_of_a_request_is_left_to_serve_s_proxy(engine: FakeEngine) -> None:
    async with client(served(engine)) as http:
        answer = await http.get("/health", headers={"X-Request-ID": "mine"})
    assert answer.status_code == 200
    assert "x-request-id" not in answer.headers


async def test_the_figures_are_the_engines(engine: FakeEngine) -> None:
    slots = engine.info.max_running_requests
    rank = RankStats(slots, slots, num_used_tokens=1, num_total_tokens=100, last_gen_throughput=7.0)
    engine.ranks = [rank]
    found = await served(engine).figures()
    assert found.keys() == FIGURES.keys()
    assert list(found.values()) == [2.0, slots, slots, 0.01, 7.0]
    engine.state = "restarting"
    assert await served(engine).figures() == {}


def test_an_engine_that_is_dead_for_good_is_unhealthy_and_no_other(engine: FakeEngine) -> None:
    app = served(engine)
    for state in ("starting", "ready", "restarting", "draining"):
        engine.state = state
        app.check()
    engine.state = "dead"
    with pytest.raises(EngineDeadError):
        app.check()


class Mortal(FakeEngine):
    """Dead when it is told so."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.death = asyncio.Event()

    async def wait_dead(self) -> None:
        await self.death.wait()


async def test_it_starts_the_engine_tells_of_its_death_and_ends_it(engine_tokenizer: Tokenizer) -> None:
    engine, deaths = Mortal(engine_tokenizer), []
    app = served(engine)
    await app.start(deaths.append)
    assert engine.state == "ready"
    assert deaths == []
    engine.failure = "it was killed"
    engine.death.set()
    await asyncio.sleep(0.01)
    assert deaths == ["it was killed"]
    await app.stop(0.0)
    assert engine.state == "dead"
