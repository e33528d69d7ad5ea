"""What requests keep: which block tables they have pages for, which of these see the newest tokens only, and whether
layers keep states. The same for all requests of an engine."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class WindowGroup:
    """Layers that see the newest tokens only.

    Attributes:
        window: how many, the query's own included (W).
        page_size: tokens a page (S).
        tables: the numbers of its block tables.
    """

    window: int
    page_size: int
    tables: tuple[int, ...]

    def first_needed(self, position: int) -> int:
        """The first page that a query at this position sees."""
        return max(0, position - self.window + 1) // self.page_size

    def most_pages(self, chunk: int) -> int:
        """The most pages that a request holds of each table while it computes `chunk` tokens in a step."""
        return -(-(self.window - 1 + chunk) // self.page_size) + 1


@dataclasses.dataclass(frozen=True)
class SnapshotSlots:
    """Copies of states, of a data-parallel rank, in slots behind those of its requests.

    Attributes:
        first: the first one's number. count: of slots.
        interval: tokens from one place of a prompt that is worth a snapshot to the next; of whole pages.
        least: tokens that a snapshot has to save beyond the one before it.
    """

    first: int
    count: int
    interval: int
    least: int

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)


@dataclasses.dataclass(frozen=True)
class PageGroups:
    """What a request keeps: which block tables it has pages for, and whether it has states.

    Attributes:
        page_size: tokens a page (S).
        num_columns: of each block table (C); those of table t are at t·C … t·C + C-1.
        keeps_all: whether there are layers without a window. They have one table, the first.
        windows: the other groups.
        has_states: layers keep a state for each slot. It is that of the request's newest token alone: a request cannot
            go back to an earlier token, and begins behind a cached prefix only where a snapshot of the state was kept.
        snapshots: where these are; None: there are none.
    """

    page_size: int
    num_columns: int = 0
    keeps_all: bool = True
    windows: tuple[WindowGroup, ...] = ()
    has_states: bool = False
    snapshots: SnapshotSlots | None = None

    @property
    def num_tables(self) -> int:
        """Pages that a column takes: one for each table."""
        return int(self.keeps_all) + sum(len(group.tables) for group in self.windows)

    @property
    def can_share(self) -> bool:
        """Whether a request may begin behind a cached prefix."""
        return not self.has_states or self.snapshots is not None

    def longest_request(self, num_pages: int, *, splits_prompts: bool) -> int:
        """Tokens of the longest request that fits this many pages if it is alone.

        Args:
            splits_prompts: it may compute a page of its tokens a step; else it computes its prompt in one.
        """
        if not splits_prompts or not self.windows:
            return num_pages // self.num_tables * self.page_size
        columns = num_pages // self.num_tables
        while columns < self.num_columns and self.num_held((columns + 1) * self.page_size, self.page_size) <= num_pages:
            columns += 1
        return columns * self.page_size

    def num_held(self, num_tokens: int, chunk: int = 1) -> int:
        """The most pages that a request of `num_tokens` holds.

        Args:
            chunk: tokens that it computes in a step.
        """
        columns = -(-num_tokens // self.page_size)
        windows = (len(group.tables) * min(columns, group.most_pages(chunk)) for group in self.windows)
        return int(self.keeps_all) * columns + sum(windows)
