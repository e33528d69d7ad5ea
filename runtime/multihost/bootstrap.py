"""Joining the other hosts: the meeting, then jax's own, so that all of their devices are one list."""

import dataclasses
import random
import socket
from collections.abc import Callable

import jax

from palladio.runtime.devices.device_choice import choose_device, chosen_gpus
from palladio.runtime.devices.device_wait import DeviceWait
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.parallel_config import ParallelConfig
from palladio.runtime.interface.errors import ConfigError, DeviceTakenError, HostLostError
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.multihost.config_digest import config_digest
from palladio.runtime.multihost.coordinator import HostCoordinator, HostWorker
from palladio.runtime.multihost.host_check import Rendezvous
from palladio.runtime.multihost.links import listen

_MAX_SILENCE = 60.0  # seconds without a word after which a host is lost; --watchdog-timeout may be less
_JAX_HEARTBEAT = 7 * 24 * 3600  # seconds: its own way to find a lost host ends the process without a word


def lead(
    config: EngineConfig, on_lost: Callable[[str], None], on_progress: Callable[[LoadProgress], None] = lambda _: None
) -> tuple[HostCoordinator, EngineConfig]:
    """Host 0: waits for the others. Before this, jax must not have looked for devices. Returns the links to them, and
    the config with what is the same on all hosts.

    Args:
        on_lost: see HostCoordinator.
        on_progress: hears of a wait for this host's device.

    Raises:
        ConfigError: a port is taken, a host was started differently, or has another rank than its devices.
        DeviceTakenError: another process has this host's device.
        HostLostError: one does not come, or cannot use its device.
    """
    rendezvous = rendezvous_of(config)
    if rendezvous.rank > 0:
        raise ConfigError(
            f"--node-rank {rendezvous.rank}: only host 0 runs the Engine; run `palladio serve` with these flags here"
        )
    seed = config.execution.random_seed
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    with _reserve_coordinator(config.parallel, rendezvous.address) as reserved:
        coordinator = int(reserved.getsockname()[1])
        leader = HostCoordinator.meet(rendezvous, {"coordinator": coordinator, "random_seed": seed}, on_lost)
    try:
        wait = DeviceWait(config.execution.device_wait, on_progress, leader.tell_wait)
        _initialize(rendezvous, coordinator, config, wait)
    except (ConfigError, DeviceTakenError) as error:
        culprit = leader.waiting_host()
        leader.close(culprit or f"host 0 could not start: {error}")
        if culprit is not None and isinstance(error, ConfigError):  # such as jax's time-out, which follows from it
            raise HostLostError(culprit) from error
        raise
    return leader, _with_seed(config, seed)


def join(
    config: EngineConfig, on_end: Callable[[str], None], on_progress: Callable[[LoadProgress], None] = lambda _: None
) -> tuple[HostWorker, EngineConfig]:
    """Another host: goes to host 0. Returns its link, and the config with what host 0 decided.

    Raises:
        ConfigError, DeviceTakenError, HostLostError: as `lead`.
    """
    rendezvous = rendezvous_of(config)
    worker, welcome = HostWorker.meet(rendezvous, on_end)
    try:
        wait = DeviceWait(config.execution.device_wait, on_progress, worker.tell_wait)
        _initialize(rendezvous, int(welcome["coordinator"]), config, wait)
    except (ConfigError, DeviceTakenError) as error:
        worker.fail(str(error), ends_itself=True)
        raise
    return worker, _with_seed(config, int(welcome["random_seed"]))


def rendezvous_of(config: EngineConfig) -> Rendezvous:
    parallel = config.parallel
    assert parallel.dist_init_addr is not None, "checked by EngineConfig"
    assert parallel.node_rank is not None, "checked by EngineConfig"
    host, _, port = parallel.dist_init_addr.rpartition(":")
    return Rendezvous(
        rank=parallel.node_rank,
        num_hosts=parallel.num_hosts,
        address=(host.strip("[]"), int(port)),
        timeout=float(parallel.dist_timeout),
        silence=min(_MAX_SILENCE, config.survival.watchdog_timeout or _MAX_SILENCE),
        config_digest=config_digest(config),
    )


def _with_seed(config: EngineConfig, seed: int) -> EngineConfig:
    return dataclasses.replace(config, execution=dataclasses.replace(config.execution, random_seed=seed))


def _initialize(rendezvous: Rendezvous, port: int, config: EngineConfig, wait: DeviceWait) -> None:
    """
    Args:
        config: which devices to use; jax looks for them here.
        wait: for them.

    Raises:
        DeviceTakenError: another process has the device.
        ConfigError: there is no such device, or libtpu numbers the hosts otherwise.
    """
    host = rendezvous.address[0]
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        jax.distributed.initialize(
            name,
            rendezvous.num_hosts,
            rendezvous.rank,
            cluster_detection_method="deactivate",
            initialization_timeout=int(rendezvous.timeout),
            heartbeat_timeout_seconds=_JAX_HEARTBEAT,
            coordinator_bind_address=name,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"--nnodes {rendezvous.num_hosts}: jax.distributed could not connect the hosts: {error}"
        ) from error
    choose_device(config.execution.device, chosen_gpus(config.parallel), wait=wait)
    if (jax.process_index(), jax.process_count()) != (rendezvous.rank, rendezvous.num_hosts):
        raise ConfigError(
            f"--node-rank {rendezvous.rank} with --nnodes {rendezvous.num_hosts} does not match the devices: this is "
            f"host {jax.process_index()} of {jax.process_count()}; use those numbers"
        )


def _reserve_coordinator(parallel: ParallelConfig, address: tuple[str, int]) -> socket.socket:
    """Keep the port of jax's coordination service from other programs until the hosts have met, perhaps for minutes:
    jax does not check the port itself, and ends the process with a segmentation fault if it is taken.

    Raises:
        ConfigError: it is taken.
    """
    host, meeting_port = address
    given = parallel.dist_coordinator_port
    port = meeting_port + 1 if given is None else given
    try:
        return listen((host, port))
    except OSError as error:
        named = f"--dist-coordinator-port {port}"
        if given is None:
            named = f"port {port} (the --dist-init-addr port + 1)"
        raise ConfigError(
            f"host 0 cannot listen on {named} at {host} ({error}); jax's coordination service needs it: free it, or "
            "set another with --dist-coordinator-port (0: any free port)"
        ) from error
