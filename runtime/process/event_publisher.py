"""EventPublisher: sends batches of events to subscribers, over ZeroMQ, with the messages of vLLM.

A message has three frames: the topic, the batch's number (8 bytes, big endian) and the batch in msgpack: time, events,
data-parallel rank. Who misses numbers asks the replay socket for all batches from a number on (8 bytes), and gets each
one that is still kept as number and batch, then the number -1 with an empty batch.

`publish` never waits. A batch that does not get to a subscriber, because that reads too slowly, can still be replayed.
"""

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from palladio.runtime.interface.config.kv_events_config import FLAG, MAX_COUNT, KVEventsSettings, at_rank, is_bound
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.outputs.counts import EventCounts

_END = (-1).to_bytes(8, "big", signed=True)
_CLOSE_SECONDS = 1.0  # that an orderly end takes at most

logger = logging.getLogger("palladio.engine")


class EventPublisher:
    """One data-parallel rank's. `publish` and `close` belong to one thread; another one sends.

    Attributes:
        endpoint: where subscribers connect, or, if they are the ones that bind, where it has connected.
        replay_endpoint: "": there is none.

    Raises:
        ConfigError: an endpoint cannot be bound; the message names the field.
    """

    def __init__(self, settings: KVEventsSettings, rank: int) -> None:
        self._rank = rank
        self._topic = settings.topic.encode()
        self._as_maps = settings.event_format == "map"
        self._encoder = msgspec.msgpack.Encoder()
        self._next = 0  # number of the next batch
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=settings.buffer_steps)
        self._lock = threading.Lock()  # of what is kept
        self._num_unqueued = 0
        self._num_undelivered = 0
        self._has_warned = False
        context: zmq.Context[Any] = zmq.Context.instance()
        queue = f"inproc://{uuid.uuid4()}"
        self._queued, self._queue, self._events, self._replay = sockets = (
            _open(context, zmq.PULL, 1),
            _open(context, zmq.PUSH, settings.max_queue_size),
            _open(context, zmq.PUB, settings.hwm),
            # Two whole answers: ZeroMQ learns only once in half of that many messages what has been read, so after an
            # answer that was read to its end there may be room for one.
            _open(context, zmq.ROUTER, min(2 * (settings.buffer_steps + 1), MAX_COUNT)),
        )
        self._queued.bind(queue)
        self._queue.connect(queue)
        self._events.setsockopt(zmq.XPUB_NODROP, 1)  # otherwise dropped batches could not be counted
        self._replay.setsockopt(zmq.ROUTER_MANDATORY, 1)  # the same
        self.replay_endpoint = ""
        try:
            self.endpoint = _attach(self._events, "endpoint", settings.endpoint, rank)
            if settings.replay_endpoint is not None:
                self.replay_endpoint = _attach(self._replay, "replay_endpoint", settings.replay_endpoint, rank)
        except ConfigError:
            for socket in sockets:
                socket.close()
            raise
        logger.info("KV events of data-parallel rank %d: %s", rank, self._describe(settings))
        self._thread = threading.Thread(target=self._run, name=f"kv-events-{rank}", daemon=True)
        self._thread.start()

    def _describe(self, settings: KVEventsSettings) -> str:
        """Describe which side connects: an endpoint that looks like one to bind may be one to connect to."""
        binds = is_bound(settings.endpoint)
        connects = "subscribers connect to" if binds else "it connects to subscribers at"
        asked = f", {'and' if binds else 'which'} ask for replays at {self.replay_endpoint}"
        return f"{connects} {self.endpoint}{asked if self.replay_endpoint else ''}"

    def counts(self) -> EventCounts:
        return EventCounts(num_event_batches=self._next, num_event_drops=self._num_unqueued + self._num_undelivered)

    def publish(self, events: Sequence[Any]) -> None:
        """Send a batch of events.

        Args:
            events: msgspec structs.
        """
        number = self._next.to_bytes(8, "big")
        self._next += 1
        if self._as_maps:
            events = [{"type": type(event).__name__, **msgspec.structs.asdict(event)} for event in events]
        batch = self._encoder.encode((time.time(), events, self._rank))
        with self._lock:
            self._kept.append((number, batch))
        try:
            self._queue.send_multipart((number, batch), zmq.NOBLOCK)
        except zmq.Again:
            self._warn()
            self._num_unqueued += 1

    def close(self) -> None:
        """Sends what is queued, and frees the endpoints."""
        if self._queue.closed:
            return
        self._queue.setsockopt(zmq.SNDTIMEO, int(1000 * _CLOSE_SECONDS))
        try:
            self._queue.send(b"")
        except zmq.Again:
            logger.warning("KV events are still queued at the end of data-parallel rank %d", self._rank)
        self._queue.close()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._queued, zmq.POLLIN)
        poller.register(self._replay, zmq.POLLIN)
        is_open = True
        while is_open:
            ready = dict(poller.poll())
            if self._replay in ready:
                self._resend(self._replay.recv_multipart())
            if self._queued in ready:
                message = self._queued.recv_multipart()
                is_open = len(message) > 1
                if is_open:
                    self._send((self._topic, *message))
        for socket in (self._queued, self._events, self._replay):
            socket.close()

    def _send(self, message: tuple[bytes, ...]) -> None:
        try:
            self._events.send_multipart(message, zmq.NOBLOCK)
        except zmq.Again:  # too much waits for some subscriber: the others get it
            self._warn()
            self._num_undelivered += 1
            self._events.setsockopt(zmq.XPUB_NODROP, 0)
            self._events.send_multipart(message, zmq.NOBLOCK)
            self._events.setsockopt(zmq.XPUB_NODROP, 1)

    def _resend(self, question: list[bytes]) -> None:
        """Answers REQ and DEALER sockets: what stood before the number comes back before each answer."""
        *client, first = question
        if len(first) != len(_END):
            return
        with self._lock:
            kept = list(self._kept)
        wanted = [(number, batch) for number, batch in kept if number >= first]
        try:
            for answer in (*wanted, (_END, b"")):
                self._replay.send_multipart((*client, *answer), zmq.NOBLOCK)
        except zmq.Again:  # it has asked again without reading: it gets what waits, and not the end of this answer
            self._warn()
            self._num_undelivered += 1
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:  # it has gone
                raise

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "A subscriber of KV events reads too slowly: batches do not get to it, and it has to ask for them "
                "again (replay_endpoint of %s). From here on the metric palladio:kv_event_drops_total counts how often",
                FLAG,
            )


def _open(context: "zmq.Context[Any]", kind: int, most: int) -> "zmq.Socket[bytes]":
    """Open a socket.

    Args:
        most: messages that may wait in it; 0: any number.
    """
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.set_hwm(most)
    socket.setsockopt(zmq.LINGER, int(1000 * _CLOSE_SECONDS))
    return socket


def _attach(socket: "zmq.Socket[bytes]", field: str, endpoint: str, rank: int) -> str:
    """Binds or connects a socket; returns where it is.

    Raises:
        ConfigError: the endpoint cannot be used.
    """
    place = at_rank(endpoint, rank)
    socket.setsockopt(zmq.IPV6, int("::" in place))
    try:
        if field == "endpoint" and not is_bound(place):
            socket.connect(place)
            return place
        socket.bind(place)
    except zmq.ZMQError as error:
        raise ConfigError(f"{FLAG}: {field} {place!r} cannot be used: {error}") from None
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
