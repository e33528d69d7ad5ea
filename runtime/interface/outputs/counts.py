"""Counts since the engine's start, parts of what a data-parallel rank reports: drafts, snapshots, KV events."""

import dataclasses


@dataclasses.dataclass  # without slots: `vars` are fields of RankStats
class DraftCounts:
    """Counts of drafts, of the steps that were read.

    Attributes:
        num_draft_rows: rows that had room for drafts.
        num_draft_tokens: drafts that these rows had room for.
        num_accepted_drafts: drafts that were right.
    """

    num_draft_rows: int = 0
    num_draft_tokens: int = 0
    num_accepted_drafts: int = 0

    def add(self, room: int, num_accepted: int) -> None:
        """Count a row that was read.

        Args:
            room: drafts that it had room for.
            num_accepted: drafts of it that were right.
        """
        self.num_draft_rows += 1
        self.num_draft_tokens += room
        self.num_accepted_drafts += num_accepted

    def since(self, then: "DraftCounts") -> "DraftCounts":
        """The counts since a moment.

        Args:
            then: a copy of that moment's counts.
        """
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
    """Counts of a data-parallel rank's events, since the start.

    Attributes:
        num_event_batches: published batches.
        num_event_drops: how often a batch did not get to a subscriber. Of the batches that a subscriber misses in a
            row, ZeroMQ reports only the first, until the subscriber has read its queue.
    """

    num_event_batches: int = 0
    num_event_drops: int = 0
