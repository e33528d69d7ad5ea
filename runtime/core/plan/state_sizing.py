"""How many requests may run, and how many snapshots are kept, where layers keep a state for each slot."""

import dataclasses
import logging
from collections.abc import Callable

from palladio.model.config.config import ModelConfig
from palladio.runtime.core.plan.memory import DeviceMemory, MemoryNeeds, room_for_cache, round_down
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.core.plan.sizing import EngineLimits
from palladio.runtime.execution.state.device_state import DeviceShape, bytes_per_device
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError

STATE_SHARE = 0.3  # of what weights leave, for the states of running requests, unless a flag says how many run
SNAPSHOT_SHARE = 0.2  # the same for snapshots
MOST_SNAPSHOTS = 4  # for each request that may run, by default: a chat's last turns, and prompts that are shared
_BITS = 3  # of a number of slots: programs are compiled for it

logger = logging.getLogger("palladio.engine")


def with_states(
    config: EngineConfig,
    model: ModelConfig,
    defaults: PlatformDefaults,
    sizes: tuple[EngineLimits, DeviceShape],
    memory: DeviceMemory,
    needs: MemoryNeeds,
    agree: Callable[[int], int] = lambda value: value,
) -> tuple[EngineLimits, DeviceShape]:
    """Limits and shape of an engine whose layers may keep states; unchanged if none does.

    Args:
        sizes: without snapshots, and with as many requests as flags and platform suggest.
        needs: of these sizes. agree: see EnginePlan.of.

    Raises:
        ConfigError: --state-snapshot-bytes is less than a snapshot.
    """
    limits, shape = sizes
    if shape.cache.state is None:
        return sizes
    states = shape.cache.states(shape.cache.abstract(1, shape.mesh))
    one = bytes_per_device(states) // shape.cache.state.num_slots
    room = room_for_cache(memory, needs)
    if config.scheduler.max_running_requests is None:
        fitting = agree(max(1, round_down(int(STATE_SHARE * room) // one, _BITS)))
        if fitting < limits.max_running:
            logger.info(
                "At most %d requests run at once%s, not %d: the states of each take %.1f MiB of a device, those of all "
                "at most %.0f %% of what weights leave (--max-running-requests)",
                fitting,
                " in each data-parallel rank" if limits.num_ranks > 1 else "",
                limits.max_running,
                one / 2**20,
                100 * STATE_SHARE,
            )
            scheduler = dataclasses.replace(config.scheduler, max_running_requests=fitting * limits.num_ranks)
            limits = EngineLimits.of(dataclasses.replace(config, scheduler=scheduler), model, defaults)
    num_snapshots = agree(_num_snapshots(config, limits, shape, one, room))
    page_size = shape.page_size
    interval = config.cache.state_snapshot_interval or limits.max_step_tokens
    num_slots = limits.max_running + 1
    state = dataclasses.replace(shape.cache.state, num_slots=num_slots + num_snapshots)
    shape = dataclasses.replace(
        shape,
        num_slots=num_slots,
        cache=dataclasses.replace(shape.cache, state=state),
        num_snapshots=num_snapshots,
        snapshot_interval=-(-interval // page_size) * page_size,
    )
    return limits, shape


def _num_snapshots(config: EngineConfig, limits: EngineLimits, shape: DeviceShape, one: int, room: int) -> int:
    """Snapshots of states that a device keeps.

    Args:
        one: bytes of a request's states, on a device.
        room: bytes of pages, states and snapshots.
    """
    given, pooling = config.cache.state_snapshot_bytes, shape.pooling
    is_shared = pooling is None or not pooling.reads_all
    if config.cache.disable_radix_cache or not is_shared or limits.chunk == -1 or given == 0:
        return 0
    if given is not None:
        if given < one:
            raise ConfigError(
                f"--state-snapshot-bytes {given} is less than one snapshot, which takes {one} bytes of a device; give "
                "more, or 0 for no prefix cache"
            )
        return given // one
    return min(round_down(int(SNAPSHOT_SHARE * room) // one, _BITS), MOST_SNAPSHOTS * limits.max_running)


def describe_snapshots(shape: DeviceShape, architecture: str) -> str:
    """For the log: what the prefix cache of a model with states has."""
    if not shape.num_snapshots:
        return f"The prefix cache is off: layers of {architecture} keep states, and no snapshots of them are kept"
    state = shape.cache.state
    assert state is not None, "it has snapshots"
    states = bytes_per_device(shape.cache.states(shape.cache.abstract(1, shape.mesh)))
    one = states / state.num_slots / 2**20
    return (
        f"Prefix cache of a model with states: {shape.num_snapshots} snapshots of {one:.1f} MiB a device, one at least "
        f"every {shape.snapshot_interval} tokens of a prompt and at its last full page"
    )
