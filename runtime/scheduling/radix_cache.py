"""RadixCache: the KV pages of finished and running requests, found by the tokens they hold.

A radix tree as in RadixAttention (SGLang; Zheng et al., 2024, "SGLang: Efficient Execution of Structured Language Model
Programs"), with whole pages for letters: a node holds a run of pages, each known by its S token ids, and the way down
to it spells all the tokens before them. Keys and values depend on every earlier token, so a page is usable by exactly
those requests whose tokens begin with that way.

What holds at all times (`check_integrity` states it as code):

    page p is in at most one node; the tree owns it until `evict` or `clear` returns it
    len(node.keys) == len(node.pages) > 0, except for roots, which hold nothing
    node.children[k].keys[0] == k, so no two children begin with the same page
    node.lock_count == locks on it and on all nodes below; so below an unlocked node all is unlocked
    num_evictable == pages of the nodes with lock_count == 0
    a locked node ends where it ended when it was locked, unless its only holder extends it

Page numbers are all it knows of the device. Not for use by several threads.
"""

import collections
import dataclasses
import heapq
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

PageKey = tuple[int, ...]  # the S token ids of one page

_MIN_COMPACTED_HEAP = 64  # shorter heaps may be mostly stale entries: it costs nothing


def page_keys(token_ids: Sequence[int], page_size: int, start: int, stop: int) -> list[PageKey]:
    """The keys of pages start … stop-1; all of them are full."""
    assert stop * page_size <= len(token_ids) or stop <= start, "the last page is not full"
    return [tuple(token_ids[i * page_size : (i + 1) * page_size]) for i in range(start, stop)]


@dataclasses.dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class RadixNode:
    """A run of pages after those of its ancestors.

    Attributes:
        children: by their first key.
        lock_count: locks on this node and on all nodes below it. Locks on a root are not counted: it has no pages.
        num_hits: how often it was locked, or found when others had computed the same pages again.
        last_used: when it was last locked, extended or unlocked, on the tree's own clock (a count of these events).
        entry: number of its entry in the eviction heap; 0: none, because it is locked or has children.
    """

    keys: list[PageKey]
    pages: list[int]
    parent: "RadixNode | None"
    children: "dict[PageKey, RadixNode]" = dataclasses.field(default_factory=dict)
    lock_count: int = 0
    num_hits: int = 0
    last_used: int = 0
    entry: int = 0


class RadixCache:
    """One tree a namespace (a cache salt), all evicted together.

    Attributes:
        num_pages: pages in all trees.
        num_evictable: of those, in nodes that nobody locks.
    """

    def __init__(self, policy: Literal["lru", "lfu"]) -> None:
        self.num_pages = 0
        self.num_evictable = 0
        self._counts_hits = policy == "lfu"
        self._clock = 0
        # A root lives as long as there is something below it or somebody holds it, so that salts that are used once
        # leave nothing behind, and yet there is never a second root for the same salt.
        self._roots: weakref.WeakValueDictionary[str | None, RadixNode] = weakref.WeakValueDictionary()
        self._filled_roots: set[RadixNode] = set()
        # What can be evicted next: the unlocked leaves, by the number of their entry in the heap. Entries with other
        # numbers are stale. Neither hits nor last_used of a leaf change while its entry is valid.
        self._leaves: dict[int, RadixNode] = {}
        self._heap: list[tuple[int, int, int]] = []  # (hits, last_used, number)
        self._num_entries = 0

    def root(self, namespace: str | None) -> RadixNode:
        """Where the sequences of a namespace begin."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = RadixNode([], [], None)
        return root

    def match(self, keys: Sequence[PageKey], namespace: str | None) -> tuple[RadixNode, list[int]]:
        """Finds the longest cached prefix: the node that ends exactly where it ends, and its pages from the root on.

        A node is split where the prefix ends inside it. This is not a use; lock the node before the tree changes again.
        """
        root = self.root(namespace)
        path = self._path(root, keys)
        node = self._split_end(path, root)
        pages: list[int] = []
        for passed, count in path[:-1]:
            assert count == len(passed.pages)
            pages += passed.pages
        return node, pages + node.pages

    def num_matched(self, keys: Sequence[PageKey], namespace: str | None) -> int:
        """Length of the longest cached prefix in pages; nothing is split."""
        return sum(count for _, count in self.path(keys, namespace))

    def path(self, keys: Sequence[PageKey], namespace: str | None) -> list[tuple[RadixNode, int]]:
        """The nodes below the root that the longest cached prefix runs through, and how many pages of each it covers:
        all, but for the last one. Nothing is split. Takes keys[i] and keys[i:j] only as far as nodes match."""
        return self._path(self.root(namespace), keys)

    def lock(self, node: RadixNode) -> None:
        """Keeps the node and all its ancestors from being evicted, until `unlock`. Counts as a use of each."""
        assert node.pages or node.parent is None, "the node was evicted before it was locked"
        self._clock += 1
        while node.parent is not None:
            self._add_lock(node)
            node = node.parent

    def unlock(self, node: RadixNode) -> None:
        """Takes one lock back; what was in use until now was last used now."""
        self._clock += 1
        at = node
        while at.parent is not None:
            assert at.lock_count > 0, "unlocked more often than locked"
            at.lock_count -= 1
            at.last_used = self._clock
            if at.lock_count == 0:
                self.num_evictable += len(at.pages)
            at = at.parent
        self._offer(node)

    def extend(self, node: RadixNode, keys: Sequence[PageKey], pages: Sequence[int]) -> tuple[RadixNode, list[int]]:
        """Puts pages behind those of `node`, which the caller has locked once (or which is a root), and moves that
        lock to where the sequence then ends.

        Where the tree has these keys already it keeps its own pages; the caller's lock now holds them.

        Returns:
            The node where the sequence ends, locked once for the caller (unless it is a root still: no keys), and the
            given pages that the tree did not take because it has their like. Those remain the caller's.
        """
        assert len(keys) == len(pages), "one key a page"
        assert node.parent is None or node.lock_count > 0, "lock the node before extending it"
        self._clock += 1
        path = self._path(node, keys)
        end = self._split_end(path, node)
        for passed, _ in path[:-1]:
            self._add_lock(passed)
        if end is not node:
            self._add_lock(end)
        num_known = sum(count for _, count in path)
        if num_known < len(keys):
            end = self._append(end, keys[num_known:], pages[num_known:])
        return end, list(pages[:num_known])

    def evict(self, count: int) -> list[int]:
        """Drops min(count, num_evictable) pages, each one before those that come before it in its sequence.

        Takes the leaf that is coldest by the policy (lru: last_used; lfu: num_hits, then last_used), pages at its end
        first and no more than needed; then the next coldest, which may be the parent of the one that was emptied.
        """
        evicted: list[int] = []
        while len(evicted) < count and self._leaves:
            leaf = self._coldest_leaf()
            kept = max(0, len(leaf.pages) - (count - len(evicted)))
            taken = leaf.pages[kept:]
            evicted += reversed(taken)
            self.num_pages -= len(taken)
            self.num_evictable -= len(taken)
            if kept == 0:
                self._remove(leaf)
            del leaf.keys[kept:], leaf.pages[kept:]
        return evicted

    def clear(self) -> list[int]:
        """Drops every page that is not locked, and returns them."""
        return self.evict(self.num_evictable)

    def pages(self) -> Iterator[int]:
        """All pages in the tree."""
        for node in self._nodes():
            yield from node.pages

    def check_integrity(self, locked: Iterable[RadixNode]) -> None:
        """Checks what the head of this file promises.

        Args:
            locked: the nodes that are held, each one once per lock.

        Raises:
            AssertionError: it does not hold.
        """
        nodes = set(self._nodes())
        locks: collections.Counter[RadixNode] = collections.Counter()
        for holder in locked:
            at = holder
            while at.parent is not None:
                assert at in nodes, "a locked node is not in the tree"
                locks[at] += 1
                at = at.parent
        for node in nodes:
            assert node.parent is not None
            assert len(node.keys) == len(node.pages) > 0, "a node's keys and pages differ in number, or it is empty"
            assert node.parent.children.get(node.keys[0]) is node, "a child is not keyed by its first page"
            assert node.lock_count == locks[node], f"{node.lock_count} locks counted, {locks[node]} held"
        for root in self._roots.values():
            assert not root.keys, "a root has pages"
            assert not root.pages, "a root has pages"
            assert bool(root.children) == (root in self._filled_roots), "a tree is lost, or an empty one kept"
        assert self._filled_roots <= set(self._roots.values()), "a root has no name"
        pages = list(self.pages())
        assert len(set(pages)) == len(pages), "a page is in the tree twice"
        assert self.num_pages == len(pages)
        assert self.num_evictable == sum(len(node.pages) for node in nodes if node.lock_count == 0)
        leaves = {node for node in nodes if node.lock_count == 0 and not node.children}
        assert set(self._leaves.values()) == leaves, (
            "an unlocked leaf is not offered for eviction, or something else is"
        )
        assert all(node.entry == 0 for node in nodes - leaves), "what is not an unlocked leaf is offered for eviction"
        valid = [entry for entry in self._heap if entry[2] in self._leaves]
        assert sorted(valid) == sorted(self._entry(leaf) for leaf in leaves), "a heap entry is out of date"

    @staticmethod
    def _path(node: RadixNode, keys: Sequence[PageKey]) -> list[tuple[RadixNode, int]]:
        path: list[tuple[RadixNode, int]] = []
        start = 0
        while start < len(keys):
            child = node.children.get(keys[start])
            if child is None:
                break
            count = _num_common(child.keys, keys[start : start + len(child.keys)])
            path.append((child, count))
            if count < len(child.keys):
                break
            start += count
            node = child
        return path

    def _split_end(self, path: list[tuple[RadixNode, int]], start: RadixNode) -> RadixNode:
        """The node that ends where the path ends: `start` if it has no length."""
        if not path:
            return start
        node, count = path[-1]
        return node if count == len(node.keys) else self._split(node, count)

    @staticmethod
    def _split(node: RadixNode, count: int) -> RadixNode:
        """Gives the first `count` pages to a new parent, through which all who hold the node hold them as before."""
        parent = node.parent
        assert parent is not None
        front = RadixNode(
            keys=node.keys[:count],
            pages=node.pages[:count],
            parent=parent,
            children={node.keys[count]: node},
            lock_count=node.lock_count,
            num_hits=node.num_hits,
            last_used=node.last_used,
        )
        parent.children[front.keys[0]] = front
        node.parent = front
        del node.keys[:count], node.pages[:count]
        return front

    def _append(self, node: RadixNode, keys: Sequence[PageKey], pages: Sequence[int]) -> RadixNode:
        """Adds pages that the tree does not have behind a node that the caller has locked (or a root)."""
        self.num_pages += len(pages)
        if node.parent is not None and node.lock_count == 1 and not node.children:  # nobody else ends here
            node.keys.extend(keys)
            node.pages.extend(pages)
            node.last_used = self._clock
            return node
        child = RadixNode(list(keys), list(pages), node, lock_count=1, last_used=self._clock)
        node.children[keys[0]] = child
        if node.parent is None:
            self._filled_roots.add(node)
        return child

    def _add_lock(self, node: RadixNode) -> None:
        if node.lock_count == 0:
            self.num_evictable -= len(node.pages)
            self._withdraw(node)
        node.lock_count += 1
        node.num_hits += 1
        node.last_used = self._clock

    def _remove(self, leaf: RadixNode) -> None:
        parent = leaf.parent
        assert parent is not None
        self._withdraw(leaf)
        del parent.children[leaf.keys[0]]
        if parent.parent is None and not parent.children:
            self._filled_roots.discard(parent)
        self._offer(parent)

    def _offer(self, node: RadixNode) -> None:
        """Lets the node be evicted if it is an unlocked leaf now."""
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

    def _withdraw(self, node: RadixNode) -> None:
        if node.entry:
            del self._leaves[node.entry]
            node.entry = 0

    def _entry(self, leaf: RadixNode) -> tuple[int, int, int]:
        return (leaf.num_hits if self._counts_hits else 0, leaf.last_used, leaf.entry)

    def _coldest_leaf(self) -> RadixNode:
        while self._heap[0][2] not in self._leaves:
            heapq.heappop(self._heap)
        return self._leaves[self._heap[0][2]]

    def _nodes(self) -> Iterator[RadixNode]:
        """All nodes but the roots."""
        stack = [child for root in self._filled_roots for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def _num_common(ours: Sequence[PageKey], theirs: Sequence[PageKey]) -> int:
    """How many pages both begin with."""
    if ours == theirs:  # compared in C: the usual case on a long way down
        return len(ours)
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
