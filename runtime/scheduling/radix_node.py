"""RadixNode: what the prefix tree is made of."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from palladio.runtime.interface.prompt_parts import Media
from palladio.runtime.scheduling.window_pages import WindowPage

MediaKey = tuple[str, bool, int, int, int]
"""What a page holds of a medium: its digest, whether it is computed as a whole, its position that comes first in the
page, and where in the page it begins and ends."""

PageKey = tuple[int | MediaKey, ...]  # the S token ids of one page, and what it holds of media


def media_keys(keys: Sequence[PageKey], page_size: int, first_page: int, media: Iterable[Media]) -> Iterator[PageKey]:
    """The keys of pages that may hold parts of media. Args: keys: of their ids. first_page: the first one's number."""
    for page, key in enumerate(keys, first_page):
        begin, end = page * page_size, (page + 1) * page_size
        held = (part for part in media if part.start < end and part.stop > begin)
        places = [(part, max(part.start, begin), min(part.stop, end)) for part in held]
        marks = [(p.digest, p.is_whole, low - p.start, low - begin, high - begin) for p, low, high in places]
        yield *key, *marks


@dataclasses.dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class RadixNode:
    """A run of pages after those of its ancestors.

    Attributes:
        children: by their first key.
        lock_count: locks on this node and on all nodes below it. Locks on a root are not counted: it has no pages.
        num_hits: how often it was locked, or found when others had computed the same pages again.
        last_used: when it was last locked, extended or unlocked, on the tree's own clock (a count of these events).
        entry: number of its entry in the eviction heap; 0: none, because it is locked or has children.
        windows: of each windowed group the places of its pages.
        snapshot: slot of the states behind its last page; 0: none is kept. See tree_snapshots.
    """

    keys: list[PageKey]
    pages: list[int]
    parent: "RadixNode | None"
    children: "dict[PageKey, RadixNode]" = dataclasses.field(default_factory=dict)
    lock_count: int = 0
    num_hits: int = 0
    last_used: int = 0
    entry: int = 0
    windows: tuple[list[WindowPage], ...] = ()
    snapshot: int = 0

    def path_pages(self) -> list[int]:
        """Pages from the root to the end of the node."""
        runs = []
        ancestor: RadixNode | None = self
        while ancestor is not None:
            runs.append(ancestor.pages)
            ancestor = ancestor.parent
        return [page for run in reversed(runs) for page in run]

    def split(self, count: int) -> "RadixNode":
        """Gives the first `count` pages to a new parent, through which all who hold the node hold them as before."""
        assert self.parent is not None, "a root has no pages"
        front = RadixNode(
            keys=self.keys[:count],
            pages=self.pages[:count],
            parent=self.parent,
            children={self.keys[count]: self},
            lock_count=self.lock_count,
            num_hits=self.num_hits,
            last_used=self.last_used,
            windows=tuple(places[:count] for places in self.windows),
        )
        self.parent.children[front.keys[0]] = front
        self.parent = front
        del self.keys[:count], self.pages[:count]
        for places in self.windows:
            del places[:count]
        return front


Path = list[tuple[RadixNode, int]]
"""Nodes below one another, and how many pages of each are meant: all, but of the last one."""


def num_common(ours: Sequence[PageKey], theirs: Sequence[PageKey]) -> int:
    """How many pages both begin with."""
    if ours == theirs:  # compared in C: the usual case on a long way down
        return len(ours)
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
