"""Which devices and hosts work together: flags that hosts, groups and meshes are made by."""

import dataclasses
from typing import Literal

from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.field_checks import check_fields, check_positive

LoadBalanceMethod = Literal["round_robin", "shortest_queue", "prefix"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Which devices and hosts work together.

    Attributes:
        tp_size: chips that share each layer, on all hosts together.
        ep_size: of a mixture of experts, parts of these chips that have experts of their own; the chips of a part share
            each of its experts. It divides tp_size; 1: all chips share all experts.
        dp_size: groups of tp_size chips, each with all of the weights, and with requests and a KV cache of its own; one
            program serves all of them at once.
        load_balance_method: which group gets a request: round_robin, one after the other; shortest_queue, the one whose
            requests have the fewest tokens, prompts and outputs of running and waiting ones together; prefix, the one
            that has the longest part of its prompt cached, unless that is far busier than others.
        nnodes: hosts that run this model together, each with the same command; default: as many as LeaderWorkerSet
            (LWS_GROUP_SIZE) or GKE (TPU_WORKER_HOSTNAMES) started, else 1.
        node_rank: number of this host among them; host 0 serves HTTP; default: what LeaderWorkerSet, GKE or the TPU VM
            says.
        dist_init_addr: host:port of host 0, where the others come; default: as for node_rank, port 8478.
        dist_coordinator_port: another port of host 0, for jax's coordination service; host 0 tells it to the others; 0:
            any free one; default: the port after that of dist_init_addr.
        dist_timeout: seconds that hosts wait for each other at start.
    """

    tp_size: int = 1
    ep_size: int = 1
    dp_size: int = 1
    load_balance_method: LoadBalanceMethod = "round_robin"
    nnodes: int | None = None
    node_rank: int | None = None
    dist_init_addr: str | None = None
    dist_coordinator_port: int | None = None
    dist_timeout: int = 600

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def num_hosts(self) -> int:
        return self.nnodes or 1


def check_parts(parallel: ParallelConfig) -> None:
    """
    Raises:
        ConfigError: ep_size does not divide tp_size.
    """
    tp_size, ep_size = parallel.tp_size, parallel.ep_size
    if tp_size % ep_size:
        fitting = [f"--ep-size {n}" for n in range(1, tp_size + 1) if tp_size % n == 0]
        raise ConfigError(
            f"--ep-size {ep_size} must divide --tp-size {tp_size}, whose chips it parts: use --tp-size {ep_size} or a "
            f"multiple, or {', '.join(fitting)}"
        )


def check_hosts(parallel: ParallelConfig) -> None:
    """
    Raises:
        ConfigError: what is said of hosts does not fit together.
    """
    check_positive("--nnodes", parallel.nnodes)
    check_positive("--dist-timeout", parallel.dist_timeout)
    num_hosts, rank = parallel.num_hosts, parallel.node_rank
    if rank is not None and not 0 <= rank < num_hosts:
        raise ConfigError(f"--node-rank {rank}: with --nnodes {num_hosts}, hosts are numbered 0 … {num_hosts - 1}")
    if num_hosts == 1:
        return
    if rank is None or parallel.dist_init_addr is None:
        raise ConfigError(
            f"--nnodes {num_hosts} needs --node-rank and --dist-init-addr HOST:PORT of host 0, the same on every host: "
            "nothing here says them"
        )
    host, _, port = parallel.dist_init_addr.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigError(f"--dist-init-addr must be host:port, got {parallel.dist_init_addr!r}")
    coordinator = int(port) + 1 if parallel.dist_coordinator_port is None else parallel.dist_coordinator_port
    if not 0 <= coordinator < 2**16 or coordinator == int(port):
        raise ConfigError(
            f"--dist-coordinator-port must be a port beside --dist-init-addr's {port}, or 0 for any free one, got "
            f"{coordinator}"
        )
