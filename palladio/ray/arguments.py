"""ServeArguments: what a Serve configuration, `serve run` or a program says of a deployment, checked.

The names are the flags of `palladio serve`, with underscores or dashes, and a few of the deployment's own.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Self

from palladio.flags.server_args import own_flags, parse_server_args
from palladio.ray.tpu_slice import TpuSlice
from palladio.runtime.interface.errors import ConfigError

# Flags of what Serve does in our place, and what to do instead.
_NOT_HERE = {
    "host": "Serve's proxies listen: set http_options",
    "port": "Serve's proxies listen: set http_options",
    "max_connections": "Serve's proxies hold the connections: set max_ongoing_requests",
    "response_write_timeout": "Serve's proxies write to clients: set request_timeout_s of http_options",
    "ssl_certfile": "Serve's proxies listen: set ssl_certfile of http_options",
    "ssl_keyfile": "Serve's proxies listen: set ssl_keyfile of http_options",
    "ssl_keyfile_password": "Serve's proxies listen: set ssl_keyfile_password of http_options",
    "ssl_ca_certs": "Serve's proxies listen: set ssl_ca_certs of http_options",
    "enable_ssl_refresh": "Serve's proxies listen",
    "root_path": "Serve sets it: the route_prefix of the application",
    "nnodes": "tpu and tpu_topology say how many hosts a replica has",
    "node_rank": "each replica numbers its own hosts",
    "dist_init_addr": "each replica chooses its own",
    "kv_events_config": "all replicas of a host would publish on one port; run `palladio serve` behind a router",
}

_OPTIONAL = frozenset({"max_replicas", "tpu", "tpu_topology"})
_TEXTS = frozenset({"name", "tpu", "tpu_topology"})
_INTEGERS = frozenset({"num_replicas", "min_replicas", "max_replicas", "max_ongoing_requests"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """
    Attributes:
        name: of the deployment.
        num_replicas: a fixed number; not with max_replicas.
        min_replicas, max_replicas: Serve scales between them, by the load of the engines.
        target_load: load of a replica that scaling aims at: 1.0 is as many requests as it runs at a time.
        upscale_delay_s, downscale_delay_s: seconds that more or fewer replicas must have been needed.
        look_back_period_s: seconds over which loads are averaged.
        max_ongoing_requests: requests that a replica takes at a time, running and waiting; more wait in the proxies.
        num_cpus, num_gpus: of each replica.
        resources: further resources of each replica.
        tpu, tpu_topology: a slice for each replica, such as v6e and 4x4.
        hold_seconds: so long requests wait while the replica's engine restarts after a failure; then a 503.
        health_check_period_s: seconds between two health checks.
    """

    name: str = "palladio"
    num_replicas: int = 1
    min_replicas: int = 1
    max_replicas: int | None = None
    target_load: float = 0.8
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    look_back_period_s: float = 30.0
    max_ongoing_requests: int = 1024
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    tpu: str | None = None
    tpu_topology: str | None = None
    hold_seconds: float = 120.0
    health_check_period_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("num_replicas", "min_replicas", "max_ongoing_requests"):
            _require(vars(self)[name] >= 1, f"{name} must be at least 1, got {vars(self)[name]}")
        for name in ("upscale_delay_s", "downscale_delay_s", "num_cpus", "num_gpus", "hold_seconds"):
            number = vars(self)[name]
            _require(0 <= number < math.inf, f"{name} must be ≥ 0 and finite, got {number}")
        for name in ("target_load", "look_back_period_s", "health_check_period_s"):
            number = vars(self)[name]
            _require(0 < number < math.inf, f"{name} must be > 0 and finite, got {number}")
        if self.max_replicas is None:
            _require(self.min_replicas == 1, "min_replicas needs max_replicas; a fixed number is num_replicas")
        else:
            _require(self.num_replicas == 1, "num_replicas is a fixed number: leave it out with max_replicas")
            _require(
                self.max_replicas >= self.min_replicas,
                f"max_replicas must be at least min_replicas {self.min_replicas}, got {self.max_replicas}",
            )
        _require(
            (self.tpu is None) == (self.tpu_topology is None), "tpu and tpu_topology need each other: v6e and 4x4, say"
        )
        _require(self.tpu is None or not self.num_gpus, "a replica has a TPU slice (tpu) or GPUs (num_gpus), not both")
        _ = self.slice

    @property
    def most_replicas(self) -> int:
        return self.num_replicas if self.max_replicas is None else self.max_replicas

    @property
    def slice(self) -> TpuSlice | None:
        if self.tpu is None or self.tpu_topology is None:
            return None
        return TpuSlice.of(self.tpu, self.tpu_topology)


@dataclasses.dataclass(frozen=True)
class ServeArguments:
    """
    Attributes:
        flags: of `palladio serve`, as on a command line.
        drain_timeout: --drain-timeout, seconds.
    """

    flags: tuple[str, ...] = dataclasses.field(repr=False)  # API keys may be among them
    drain_timeout: float
    options: ReplicaOptions

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """
        Args:
            given: name → value. Values may be strings, as `serve run` has them.

        Raises:
            ConfigError: an unknown name, a value that does not fit, or a flag of what Serve does itself.
        """
        names = {field.name for field in dataclasses.fields(ReplicaOptions)}
        options: dict[str, Any] = {}
        flags: list[str] = []
        for key, value in given.items():
            name = key.lstrip("-").replace("-", "_")
            if name in names:
                options[name] = _convert(name, value)
            elif name in _NOT_HERE:
                raise _not_here(name)
            elif value is not None:
                flags += _words(name, value)
        made = cls(tuple(flags), 0.0, ReplicaOptions(**options))
        return dataclasses.replace(made, drain_timeout=made._check_flags())

    def _check_flags(self) -> float:
        """Returns --drain-timeout."""
        if not any(flag.partition("=")[0] in ("--model-path", "--model") for flag in self.flags):
            raise ConfigError("model_path is required: a Hugging Face model directory, a hub id, or `default`")
        args = parse_server_args(self.flags).args
        defaults, given, http = own_flags(), args.flags(), args.http
        for name in _NOT_HERE:
            if given.get(name) != defaults.get(name):  # by another name of the flag
                raise _not_here(name)
        for name, value in (("database_url", http.database_url), ("blob_store", http.blob_store)):
            is_kept = value is None or http.file_storage_path is not None
            _require(is_kept, f"{name} needs file_storage_path: a directory that all nodes see")
        if self.options.most_replicas > 1 and http.file_storage_path is not None and http.database_url is None:
            raise ConfigError(
                "file_storage_path is the folder of one server: leave it out, set database_url for all replicas to "
                "share it, or have one replica (num_replicas 1, no max_replicas)"
            )
        return http.drain_timeout


def _not_here(name: str) -> ConfigError:
    return ConfigError(f"{name} has no effect under Ray Serve: {_NOT_HERE[name]}")


def _require(is_right: bool, message: str) -> None:
    if not is_right:
        raise ConfigError(message)


def _convert(name: str, value: Any) -> Any:
    """A value of a field of ReplicaOptions. Raises ConfigError: it does not fit."""
    if name == "resources":
        if not isinstance(value, Mapping):
            raise ConfigError(f"resources must be an object of name → amount, got {value!r}")
        return {str(key): _convert(f"resources.{key}", amount) for key, amount in value.items()}
    if value is None and name in _OPTIONAL:
        return None
    if name in _TEXTS and isinstance(value, str):
        return value
    try:
        number = float(value)
        if isinstance(value, bool) or name in _TEXTS or (name in _INTEGERS and not number.is_integer()):
            raise ValueError
    except (TypeError, ValueError):
        wanted = "a string" if name in _TEXTS else "a whole number" if name in _INTEGERS else "a number"
        raise ConfigError(f"{name} must be {wanted}, got {value!r}") from None
    return int(number) if name in _INTEGERS else number


def _words(name: str, value: Any) -> list[str]:
    """A flag as on a command line."""
    flag = "--" + name.replace("_", "-")
    if isinstance(own_flags().get(name), bool) and isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if isinstance(value, bool):
        return [flag if value else f"--no-{name.replace('_', '-')}"]
    if isinstance(value, list | tuple):
        return [flag, *(str(word) for word in value)]
    return [f"{flag}={json.dumps(value) if isinstance(value, Mapping) else value}"]
