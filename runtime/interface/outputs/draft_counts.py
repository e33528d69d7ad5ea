"""How many drafts there were, and how many of them were right: of an engine since it started, or of one request."""

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
