"""Counts since the engine's start, parts of what a data-parallel rank reports: drafts, snapshots, KV events."""

import dataclasses


@dataclasses.dataclass  # without slots: `vars` are fields of RankStats
class DraftCounts:
    """Of steps that were read.

    Attributes:
        num_draft_rows: that had room for drafts. num_draft_tokens: that there was room for in them.
        num_accepted_drafts: that were right.
    """

    num_draft_rows: int = 0
    num_draft_tokens: int = 0
    num_accepted_drafts: int = 0

    def add(self, room: int, num_accepted: int) -> None:
        """A row was read. Args: room: for so many drafts."""
        self.num_draft_rows += 1
        self.num_draft_tokens += room
        self.num_accepted_drafts += num_accepted

    def since(self, then: "DraftCounts") -> "DraftCounts":
        """Those after a moment. Args: then: a copy of that moment's."""
        return DraftCounts(**{name: value - vars(then)[name] for name, value in vars(self).items()})

    @property
    def accept_length(self) -> float:
        """Tokens that such a row gives on average."""
        return 1 + self.num_accepted_drafts / max(self.num_draft_rows, 1)

    @property
    def accept_rate(self) -> float:
        """Share of the drafts that were right."""
        return self.num_accepted_drafts / max(self.num_draft_tokens, 1)


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
