"""Parallelism over devices and hosts: the flags that set up meshes, data-parallel ranks and hosts."""

import dataclasses
from typing import Literal

from palladio.runtime.interface.config.field_checks import check_fields, check_positive
from palladio.runtime.interface.errors import ConfigError

LoadBalanceMethod = Literal["round_robin", "shortest_queue", "prefix"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Parallelism over devices and hosts.

    Attributes:
        tp_size: Tensor parallel size: devices that share each layer, on all hosts together.
        ep_size: Expert parallel size: the --tp-size devices form this many parts, each with its own experts; the
            devices of a part share each of its experts. It must divide --tp-size. 1: all devices share all experts.
        dp_size: Data parallel size: ranks of --tp-size devices, each with a full copy of the weights and its own
            requests and KV cache. One program runs all ranks at once.
        enable_dp_attention: Data-parallel attention, for mixtures of experts: the --tp-size devices form --dp-size
            ranks with requests, KV cache and attention of their own, and share the experts between them.
        load_balance_method: Which data-parallel rank gets a request: round_robin, each in turn; shortest_queue, the one
            whose running and waiting requests have the fewest tokens (prompts and outputs); prefix, the one with the
            longest cached prefix of the prompt, unless it is far busier than the others.
        base_gpu_id: Number of the first GPU to use, of those that CUDA_VISIBLE_DEVICES leaves; on several hosts, of
            each. An error on other devices, unless 0.
        nnodes: Number of hosts that serve the model together, each started with the same command. Default: the number
            that LeaderWorkerSet (LWS_GROUP_SIZE) or GKE (TPU_WORKER_HOSTNAMES) started, else 1.
        node_rank: Rank of this host; host 0 serves HTTP. Default: from LeaderWorkerSet, GKE or the TPU VM.
        dist_init_addr: host:port of host 0, where the other hosts connect. Default: as for --node-rank, port 8478.
        dist_coordinator_port: Second port of host 0, for jax's coordination service; host 0 sends it to the other
            hosts. 0: any free port. Default: the port after that of --dist-init-addr.
        dist_timeout: Seconds that hosts wait for each other at start.
    """

    tp_size: int = 1
    ep_size: int = 1
    dp_size: int = 1
    enable_dp_attention: bool = False
    load_balance_method: LoadBalanceMethod = "round_robin"
    base_gpu_id: int = 0
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

    @property
    def rank_size(self) -> int:
        """Devices of a data-parallel rank."""
        return self.tp_size // self.dp_size if self.enable_dp_attention else self.tp_size

    @property
    def rank_parts(self) -> int:
        """Parts of a rank's devices that have experts of their own."""
        return max(1, self.ep_size // self.dp_size) if self.enable_dp_attention else self.ep_size

    @property
    def num_devices(self) -> int:
        """In use, on all hosts."""
        return self.rank_size * self.dp_size


def check_parts(parallel: ParallelConfig) -> None:
    """
    Raises:
        ConfigError: ep_size does not divide tp_size, dp_size neither where ranks are made of its devices, or the first
            GPU's number is negative.
    """
    if parallel.base_gpu_id < 0:
        raise ConfigError(f"--base-gpu-id must be 0 or more, got {parallel.base_gpu_id}")
    tp_size, ep_size, dp_size = parallel.tp_size, parallel.ep_size, parallel.dp_size
    if parallel.enable_dp_attention and tp_size % dp_size:
        fitting = [f"--dp-size {n}" for n in range(1, tp_size + 1) if tp_size % n == 0]
        raise ConfigError(
            f"--dp-size {dp_size} must divide --tp-size {tp_size}: --enable-dp-attention makes ranks of its devices: "
            f"use {', '.join(fitting)}"
        )
    if parallel.enable_dp_attention and ep_size > 1 and ep_size % dp_size:
        raise ConfigError(
            f"--ep-size {ep_size} must be a multiple of --dp-size {dp_size}: with --enable-dp-attention each rank has "
            f"experts of its own; omit --ep-size, or use {dp_size}"
        )
    if tp_size % ep_size:
        fitting = [f"--ep-size {n}" for n in range(1, tp_size + 1) if tp_size % n == 0]
        raise ConfigError(
            f"--ep-size {ep_size} must divide --tp-size {tp_size}, whose devices it splits: use --tp-size {ep_size} or "
            f"a multiple, or {', '.join(fitting)}"
        )


def check_hosts(parallel: ParallelConfig) -> None:
    """
    Raises:
        ConfigError: the flags of hosts contradict each other.
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
            "they are neither given nor in the environment"
        )
    host, _, port = parallel.dist_init_addr.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigError(f"--dist-init-addr must be host:port, got {parallel.dist_init_addr!r}")
    coordinator = int(port) + 1 if parallel.dist_coordinator_port is None else parallel.dist_coordinator_port
    if not 0 <= coordinator < 2**16 or coordinator == int(port):
        raise ConfigError(
            f"--dist-coordinator-port must be another port than that of --dist-init-addr ({port}), or 0 for any free "
            f"one, got {coordinator}"
        )
