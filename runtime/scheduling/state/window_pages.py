"""Pages of layers with a window, which keep the newest tokens only: who holds them, and which may be given up.

    a page is free, or a request's own, or the tree's; or its place in the tree is a hole
    the tree's pages are held by those requests that still see them; a page without a holder is idle
    an idle page can be given up at any time: its place becomes a hole, the tokens around it stay what they are
    a request's own pages follow the pages that it holds of the tree; nothing is before `HeldWindow.start`

Page numbers only, one for each block table of the group. A model without windows uses nothing of this.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Self

from palladio.runtime.scheduling.state.page_groups import WindowGroup

PageIds = tuple[int, ...]  # one number for each block table of a group


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class WindowPage:
    """A place in the tree for a windowed group's page.

    Attributes:
        ids: the page's numbers; (): a hole.
        num_holders: requests that see it.
        last_used: when it was last taken or given back, on the tree's clock.
    """

    ids: PageIds
    num_holders: int = 0
    last_used: int = 0

    def use(self, change: int, now: int) -> bool:
        """Adds to the requests that see it. Returns whether it was idle before, or is now."""
        assert self.ids, "no request sees a hole"
        was_idle = self.num_holders == 0
        self.num_holders += change
        assert self.num_holders >= 0, "given back more often than taken"
        self.last_used = now
        return was_idle or self.num_holders == 0

    def empty(self) -> PageIds:
        """Becomes a hole; returns the numbers that are free now."""
        ids, self.ids = self.ids, ()
        return ids


@dataclasses.dataclass(slots=True)
class HeldWindow:
    """What a running request has of one windowed group.

    Attributes:
        group: the group.
        start: the first column that it has a page of: nothing before that is seen any more.
        shared: its pages in the tree, from `start` on.
        own: those after them.
        duplicates: its own pages in columns that `shared` has too, until the steps that write to them are dispatched.
    """

    group: WindowGroup
    start: int = 0
    shared: collections.deque[WindowPage] = dataclasses.field(default_factory=collections.deque)
    own: collections.deque[PageIds] = dataclasses.field(default_factory=collections.deque)
    duplicates: list[tuple[int, PageIds]] = dataclasses.field(default_factory=list)

    @classmethod
    def after(cls, group: WindowGroup, num_columns: int, places: Sequence[WindowPage]) -> Self:
        """The pages of a request that goes on after `num_columns` of the tree.

        Args:
            places: the last of these columns' places.
        """
        return cls(group, num_columns - len(places), collections.deque(places))

    @property
    def num_pages(self) -> int:
        """Pages of each table."""
        return len(self.shared) + len(self.own)

    def extend(self, ids: Sequence[int]) -> list[PageIds]:
        """Takes further columns' pages; returns them column by column."""
        size = len(self.group.tables)
        columns = [tuple(ids[begin : begin + size]) for begin in range(0, len(ids), size)]
        self.own.extend(columns)
        return columns

    def take_own(self, begin: int, end: int) -> list[WindowPage]:
        """Columns begin … end-1, none of which is shared, as places for the tree, which holds them for the request;
        holes where it has given them back."""
        holes = [WindowPage(()) for _ in range(begin, min(end, self.start))]
        return holes + [WindowPage(self.own.popleft(), 1) for _ in range(len(holes), end - begin)]

    def share(self, begin: int, given: Sequence[PageIds], places: Sequence[WindowPage]) -> None:
        """What it gave to the tree from column `begin` on is held there now.

        Args:
            given: the numbers that it gave. places: where the tree has that.
        """
        for column, (ids, place) in enumerate(zip(given, places, strict=True), start=begin):
            if column >= self.start:
                self.shared.append(place)
                if place.ids != ids:
                    self.duplicates.append((column, ids))

    def slide(self, first: int) -> tuple[list[WindowPage], list[int]]:
        """Gives back the columns before `first`: pages of the tree, and numbers of its own."""
        shared = [self.shared.popleft() for _ in range(min(len(self.shared), first - self.start))]
        own = [self.own.popleft() for _ in range(first - self.start - len(shared))]
        self.start = first
        return shared, numbers(own)

    def drop_duplicates(self) -> list[tuple[int, PageIds, PageIds]]:
        """Use the tree's pages in place of its own. Returns (column, page numbers in the tree, page numbers that are
        given back) for each."""
        dropped = [(column, self.shared[column - self.start].ids, ids) for column, ids in self.duplicates]
        self.duplicates = []
        return dropped

    def own_numbers(self) -> list[int]:
        """All page numbers that only this request has."""
        return numbers([*self.own, *(ids for _, ids in self.duplicates)])


def numbers(pages: Iterable[PageIds]) -> list[int]:
    """The page numbers of all tables, in one list."""
    return [number for ids in pages for number in ids]
