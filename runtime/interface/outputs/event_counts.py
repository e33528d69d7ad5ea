"""EventCounts: what became of KV events."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)  # without slots: see RankStats
class EventCounts:
    """Of a data-parallel rank, since the start.

    Attributes:
        num_event_batches: published.
        num_event_drops: how often one of them did not get to a subscriber. ZeroMQ does not tell of those after it that
            the same subscriber misses until it has read what waits for it.
    """

    num_event_batches: int = 0
    num_event_drops: int = 0
