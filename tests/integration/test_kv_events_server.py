"""KV events of a real server, as routers read them: a subscriber reads nothing for a while,
loses batches, asks for them again, and knows the whole cache."""

import json
import random
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.integration.serving import COMPLETIONS, MODEL, Server, launch_command
from tests.runtime.kv_consumer import Consumer

pytestmark = pytest.mark.slow
PAGE = 8
TOPIC = b"kv@pod@tiny"
FLAGS = (
    f"--page-size {PAGE} --max-running-requests 8 --chunked-prefill-size 64 --max-total-tokens 2048 "
    f"--cuda-graph-bs 1 --compile full --fail-on-recompile --served-model-name {MODEL}"
)
LENGTH = 400  # tokens of a prompt: the cache has room for five
MOST = 2000  # requests until something is lost


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kv")


@pytest.fixture
def server(checkpoint: Path, environment: None, folder: Path) -> Iterator[Server]:
    config: dict[str, Any] = {"publisher": "zmq", "topic": TOPIC.decode(), "hwm": 1}
    config |= {"endpoint": f"ipc://{folder}/events", "replay_endpoint": f"ipc://{folder}/replay"}
    events = f"--kv-events-config {shlex.quote(json.dumps(config))}"
    running = Server(launch_command(checkpoint, f"{FLAGS} {events}"), folder / "log")
    yield running
    running.stop()


class Subscriber:
    """Attributes: known: what it knows of the cache. next: the number of the batch that it has not seen yet."""

    def __init__(self, folder: Path) -> None:
        self.known, self.next = Consumer(), 0
        context: zmq.Context[Any] = zmq.Context.instance()
        self.live, self.replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.live.set_hwm(1)
        self.live.subscribe(TOPIC)
        self.live.connect(f"ipc://{folder}/events")
        self.replay.connect(f"ipc://{folder}/replay")

    def read(self) -> list[int]:
        """Reads all that waits, and asks for what was lost; returns the number of the first batch of each gap."""
        gaps = []
        while self.live.poll(500):
            topic, number, batch = self.live.recv_multipart()
            assert topic == TOPIC
            count = int.from_bytes(number, "big")
            if count < self.next:  # it has come by replay
                continue
            if count > self.next:
                gaps.append(self.next)
                self.ask_again()
                continue
            self._take(number, batch)
        return gaps

    def ask_again(self) -> None:
        """Asks for all batches from `next` on."""
        self.replay.send_multipart((b"", self.next.to_bytes(8, "big")))
        while True:
            assert self.replay.poll(20_000)
            *_, number, batch = self.replay.recv_multipart()
            if not batch:
                return
            self._take(number, batch)

    def close(self) -> None:
        self.live.close(linger=0)
        self.replay.close(linger=0)

    def _take(self, number: bytes, batch: bytes) -> None:
        assert int.from_bytes(number, "big") == self.next
        self.known.take(batch)
        self.next += 1


def num_drops(server: Server) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("palladio:kv_event_drops_total"))


def test_a_subscriber_that_lost_batches_knows_the_cache_after_replay(server: Server, folder: Path) -> None:
    slow, numbers = Subscriber(folder), random.Random(1)

    def ask() -> dict[str, Any]:
        prompt = [numbers.randrange(3, 300) for _ in range(LENGTH)]
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
        assert server.http.post(COMPLETIONS, json=body).status_code == 200
        return body

    try:
        for _ in range(MOST):
            ask()
            if num_drops(server):
                break
        for _ in range(5):  # what comes after a gap shows it
            ask()
        gaps = slow.read()
        assert gaps
        assert num_drops(server) >= 1
        body = ask()
        slow.ask_again()
        (rendered,) = server.http.post(f"{COMPLETIONS}/render", json=body).json()
        held = {page[1:] for page in slow.known.blocks.values()}
        assert tuple(rendered["token_ids"]) in held, "a router finds the prompt that it has rendered"
        assert len(held) <= 2048 // PAGE, "what was evicted is told"
        server.http.post("/flush_cache").raise_for_status()
        slow.ask_again()
        assert slow.known.prefixes == []
    finally:
        slow.close()
