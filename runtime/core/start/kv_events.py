"""The publishers of the prefix caches' events."""

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.kv_events_config import KVEventsSettings
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.process.event_publisher import EventPublisher
from palladio.runtime.scheduling.cache.tree_events import TreeEvents


def open_events(config: EngineConfig, num_ranks: int, page_size: int) -> list[TreeEvents | None]:
    """Open the events of each data-parallel rank's cache, published as --kv-events-config says; None: no events.

    Raises:
        ConfigError: an endpoint cannot be used.
    """
    settings = KVEventsSettings.of(config.cache.kv_events_config, num_ranks)
    if settings is None:
        return [None] * num_ranks
    publishers: list[EventPublisher] = []
    try:
        publishers.extend(EventPublisher(settings, rank) for rank in range(num_ranks))
    except ConfigError:
        for publisher in publishers:
            publisher.close()
        raise
    return [TreeEvents(page_size, one.publish, one.counts, one.close) for one in publishers]
