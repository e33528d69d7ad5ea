"""What befell a request in the cache: a part of its trace (`RequestTrace` in outputs)."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class LostPages:
    """A retraction: tokens that the prefix cache still has when the request is admitted again are not computed again.

    Attributes:
        time: in seconds since the epoch.
        tokens: of cache that the request gave up; where layers keep states, those behind its last snapshot.
        snapshot_tokens: that this snapshot is behind; None: no layer keeps a state.
    """

    time: float
    tokens: int
    snapshot_tokens: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotHit:
    """The request began, or went on after a retraction, at a snapshot of states.

    Attributes:
        time: in seconds since the epoch.
        slot: the snapshot's place on the device: the same number is the same copy, until it is evicted.
        tokens: of the request that it is behind, and that were not computed.
    """

    time: float
    slot: int
    tokens: int
