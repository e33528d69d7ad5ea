"""How many snapshots of states there are, and what became of them: a part of what a data-parallel rank reports."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)  # without slots: see RankStats
class SnapshotCounts:
    """All zeros where no layer keeps a state.

    Attributes:
        num_snapshots: that the prefix cache has now. num_snapshot_slots: that it has room for.
        num_snapshot_hits: requests that began behind a snapshot, since the start.
        num_evicted_snapshots: given up to make room for others.
    """

    num_snapshots: int = 0
    num_snapshot_slots: int = 0
    num_snapshot_hits: int = 0
    num_evicted_snapshots: int = 0
