"""Snapshots in the prefix tree: states of layers that keep one for each slot, as they were behind a node's last page.

A state cannot be cut like pages: a request can go on from a cached prefix only where a copy of the state was kept. A
match therefore goes past nodes without a snapshot and ends at the last one with it. Snapshots are few and large, so
they have slots and an order of eviction of their own; a node that loses its snapshot keeps its pages. A node that goes,
or loses its last page, gives its snapshot back.

Slot numbers only; the copies lie on the device, behind the slots of running requests.
"""

import collections
from collections.abc import Iterable

from palladio.runtime.interface.outputs.counts import SnapshotCounts
from palladio.runtime.scheduling.state.page_groups import SnapshotSlots
from palladio.runtime.scheduling.state.radix_node import Path, RadixNode


class TreeSnapshots:
    """The owners of snapshot slots: free, a node's (`RadixNode.snapshot`), or taken and not kept yet.

    Attributes:
        slots: all of them. num_hits: requests that began at a snapshot. num_evicted: given up to make room for others.
    """

    def __init__(self, slots: SnapshotSlots) -> None:
        self.slots = slots
        self.num_hits = 0
        self.num_evicted = 0
        self._free = list(reversed(slots.numbers))
        self._nodes: collections.OrderedDict[RadixNode, None] = collections.OrderedDict()  # used longest ago first

    def counts(self) -> SnapshotCounts:
        """For the statistics."""
        return SnapshotCounts(
            num_snapshots=len(self._nodes),
            num_snapshot_slots=self.slots.count,
            num_snapshot_hits=self.num_hits,
            num_evicted_snapshots=self.num_evicted,
        )

    def take(self) -> int | None:
        """A slot for a copy: a free one, or that of the snapshot that was used longest ago; None: all are taken."""
        if not self._free:
            if not self._nodes:
                return None
            self.drop(next(iter(self._nodes)))
            self.num_evicted += 1
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Free a slot that was taken and whose copy is not kept."""
        self._free.append(slot)

    def keep(self, node: RadixNode, slot: int) -> None:
        """The copy in a slot that was taken is the state behind the node; used now. If the node has one, that stays."""
        if node.snapshot:
            self.give_back(slot)
        node.snapshot = node.snapshot or slot
        self._nodes[node] = None
        self._nodes.move_to_end(node)

    def use(self, node: RadixNode) -> None:
        """A request begins at the node's snapshot."""
        self._nodes.move_to_end(node)
        self.num_hits += 1

    def drop(self, node: RadixNode) -> None:
        """The node has no snapshot any more, if it had one."""
        if node.snapshot:
            self.give_back(node.snapshot)
            node.snapshot = 0
            del self._nodes[node]

    @staticmethod
    def usable(path: Path) -> Path:
        """The part of a path that ends at its last snapshot."""
        count = len(path)
        while count and not (path[count - 1][0].snapshot and path[count - 1][1] == len(path[count - 1][0].keys)):
            count -= 1
        return path[:count]

    def check_integrity(self, nodes: Iterable[RadixNode], taken: Iterable[int]) -> None:
        """
        Args:
            nodes: of the tree. taken: slots of copies that are not kept yet.

        Raises:
            AssertionError: a slot has no owner, or several; or a snapshot is of a node that is not in the tree.
        """
        kept = {node: node.snapshot for node in nodes if node.snapshot}
        assert kept.keys() == self._nodes.keys(), "a snapshot is of no node of the tree, or a node's is not counted"
        owned = sorted([*self._free, *kept.values(), *taken])
        assert owned == list(self.slots.numbers), f"snapshot slots {owned} have owners, not {self.slots.numbers}"
