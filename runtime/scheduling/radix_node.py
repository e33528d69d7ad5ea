"""RadixNode: what the prefix tree is made of."""

import dataclasses

from palladio.runtime.scheduling.window_pages import WindowPage

PageKey = tuple[int, ...]  # the S token ids of one page


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

    def path_pages(self) -> list[int]:
        """Pages from the root to the end of the node."""
        runs = []
        ancestor: RadixNode | None = self
        while ancestor is not None:
            runs.append(ancestor.pages)
            ancestor = ancestor.parent
        return [page for run in reversed(runs) for page in run]


Path = list[tuple[RadixNode, int]]
"""Nodes below one another, and how many pages of each are meant: all, but of the last one."""
