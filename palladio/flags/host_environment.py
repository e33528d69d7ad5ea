"""Which hosts run a model together, where the platform says it: LeaderWorkerSet, GKE's TPU slices, TPU VMs."""

import dataclasses
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import ConfigError

DEFAULT_PORT = 8478
_METADATA_HOST = "metadata.google.internal"
_METADATA_SECONDS = 3.0


class _Place(NamedTuple):
    """Where this host stands: how many there are, which one it is, and the name of host 0."""

    num_hosts: int
    rank: int
    leader: str


def find_hosts(parallel: ParallelConfig, environment: Mapping[str, str]) -> ParallelConfig:
    """The same with what the platform says of it, where no flag does.

    Args:
        environment: LWS_GROUP_SIZE, LWS_WORKER_INDEX and LWS_LEADER_ADDRESS; TPU_WORKER_HOSTNAMES and TPU_WORKER_ID;
            and, for --nnodes on a TPU VM that has none of these, the metadata server (GCE_METADATA_HOST).

    Raises:
        ConfigError: the variables contradict each other, or the flags.
    """
    is_open = None in (parallel.node_rank, parallel.dist_init_addr)
    if parallel.nnodes == 1 or not is_open:
        return parallel
    place = _from_lws(environment) or _from_gke(environment)
    if place is None and parallel.num_hosts > 1:
        place = _from_metadata(environment.get("GCE_METADATA_HOST") or _METADATA_HOST)
    if place is None or place.num_hosts == 1:
        return parallel
    if parallel.nnodes not in (None, place.num_hosts):
        raise ConfigError(
            f"--nnodes {parallel.nnodes} does not match the {place.num_hosts} hosts of this job; omit --nnodes"
        )
    return dataclasses.replace(
        parallel,
        nnodes=place.num_hosts,
        node_rank=place.rank if parallel.node_rank is None else parallel.node_rank,
        dist_init_addr=parallel.dist_init_addr or f"{place.leader}:{DEFAULT_PORT}",
    )


def _from_lws(environment: Mapping[str, str]) -> _Place | None:
    size, index, leader = (environment.get(f"LWS_{name}") for name in ("GROUP_SIZE", "WORKER_INDEX", "LEADER_ADDRESS"))
    if not size or not index or not leader:
        return None
    return _Place(_number("LWS_GROUP_SIZE", size), _number("LWS_WORKER_INDEX", index), leader)


def _from_gke(environment: Mapping[str, str]) -> _Place | None:
    names, index = environment.get("TPU_WORKER_HOSTNAMES"), environment.get("TPU_WORKER_ID")
    if not names or not index:
        return None
    return _place(names.split(","), _number("TPU_WORKER_ID", index))


def _from_metadata(host: str) -> _Place | None:
    """What a TPU VM's metadata server says; None: there is none."""
    try:
        index = _attribute(host, "agent-worker-number")
        endpoints = _attribute(host, "worker-network-endpoints")
    except (OSError, urllib.error.URLError):
        return None
    return _place([entry.split(":")[2] for entry in endpoints.split(",")], _number("agent-worker-number", index))


def _attribute(host: str, name: str) -> str:
    request = urllib.request.Request(
        f"http://{host}/computeMetadata/v1/instance/attributes/{name}", headers={"Metadata-Flavor": "Google"}
    )
    with urllib.request.urlopen(request, timeout=_METADATA_SECONDS) as answer:
        text: str = answer.read().decode()
    return text.strip()


def _place(names: Sequence[str], rank: int) -> _Place:
    return _Place(len(names), rank, names[0].strip())


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(
            f"variable {name} must be a number, got {text!r}; set --nnodes, --node-rank and --dist-init-addr"
        ) from error
