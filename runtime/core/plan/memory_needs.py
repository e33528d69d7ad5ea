"""What an engine has to place on each device, in bytes."""

from palladio.runtime.core.plan.memory import MemoryNeeds
from palladio.runtime.core.plan.sizing import EngineLimits
from palladio.runtime.execution.state.device_state import DeviceShape, Weights, bytes_per_device
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.scheduling.batch.buckets import Buckets


def needs_of(
    config: EngineConfig,
    platform: str,
    limits: EngineLimits,
    shape: DeviceShape,
    weights: Weights,
    buckets: Buckets | None = None,
) -> MemoryNeeds:
    """What an engine has to place on each device.

    Args:
        buckets: the engine's buckets; None: not known yet.
    """
    return memory_needs(
        platform,
        shape,
        weights,
        num_mask_rows=0 if buckets is None or shape.pooling is not None else sum(buckets.sample),
        useful_tokens=limits.useful_pool_tokens,
        wanted_tokens=config.cache.max_total_tokens,
        fraction=config.cache.mem_fraction_static,
    )


def memory_needs(
    platform: str,
    shape: DeviceShape,
    weights: Weights,
    *,
    num_mask_rows: int,
    useful_tokens: int,
    wanted_tokens: int | None = None,
    fraction: float | None = None,
) -> MemoryNeeds:
    """What an engine of this shape has to place on each device; see MemoryNeeds.

    Args:
        num_mask_rows: of the masks that allow everything, see DeviceExecutor.
    """
    state = shape.abstract(weights, 1)
    of_slots = state._replace(weights=(), kv_cache=(), page_tokens=None)
    states = bytes_per_device(shape.cache.states(state.kv_cache))
    snapshots = states // (shape.num_slots + shape.num_snapshots) * shape.num_snapshots
    return MemoryNeeds(
        platform=platform,
        weights=bytes_per_device(weights),
        state=bytes_per_device(of_slots) + 4 * shape.mask_width * num_mask_rows,
        layer_states=states - snapshots,
        snapshots=snapshots,
        num_snapshots=shape.num_snapshots,
        bytes_per_page=bytes_per_device((shape.cache.pages(state.kv_cache), state.page_tokens)),
        page_size=shape.page_size,
        wanted_tokens=wanted_tokens,
        useful_tokens=useful_tokens,
        fraction=fraction,
        num_ranks=shape.ranks.num_ranks,
        num_tables=shape.num_tables,
    )
