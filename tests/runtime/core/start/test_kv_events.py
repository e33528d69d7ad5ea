"""A real subscriber of an engine's KV events knows its prefix cache."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.start import build_scheduler
from palladio.runtime.core.start.kv_events import open_events
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling.cache.tree_events import TreeEvents
from tests.runtime.kv_consumer import DECODER, Consumer
from tests.runtime.tiny_engine import Collector, TinyEngine, random_prompt

ENDPOINT = "inproc://kv-events-of-the-tiny-engine"
SETTINGS = {"publisher": "zmq", "endpoint": ENDPOINT, "topic": "kv@pod@tiny"}
PAGE = 4


class Subscriber:
    """Reads what an engine has published; hears of all of it, for it is there before the first step."""

    def __init__(self, endpoint: str) -> None:
        self.consumer = Consumer()
        self.next = 0
        self._socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self._socket.subscribe("kv@pod@tiny")
        self._socket.connect(endpoint)

    def read(self, core: EngineCore) -> list[tuple[Any, ...]]:
        """What it knows when it has all batches."""
        while self.next < core.stats().total.num_event_batches:
            assert self._socket.poll(20_000), f"batch {self.next} is missing"
            topic, number, batch = self._socket.recv_multipart()
            assert (topic, int.from_bytes(number, "big")) == (b"kv@pod@tiny", self.next)
            assert self.consumer.take(batch).data_parallel_rank == 0
            self.next += 1
        return self.consumer.prefixes

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> str:
    """Of one test alone: ZeroMQ frees one some time after its socket was closed."""
    return f"{ENDPOINT}-{request.node.name}"


@pytest.fixture
def core(tiny: TinyEngine, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineCore]:
    """Is not closed itself: others have the same compiler of grammars."""
    opened: list[TreeEvents | None] = []

    def keep(config: EngineConfig, num_ranks: int, page_size: int) -> list[TreeEvents | None]:
        opened.extend(open_events(config, num_ranks, page_size))
        return opened

    monkeypatch.setattr(build_scheduler, "open_events", keep)
    yield tiny.core(kv_events_config=json.dumps(SETTINGS | {"endpoint": endpoint}), max_total_tokens=64)
    for events in opened:
        assert events is not None
        events.close()


@pytest.fixture
def subscriber(core: EngineCore, endpoint: str) -> Iterator[Subscriber]:
    subscriber = Subscriber(endpoint)
    yield subscriber
    subscriber.close()


def ask(core: EngineCore, tokens: list[int], salt: str | None = None) -> None:
    collector = Collector(core)
    collector.add("request", tokens, max_tokens=1, options=RequestOptions(cache_salt=salt))
    collector.run()


def prefixes(*prompts: list[int]) -> list[tuple[Any, ...]]:
    ends = {(None, *tokens[:end]) for tokens in prompts for end in range(PAGE, len(tokens) + 1, PAGE)}
    return sorted(ends, key=repr)


def test_a_subscriber_knows_what_is_cached_evicted_and_flushed(core: EngineCore, subscriber: Subscriber) -> None:
    first, second = random_prompt(24), random_prompt(24, 1)
    ask(core, first)
    assert subscriber.read(core) == prefixes(first)
    ask(core, second)
    ask(core, first[:8] + second[:8])
    ask(core, random_prompt(32, 2))
    known = subscriber.read(core)
    assert len(known) == core.stats().total.num_cached_tokens // PAGE
    assert core.stats().total.num_evicted_tokens > 0, "the test evicts nothing"
    core.flush_cache()
    assert subscriber.read(core) == []
    assert subscriber.consumer.cleared == 2, "at the start, and now"
    ask(core, first)
    assert subscriber.read(core) == prefixes(first)


def test_an_aborted_request_leaves_pages_that_are_told_of(core: EngineCore, subscriber: Subscriber) -> None:
    collector = Collector(core)
    prompt = random_prompt(16)
    collector.add("request", prompt, max_tokens=40)
    core.step()
    core.abort(["request"])
    assert subscriber.read(core) == prefixes(prompt)


def test_no_one_watches_steps_where_nothing_is_published(tiny: TinyEngine) -> None:
    core = tiny.core()
    assert core.stats().total.num_event_batches == 0
    ask(core, random_prompt(8))
    assert core.stats().total.num_event_batches == 0


def test_each_rank_has_a_publisher_or_none_has(endpoint: str) -> None:
    def config(endpoint: str) -> EngineConfig:
        words = json.dumps(SETTINGS | {"endpoint": endpoint})
        return EngineConfig.from_flags({"model_path": "m", "dp_size": 2, "kv_events_config": words})

    with zmq.Context.instance().socket(zmq.SUB) as second:
        second.bind(f"{ENDPOINT}_dp1")
        with pytest.raises(ConfigError, match=f"endpoint '{ENDPOINT}_dp1' cannot be used: Address already in use"):
            open_events(config(ENDPOINT), 2, PAGE)
    opened = open_events(config(endpoint), 2, PAGE)
    with zmq.Context.instance().socket(zmq.SUB) as second:
        second.subscribe("kv@")
        second.connect(f"{endpoint}_dp1")
        for events in opened:
            assert events is not None
            events.send()
        assert second.poll(20_000)
        assert DECODER.decode(second.recv_multipart()[2]).data_parallel_rank == 1
    for events in opened:
        assert events is not None
        events.close()
