"""OtherHosts: hosts 1 … n-1 of a replica whose TPU slice has several, each a process that an actor of Ray's holds."""

import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Self

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from palladio.processes.child import python_path
from palladio.ray.tpu_slice import TpuSlice
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import EngineDeadError

SLICE_LABEL = "ray.io/tpu-slice-name"  # Ray's label of nodes; all hosts of a slice have the same
_RESERVE_SECONDS = 300.0


class WorkerHost:
    """One of the other hosts: `palladio serve --node-rank N` on its node."""

    def __init__(self, flags: Sequence[str]) -> None:
        command = [sys.executable, "-P", "-m", "palladio", "serve", *flags]
        self._process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": python_path()})

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclasses.dataclass(frozen=True)
class OtherHosts:
    """
    Attributes:
        parallel: for host 0.
        group: the placement group of the others.
    """

    parallel: ParallelConfig
    group: Any
    actors: tuple[Any, ...]

    @classmethod
    def start(cls, tpu: TpuSlice, flags: Sequence[str]) -> Self:
        """Reserves the other hosts of the slice that this process is in, and starts them.

        Raises:
            EngineDeadError: they are not free.
        """
        name = _slice_name()
        selector = {} if name is None else {SLICE_LABEL: name}
        bundles = tpu.other_bundles()
        group = placement_group(bundles, strategy="STRICT_SPREAD", bundle_label_selector=[selector] * len(bundles))
        if not group.wait(_RESERVE_SECONDS):
            remove_placement_group(group)
            raise EngineDeadError(
                f"the other {len(bundles)} hosts of slice {name or tpu.pod_type} are not free: each needs {bundles[0]}"
            )
        address = f"{ray.util.get_node_ip_address()}:{_free_port()}"
        # Port 0: any free one, for another replica may have its host 0 on this node.
        parallel = ParallelConfig(nnodes=tpu.num_hosts, node_rank=0, dist_init_addr=address, dist_coordinator_port=0)
        remote: Any = ray.remote(WorkerHost)
        actors = []
        for index in range(len(bundles)):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            hosts = (f"--nnodes={tpu.num_hosts}", f"--node-rank={index + 1}", f"--dist-init-addr={address}")
            actor = remote.options(
                scheduling_strategy=strategy, num_cpus=bundles[index]["CPU"], resources={"TPU": bundles[index]["TPU"]}
            )
            actors.append(actor.remote([*flags, *hosts, "--dist-coordinator-port=0"]))
        return cls(parallel, group, tuple(actors))

    def stop(self) -> None:
        """They end with host 0's engine; this makes sure, and gives the hosts back."""
        for actor in self.actors:
            ray.kill(actor)
        remove_placement_group(self.group)


def _slice_name() -> str | None:
    """Return the name of this node's TPU slice; None: it is in none, or in a slice of one host."""
    mine = ray.get_runtime_context().get_node_id()
    labels = next(node["Labels"] for node in ray.nodes() if node["NodeID"] == mine)
    name: str | None = labels.get(SLICE_LABEL)
    return name


def _free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
