"""RadixNode: what the prefix tree is made of; and EvictableLeaves: which of its nodes are evicted first."""

import collections
import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from palladio.runtime.interface.request.prompt_parts import Media
from palladio.runtime.scheduling.state.window_pages import WindowPage

MediaKey = tuple[str, bool, int, int, int]
"""What a page holds of a medium: its digest, whether it is computed as a whole, its position that comes first in the
page, and where in the page it begins and ends."""

PageKey = tuple[int | MediaKey, ...]  # the S token ids of one page, and what it holds of media


def media_keys(keys: Sequence[PageKey], page_size: int, first_page: int, media: Iterable[Media]) -> Iterator[PageKey]:
    """Yield the keys of pages that may hold parts of media.

    Args:
        keys: keys by token ids alone.
        first_page: number of the first page.
    """
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
        hashes: of its pages, or a root's one of its namespace; None: pages are not published. See tree_events.
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
    hashes: list[int] | None = None

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
            hashes=None if self.hashes is None else self.hashes[:count],
        )
        self.parent.children[front.keys[0]] = front
        self.parent = front
        del self.keys[:count], self.pages[:count]
        for places in self.windows:
            del places[:count]
        if self.hashes is not None:
            del self.hashes[:count]
        return front

    def check_integrity(self, num_locks: int) -> None:
        """
        Args:
            num_locks: how many hold it, or a node below it.

        Raises:
            AssertionError: it is not as RadixCache promises.
        """
        assert self.parent is not None
        assert len(self.keys) == len(self.pages) > 0, "a node's keys and pages differ in number, or it is empty"
        assert self.hashes is None or len(self.hashes) == len(self.keys), "a node's hashes and keys differ in number"
        assert self.parent.children.get(self.keys[0]) is self, "a child is not keyed by its first page"
        assert self.lock_count == num_locks, f"{self.lock_count} locks counted, {num_locks} held"


Path = list[tuple[RadixNode, int]]
"""Nodes below one another, and how many pages of each are meant: all, but of the last one."""


def num_common(ours: Sequence[PageKey], theirs: Sequence[PageKey]) -> int:
    """How many pages both begin with."""
    if ours == theirs:  # compared in C: the usual case on a long way down
        return len(ours)
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))


def count_locks(locked: Iterable[RadixNode]) -> collections.Counter[RadixNode]:
    """Count for each node below the roots how many locks hold it or a node below it.

    Args:
        locked: locked nodes, each one once per lock.
    """
    locks: collections.Counter[RadixNode] = collections.Counter()
    for holder in locked:
        at = holder
        while at.parent is not None:
            locks[at] += 1
            at = at.parent
    return locks


def page_keys(ids: Sequence[int], size: int, start: int, stop: int, media: Sequence[Media] = ()) -> list[PageKey]:
    """The keys of pages start … stop-1, of `size` tokens each; all of them are full."""
    assert stop * size <= len(ids) or stop <= start, "the last page is not full"
    keys: list[PageKey] = [tuple(ids[i * size : (i + 1) * size]) for i in range(start, stop)]
    return list(media_keys(keys, size, start, media)) if media else keys


_MIN_COMPACTED_HEAP = 64  # shorter heaps may be mostly stale entries: it costs nothing


class EvictableLeaves:
    """What the tree can evict next. A leaf that is offered keeps its `num_hits` and `last_used` until it is withdrawn.

    Args:
        policy: lru takes the leaf used longest ago, lfu the one with the fewest hits, among equals the one used longest
            ago.
    """

    def __init__(self, policy: Literal["lru", "lfu"]) -> None:
        self._counts_hits = policy == "lfu"
        # By the number of their entry in the heap. Entries with other numbers are stale.
        self._leaves: dict[int, RadixNode] = {}
        self._heap: list[tuple[int, int, int]] = []  # (hits, last_used, number)
        self._num_entries = 0

    def __len__(self) -> int:
        return len(self._leaves)

    @property
    def num_entries(self) -> int:
        """Entries of the heap, stale ones included."""
        return len(self._heap)

    def offer(self, node: RadixNode) -> None:
        """Adds the node if it is an unlocked leaf now."""
        if node.parent is None or node.lock_count > 0 or node.children:
            return
        self._num_entries += 1
        node.entry = self._num_entries
        self._leaves[node.entry] = node
        if len(self._heap) > max(_MIN_COMPACTED_HEAP, 2 * len(self._leaves)):
            self._heap = [self._entry(leaf) for leaf in self._leaves.values()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, self._entry(node))

    def withdraw(self, node: RadixNode) -> None:
        """Removes the node, if it is here."""
        if node.entry:
            del self._leaves[node.entry]
            node.entry = 0

    def coldest(self) -> RadixNode:
        """The next one to evict. There is one."""
        while self._heap[0][2] not in self._leaves:
            heapq.heappop(self._heap)
        return self._leaves[self._heap[0][2]]

    def check_integrity(self, nodes: Iterable[RadixNode]) -> None:
        """Checks that the unlocked leaves among all nodes are here, and nothing else.

        Raises:
            AssertionError: it is otherwise.
        """
        found = set(nodes)
        leaves = {node for node in found if node.lock_count == 0 and not node.children}
        assert set(self._leaves.values()) == leaves, "other nodes are offered for eviction than the unlocked leaves"
        assert all(node.entry == 0 for node in found - leaves), "what is not an unlocked leaf is offered for eviction"
        valid = [entry for entry in self._heap if entry[2] in self._leaves]
        assert sorted(valid) == sorted(self._entry(leaf) for leaf in leaves), "a heap entry is out of date"

    def _entry(self, leaf: RadixNode) -> tuple[int, int, int]:
        return (leaf.num_hits if self._counts_hits else 0, leaf.last_used, leaf.entry)
