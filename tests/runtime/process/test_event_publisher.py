"""KV events over real sockets: live, replayed, and to subscribers who read too slowly."""

import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq

from palladio.runtime.interface.config.kv_events_config import MAX_COUNT, KVEventsSettings
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.outputs.counts import EventCounts
from palladio.runtime.process.event_publisher import EventPublisher
from palladio.runtime.scheduling.cache.tree_events import AllBlocksCleared, BlockRemoved, BlockStored
from tests.runtime import kv_consumer
from tests.runtime.kv_consumer import DECODER

TIMEOUT = 20_000  # ms
Connect = Callable[..., Any]


@pytest.fixture
def connect() -> Iterator[Connect]:
    opened: list[Any] = []

    def connect_to(kind: int, endpoint: str, most: int = 1000) -> Any:
        socket = zmq.Context.instance().socket(kind)
        socket.set_hwm(most)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, TIMEOUT)
        if kind == zmq.SUB:
            socket.subscribe("kv@")
        socket.connect(endpoint)
        opened.append(socket)
        return socket

    yield connect_to
    for socket in opened:
        socket.close()


@pytest.fixture
def open_publisher() -> Iterator[Callable[..., EventPublisher]]:
    opened: list[EventPublisher] = []

    def open_with(endpoint: str = "tcp://127.0.0.1:*", rank: int = 0, **fields: Any) -> EventPublisher:
        settings = KVEventsSettings(endpoint, "tcp://127.0.0.1:*", topic="kv@pod@model", **fields)
        opened.append(EventPublisher(settings, rank))
        return opened[-1]

    yield open_with
    for publisher in opened:
        publisher.close()


def meet(publisher: EventPublisher, subscriber: Any) -> int:
    """Publishes until the subscriber gets something; returns its number."""
    for _ in range(2000):
        publisher.publish([BlockRemoved([0])])
        if subscriber.poll(10):
            return number_of(subscriber.recv_multipart())
    raise AssertionError("a subscriber got nothing")


def test_events_as_maps(open_publisher: Callable[..., EventPublisher], connect: Connect) -> None:
    """As readers ask that take vLLM's events of 0.24 and later alone, such as vLLM's router."""
    publisher = open_publisher(event_format="map")
    subscriber = connect(zmq.SUB, publisher.endpoint)
    meet(publisher, subscriber)
    publisher.publish([BlockStored([1, 2], None, [5, 6, 7, 8], 2), BlockRemoved([1]), AllBlocksCleared()])
    while (batch := msgspec.msgpack.decode(subscriber.recv_multipart()[-1]))[1][0]["type"] != "BlockStored":
        assert batch[1] == [{"type": "BlockRemoved", "block_hashes": [0], "medium": "GPU"}]
    when, (stored, removed, cleared), rank = batch
    assert (type(when), rank) == (float, 0)
    assert stored == {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": [5, 6, 7, 8],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": None,
    }
    assert removed == {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}
    assert cleared == {"type": "AllBlocksCleared"}


def number_of(frames: list[bytes]) -> int:
    return int.from_bytes(frames[-2], "big")


def replay(socket: Any, first: int, *envelope: bytes) -> list[tuple[int, list[Any]]]:
    """Numbers and events of what comes back."""
    socket.send_multipart((*envelope, first.to_bytes(8, "big")))
    answers = []
    while True:
        frames = socket.recv_multipart()
        assert frames[: len(envelope)] == list(envelope)
        if not frames[-1]:
            assert frames[-2] == b"\xff" * 8
            return answers
        answers.append((number_of(frames), DECODER.decode(frames[-1]).events))


def test_a_subscriber_gets_batches_as_vllm_sends_them(open_publisher: Any, connect: Connect) -> None:
    publisher = open_publisher("inproc://events", rank=3)
    subscriber = connect(zmq.SUB, "inproc://events_dp3")
    last = meet(publisher, subscriber)
    publisher.publish([BlockRemoved([7, 8])])
    topic, number, batch = subscriber.recv_multipart()
    while number_of([topic, number, batch]) < publisher.counts().num_event_batches - 1:
        topic, number, batch = subscriber.recv_multipart()
    assert (topic, len(number)) == (b"kv@pod@model", 8)
    decoded = DECODER.decode(batch)
    assert decoded.data_parallel_rank == 3
    assert decoded.events == [kv_consumer.BlockRemoved([7, 8], "GPU")]
    assert decoded.ts > 1e9
    assert last < publisher.counts().num_event_batches


def test_replay_sends_again_what_is_kept_to_any_kind_of_client(open_publisher: Any, connect: Connect) -> None:
    publisher = open_publisher(buffer_steps=5)
    for block in range(8):
        publisher.publish([BlockRemoved([block])])
    client = connect(zmq.DEALER, publisher.replay_endpoint)
    client.send_multipart((b"", b"nonsense of another length"))  # nobody answers, and nothing ends
    assert [number for number, _ in replay(client, 0, b"")] == [3, 4, 5, 6, 7]
    assert [(number, events[0].block_hashes) for number, events in replay(client, 6)] == [(6, [6]), (7, [7])]
    assert replay(client, 100) == []
    request = connect(zmq.REQ, publisher.replay_endpoint)
    request.send((7).to_bytes(8, "big"))
    assert number_of(request.recv_multipart()) == 7


def test_who_reads_each_replay_to_its_end_gets_all_of_the_next_one(open_publisher: Any, connect: Connect) -> None:
    """ZeroMQ learns of messages that were read only now and then; until then it takes them for waiting ones."""
    publisher = open_publisher(buffer_steps=50)
    for block in range(50):
        publisher.publish([BlockRemoved([block])])
    client = connect(zmq.DEALER, publisher.replay_endpoint)
    for _ in range(5):
        assert [number for number, _ in replay(client, 0)] == list(range(50))
    assert publisher.counts().num_event_drops == 0


def test_the_largest_counts_are_taken(open_publisher: Any, connect: Connect) -> None:
    publisher = open_publisher(buffer_steps=MAX_COUNT, hwm=MAX_COUNT, max_queue_size=MAX_COUNT)
    publisher.publish([BlockRemoved([1])])
    assert [number for number, _ in replay(connect(zmq.DEALER, publisher.replay_endpoint), 0)] == [0]


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        ("tcp://[::ffff:127.0.0.1]:*", r"subscribers connect to tcp://\[::ffff:127.0.0.1\]:\d+, and ask for replays"),
        ("tcp://127.0.0.1:9", "it connects to subscribers at tcp://127.0.0.1:9, which ask for replays"),
    ],
)
def test_the_log_says_who_connects_to_whom(
    open_publisher: Any, endpoint: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        publisher = open_publisher(endpoint)
    assert re.search(f"KV events of data-parallel rank 0: {told}", caplog.text), caplog.text
    if "::" in endpoint:
        assert publisher.endpoint.startswith("tcp://[::ffff:127.0.0.1]:"), "of that address alone"


def test_who_asks_for_replays_and_does_not_read_them_is_counted_and_keeps_nobody_waiting(
    open_publisher: Any, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = open_publisher(buffer_steps=20)
    for _ in range(20):
        publisher.publish([BlockRemoved(list(range(1 << 16)))])  # 0.2 MB: the sockets' buffers do not hold many
    slow = connect(zmq.DEALER, publisher.replay_endpoint, 1)
    deadline = time.monotonic() + TIMEOUT / 1000
    while not publisher.counts().num_event_drops:
        slow.send((0).to_bytes(8, "big"))
        assert time.monotonic() < deadline, "what does not get to it is not counted"
    assert caplog.text.count("reads too slowly") == 1
    other = connect(zmq.DEALER, publisher.replay_endpoint)
    assert [number for number, _ in replay(other, 0)] == list(range(20))


def test_a_slow_subscriber_loses_batches_that_replay_has_and_no_one_else_does(
    open_publisher: Any, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = open_publisher("inproc://slow", hwm=1)
    slow, fast = connect(zmq.SUB, "inproc://slow", 1), connect(zmq.SUB, "inproc://slow")
    first = meet(publisher, fast)
    for _ in range(30):
        publisher.publish([BlockRemoved([1])])
    last = publisher.counts().num_event_batches - 1
    assert [number_of(fast.recv_multipart()) for _ in range(first, last)] == list(range(first + 1, last + 1))
    got = []
    while slow.poll(0):
        got.append(number_of(slow.recv_multipart()))
    assert got == list(range(got[0], got[0] + len(got))), "what was dropped is what came last"
    assert len(got) <= 2
    assert publisher.counts() == EventCounts(num_event_batches=last + 1, num_event_drops=1)
    missed = replay(connect(zmq.DEALER, publisher.replay_endpoint), got[-1] + 1)
    assert [number for number, _ in missed] == list(range(got[-1] + 1, last + 1))
    for number in range(last + 1, last + 100_000):  # it has read, and falls behind again
        publisher.publish([BlockRemoved([1])])
        assert number_of(fast.recv_multipart()) == number
        if publisher.counts().num_event_drops == 2:
            break
    assert publisher.counts().num_event_drops == 2
    assert caplog.text.count("reads too slowly") == caplog.text.count("palladio:kv_event_drops_total") == 1


def test_batches_that_find_the_queue_full_are_dropped_counted_and_replayed(
    open_publisher: Any, connect: Connect
) -> None:
    publisher = open_publisher(max_queue_size=1)
    for count in itertools.count(1):
        publisher.publish([BlockRemoved([1])])
        if publisher.counts().num_event_drops:
            break
        assert count < 1_000_000, "nothing is ever dropped"
    kept = replay(connect(zmq.DEALER, publisher.replay_endpoint, 0), 0)
    assert kept[-1][0] == count - 1, "what was dropped just now"


def test_an_endpoint_that_is_taken_is_an_error_that_names_its_field(open_publisher: Any) -> None:
    taken = open_publisher().endpoint.replace("127.0.0.1", "*")
    with pytest.raises(ConfigError, match=r"--kv-events-config: endpoint 'tcp://\*:\d+' cannot be used: Address"):
        EventPublisher(KVEventsSettings(taken), 0)
    with pytest.raises(ConfigError, match="--kv-events-config: replay_endpoint 'tcp://no such host:1' cannot be used"):
        EventPublisher(KVEventsSettings("tcp://127.0.0.1:*", "tcp://no such host:1"), 0)
