"""EvictableLeaves: the unlocked leaves of the prefix tree, the coldest of them first."""

import heapq
from collections.abc import Iterable

from palladio.runtime.interface.config.cache_config import EvictionPolicy
from palladio.runtime.scheduling.state.radix_node import RadixNode

_MIN_COMPACTED_HEAP = 64  # shorter heaps may be mostly stale entries: it costs nothing


class EvictableLeaves:
    """What the tree can evict next. A leaf that is offered keeps its `num_hits`, `rank` and `last_used` until it is
    withdrawn.

    Args:
        policy: lru takes the leaf used longest ago; lfu the one with the fewest hits; slru one without hits, if there
            is one; priority one with the lowest rank. Among equals they take the one used longest ago.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        # By the number of their entry in the heap. Entries with other numbers are stale.
        self._leaves: dict[int, RadixNode] = {}
        self._heap: list[tuple[int, int, int]] = []  # (class, last_used, number)
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
        return (self._class(leaf), leaf.last_used, leaf.entry)

    def _class(self, leaf: RadixNode) -> int:
        """The lowest one goes first, whenever it was used."""
        match self._policy:
            case "lru":
                return 0
            case "lfu":
                return leaf.num_hits
            case "slru":
                return min(leaf.num_hits, 1)
            case "priority":
                return leaf.rank
