"""--kv-events-config: vLLM's JSON and SGLang's; what is wrong is told with the name of its field."""

import json
from typing import Any

import pytest

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.kv_events_config import KVEventsSettings, at_rank, is_bound
from palladio.runtime.interface.errors import ConfigError

ALL = {"endpoint": "tcp://*:6000", "replay_endpoint": "tcp://*:6010", "topic": "kv@pod", "buffer_steps": 7, "hwm": 0}


def settings_of(given: dict[str, Any], num_ranks: int = 1) -> KVEventsSettings | None:
    return KVEventsSettings.of(json.dumps(given), num_ranks)


@pytest.mark.parametrize(
    ("given", "is_on"),
    [
        ({"enable_kv_cache_events": True, "publisher": "zmq"}, True),
        ({"enable_kv_cache_events": True}, True),
        ({"publisher": "zmq"}, True),  # SGLang's JSON has no switch
        ({"enable_kv_cache_events": False, "publisher": "zmq"}, False),
        ({"enable_kv_cache_events": True, "publisher": "null"}, False),
        ({"publisher": "null"}, False),
        ({}, False),
    ],
)
def test_who_switches_it_on(given: dict[str, Any], is_on: bool) -> None:
    usual = KVEventsSettings(event_format="map" if "enable_kv_cache_events" in given else "array")
    assert settings_of(given) == (usual if is_on else None)
    for event_format in ("array", "map"):
        settings = settings_of(given | {"event_format": event_format})
        assert (settings and settings.event_format) == (event_format if is_on else None)


def test_all_fields_and_vllms_defaults() -> None:
    assert settings_of({"publisher": "zmq", "max_queue_size": 9, **ALL}) == KVEventsSettings(**ALL, max_queue_size=9)
    default = KVEventsSettings()
    assert (default.endpoint, default.buffer_steps, default.hwm, default.max_queue_size) == (
        *("tcp://*:5557", 10_000),
        *(100_000, 100_000),
    )


@pytest.mark.parametrize(
    ("given", "num_ranks", "error"),
    [
        ({"publisher": "http"}, 1, 'publisher must be "zmq" or "null", got \'http\''),
        ({"enable_kv_cache_events": 1}, 1, "enable_kv_cache_events must be true or false, got 1"),
        ({"enabled": True}, 1, "enabled is not supported; there are enable_kv_cache_events, publisher, endpoint"),
        ({"endpoint": "5557"}, 1, "endpoint must be tcp://HOST:PORT, or ipc://PATH, got '5557'"),
        ({"endpoint": "tcp://*:port"}, 1, "endpoint must be tcp://HOST:PORT"),
        ({"endpoint": None}, 1, "endpoint must be tcp://HOST:PORT"),
        ({"endpoint": "tcp://*:65535"}, 2, "endpoint: ports end at 65535; each of 2 data-parallel ranks has one"),
        ({"replay_endpoint": 5558}, 1, "replay_endpoint must be tcp://HOST:PORT"),
        ({"replay_endpoint": "tcp://*:5557"}, 1, "replay_endpoint 'tcp://*:5557' is a place of endpoint"),
        ({"replay_endpoint": "tcp://*:5558"}, 2, "which takes its own and 1 after it"),
        ({"endpoint": "ipc:///a", "replay_endpoint": "ipc:///a"}, 1, "replay_endpoint 'ipc:///a' is a place of"),
        ({"event_format": "json"}, 1, 'event_format must be "array" or "map", got \'json\''),
        ({"event_format": []}, 1, "event_format must be"),
        ({"topic": 1}, 1, "topic must be a string, got 1"),
        ({"buffer_steps": 0}, 1, "buffer_steps must be in 1 … 2147483647, got 0"),
        ({"hwm": -1}, 1, "hwm must be in 0 … 2147483647, got -1"),
        ({"max_queue_size": True}, 1, "max_queue_size must be in 1 … 2147483647, got True"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], num_ranks: int, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings_of(given, num_ranks)
    assert str(raised.value).startswith("--kv-events-config: ")
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["{", "[]", '"zmq"'])
def test_what_is_no_object(text: str) -> None:
    with pytest.raises(ConfigError, match="--kv-events-config must be a JSON object, got "):
        KVEventsSettings.of(text, 1)


def test_the_engine_checks_it_before_anything_else() -> None:
    flags = {"model_path": "m", "kv_events_config": '{"publisher": "zmq"}'}
    with pytest.raises(ConfigError, match="--kv-events-config tells of the prefix cache: leave --disable-radix-cache"):
        EngineConfig.from_flags({**flags, "disable_radix_cache": True})
    config = json.dumps({"publisher": "zmq", "replay_endpoint": "tcp://*:5559"})
    with pytest.raises(ConfigError, match="replay_endpoint"):
        EngineConfig.from_flags({**flags, "dp_size": 3, "kv_events_config": config})


def test_each_rank_has_its_own_place() -> None:
    assert [at_rank("tcp://*:5557", rank) for rank in (0, 2)] == ["tcp://*:5557", "tcp://*:5559"]
    assert at_rank("tcp://[::1]:5557", 1) == "tcp://[::1]:5558"
    assert at_rank("ipc:///run/kv", 1) == "ipc:///run/kv_dp1"
    assert at_rank("tcp://127.0.0.1:*", 1) == "tcp://127.0.0.1:*"
    bound = {place: is_bound(place) for place in ("tcp://*:1", "tcp://[::]:1", "ipc:///a", "tcp://router:1")}
    assert list(bound.values()) == [True, True, True, False]
