"""--kv-events-config: where the prefix cache publishes its pages. JSON with the keys of vLLM and SGLang."""

import dataclasses
import json
from typing import Any, Literal, NamedTuple, Self, get_args

from palladio.runtime.interface.errors import ConfigError

FLAG = "--kv-events-config"
MAX_COUNT = 2**31 - 1  # ZeroMQ's
_MAX_PORT = 65535
EventFormat = Literal["array", "map"]
_LEAST = {"buffer_steps": 1, "hwm": 0, "max_queue_size": 1}


@dataclasses.dataclass(frozen=True)
class KVEventsSettings:
    """
    Attributes:
        endpoint: of the PUB socket of rank 0. replay_endpoint: of the ROUTER socket that sends batches again; None: no
            such socket.
        topic: the first frame of each message.
        buffer_steps: newest batches that can be sent again.
        hwm: batches that may wait for one subscriber; 0: any number. max_queue_size: that may wait to be sent.
        event_format: what an event is in msgpack: an array, its name first, or a map, its name under "type".
    """

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    event_format: EventFormat = "array"

    @classmethod
    def of(cls, text: str | None, num_ranks: int) -> Self | None:
        """None: nothing is to be published.

        Raises:
            ConfigError: the text is no such JSON; the message names the field.
        """
        if text is None:
            return None
        try:
            given = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{FLAG} must be a JSON object, got {text!r}: {error}") from None
        if not isinstance(given, dict):
            raise ConfigError(f"{FLAG} must be a JSON object, got {text!r}")
        names = [field.name for field in dataclasses.fields(cls)]
        if unknown := [key for key in given if key not in ("publisher", "enable_kv_cache_events", *names)]:
            known = ", ".join(("enable_kv_cache_events", "publisher", *names))
            raise ConfigError(f"{FLAG}: {unknown[0]} is not supported; there are {known}")
        is_on = _is_on(given)
        usual = {"event_format": "map"} if given.get("enable_kv_cache_events") else {}  # as vLLM has them since 0.24
        settings = cls(**usual | {name: given[name] for name in names if name in given})
        settings._check(num_ranks)
        return settings if is_on else None

    def _check(self, num_ranks: int) -> None:
        if not isinstance(self.topic, str):
            raise ConfigError(f"{FLAG}: topic must be a string, got {self.topic!r}")
        if self.event_format not in get_args(EventFormat):
            raise ConfigError(f'{FLAG}: event_format must be "array" or "map", got {self.event_format!r}')
        for name, least in _LEAST.items():
            count = vars(self)[name]
            if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= MAX_COUNT:
                raise ConfigError(f"{FLAG}: {name} must be in {least} … {MAX_COUNT}, got {count!r}")
        place = _Place.of("endpoint", self.endpoint, num_ranks)
        if self.replay_endpoint is None:
            return
        replay = _Place.of("replay_endpoint", self.replay_endpoint, num_ranks)
        if not is_bound(self.endpoint) or place.scheme != replay.scheme:
            return
        if place == replay if place.port is None else replay.port and abs(place.port - replay.port) < num_ranks:
            taken = f" and {num_ranks - 1} after it (one for each data-parallel rank)" if num_ranks > 1 else ""
            raise ConfigError(
                f"{FLAG}: replay_endpoint {self.replay_endpoint!r} is a place of endpoint {self.endpoint!r}, which "
                f"takes its own{taken}: use another"
            )


def is_bound(endpoint: str) -> bool:
    """Whether subscribers come to a publisher's endpoint; else it connects to theirs. The rule is vLLM's."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def at_rank(endpoint: str, rank: int) -> str:
    """The endpoint of a data-parallel rank: the port after that of the rank before."""
    place = _Place.read(endpoint)
    if rank == 0 or place.port == 0:
        return endpoint
    return f"{endpoint}_dp{rank}" if place.port is None else f"tcp://{place.rest}:{place.port + rank}"


class _Place(NamedTuple):
    """A scheme, and a host and a port (0: any), or a path or name (and no port)."""

    scheme: str
    rest: str
    port: int | None

    @classmethod
    def read(cls, endpoint: str) -> Self:
        scheme, _, rest = endpoint.partition("://")
        if scheme != "tcp":
            return cls(scheme, rest, None)
        host, _, port = rest.rpartition(":")
        return cls(scheme, host, 0 if port == "*" else int(port) if port.isascii() and port.isdecimal() else -1)

    @classmethod
    def of(cls, name: str, endpoint: Any, num_ranks: int) -> Self:
        """
        Raises:
            ConfigError: it is none, or has no ports for all ranks.
        """
        place = cls.read(endpoint) if isinstance(endpoint, str) else None
        if place is None or place.scheme not in ("tcp", "ipc", "inproc") or not place.rest or place.port == -1:
            raise ConfigError(f"{FLAG}: {name} must be tcp://HOST:PORT, or ipc://PATH, got {endpoint!r}")
        if place.port is not None and place.port + num_ranks - 1 > _MAX_PORT:
            most = f"; each of {num_ranks} data-parallel ranks has one" if num_ranks > 1 else ""
            raise ConfigError(f"{FLAG}: {name}: ports end at {_MAX_PORT}{most}, got {endpoint!r}")
        return place


def _is_on(given: dict[str, Any]) -> bool:
    """vLLM has a switch; SGLang's switch is the publisher."""
    switch, publisher = given.get("enable_kv_cache_events"), given.get("publisher")
    if switch is not None and not isinstance(switch, bool):
        raise ConfigError(f"{FLAG}: enable_kv_cache_events must be true or false, got {switch!r}")
    if publisher not in ("zmq", "null", None):
        raise ConfigError(f'{FLAG}: publisher must be "zmq" or "null", got {publisher!r}')
    if switch is None:
        return bool(publisher == "zmq")
    return switch and publisher != "null"
