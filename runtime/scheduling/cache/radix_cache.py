"""RadixCache: the KV pages of finished and running requests, found by the tokens they hold.

A radix tree as in RadixAttention (Zheng et al., 2024, "SGLang: Efficient Execution of Structured Language Model
Programs"), with whole pages for letters: a node holds a run of pages, each known by its key (S token ids, and what it
holds of media), and the way down to it spells all the tokens before them. Keys and values depend on every earlier
token, so a page is usable by exactly those requests whose tokens begin with that way.

One tree serves all groups of layers. What layers without a window keep is there for every page of a node, or 0
throughout if there are no such layers; of a group with a window a page may be missing (a hole, see window_pages). A
match goes past holes and ends at the last boundary from which every group can go on; where layers keep states, at the
last one with a snapshot, which is a node's end (see tree_snapshots).

What holds at all times (`check_integrity` states it as code):

    page p is in at most one place; the tree owns it until `evict` or `clear` returns it
    len(node.keys) == len(node.pages) == len(each of node.windows) > 0, except for roots, which hold nothing
    node.children[k].keys[0] == k, so no two children begin with the same page
    node.lock_count == locks on it and on all nodes below; so below an unlocked node all is unlocked
    num_evictable == pages of the nodes with lock_count == 0, and idle pages of windowed groups
    who holds a page of a windowed group has locked its node, or one below it
    a locked node ends where it ended when it was locked, unless its only holder extends it

Page numbers are all it knows of the device. Not for use by several threads.
"""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from palladio.runtime.scheduling.cache.tree_events import TreeEvents
from palladio.runtime.scheduling.cache.tree_snapshots import TreeSnapshots
from palladio.runtime.scheduling.cache.tree_windows import TreeWindows
from palladio.runtime.scheduling.state.page_groups import SnapshotSlots, WindowGroup
from palladio.runtime.scheduling.state.radix_node import (
    EvictableLeaves,
    PageKey,
    Path,
    RadixNode,
    count_locks,
    num_common,
)
from palladio.runtime.scheduling.state.window_pages import WindowPage


class RadixCache:
    """One tree a namespace (a cache salt), all evicted together.

    Args:
        windows: the windowed groups.
        keeps_all: whether there are layers without a window.
        snapshots: where copies of states are; None: no layer keeps states.
        events: publishes pages that come and go; None: they are not published.

    Attributes:
        windows: pages of the windowed groups.
        snapshots: which nodes have one.
    """

    def __init__(
        self,
        policy: Literal["lru", "lfu"],
        windows: Sequence[WindowGroup] = (),
        *,
        keeps_all: bool = True,
        snapshots: SnapshotSlots | None = None,
        events: TreeEvents | None = None,
    ) -> None:
        self.windows = TreeWindows(windows)
        self.snapshots = None if snapshots is None else TreeSnapshots(snapshots)
        self._events = events
        self._num_kept = 0  # pages of nodes, those of windowed groups not counted
        self._num_unlocked = 0  # of these
        self._weight = int(keeps_all)  # pages that a node has for each key, without those of windowed groups
        self._clock = 0
        # A root lives as long as there is something below it or somebody holds it, so that salts that are used once
        # leave nothing behind, and yet there is never a second root for the same salt.
        self._roots: weakref.WeakValueDictionary[str | None, RadixNode] = weakref.WeakValueDictionary()
        self._filled_roots: set[RadixNode] = set()
        self._leaves = EvictableLeaves(policy)

    @property
    def num_evictable(self) -> int:
        """Pages that can be evicted."""
        return self._num_unlocked + self.windows.num_idle

    @property
    def num_pages(self) -> int:
        """Pages in all trees."""
        return self._num_kept + self.windows.num_ids

    def root(self, namespace: str | None) -> RadixNode:
        """Where the sequences of a namespace begin."""
        if (root := self._roots.get(namespace)) is None:
            root = self._roots[namespace] = RadixNode([], [], None)
            if self._events is not None:
                self._events.add_root(root, namespace)
        return root

    def match(self, keys: Sequence[PageKey], namespace: str | None) -> tuple[RadixNode, list[int]]:
        """Finds the longest cached prefix: the node that ends exactly where it ends, and its pages from the root on.

        A node is split where the prefix ends inside it. This is not a use; lock the node before the tree changes again.
        """
        root = self.root(namespace)
        node = self._split_end(path := self._usable(self._path(root, keys)), root)
        pages = [page for passed, _ in path[:-1] for page in passed.pages]
        return node, pages + node.pages

    def num_matched(self, keys: Sequence[PageKey], namespace: str | None) -> int:
        """Length of the longest cached prefix in pages; nothing is split."""
        return sum(count for _, count in self.path(keys, namespace))

    def path(self, keys: Sequence[PageKey], namespace: str | None) -> Path:
        """The nodes below the root that the longest cached prefix runs through, and how many pages of each it covers:
        all, but for the last one. Nothing is split. Takes keys[i] and keys[i:j] only as far as nodes match."""
        return self._usable(self._path(self.root(namespace), keys))

    def num_known(self, keys: Sequence[PageKey], namespace: str | None) -> int:
        """How many of the first of these pages are here, whether or not a request can go on behind them."""
        return sum(count for _, count in self._path(self.root(namespace), keys))

    def keep_snapshot(self, keys: Sequence[PageKey], namespace: str | None, slot: int) -> None:
        """Takes over a copy of the states behind these pages, all of which are here."""
        assert self.snapshots is not None, "layers keep states"
        path = self._path(root := self.root(namespace), keys)
        assert sum(count for _, count in path) == len(keys) > 0, "a snapshot's pages are not in the tree"
        self.snapshots.keep(self._split_end(path, root), slot)

    def let_go(self, places: Iterable[WindowPage]) -> None:
        """Take one user from each of these places, as of now; see TreeWindows.let_go."""
        self._clock += 1
        if places:
            self.windows.let_go(places, self._clock)

    def lock(self, node: RadixNode, places: Iterable[WindowPage] = ()) -> None:
        """Keeps the node, its ancestors and these pages of windowed groups up to there from being evicted, until
        `unlock`. Counts as a use of each."""
        assert node.pages or node.parent is None, "the node was evicted before it was locked"
        self._clock += 1
        if places:
            self.windows.hold(places, self._clock)
        while node.parent is not None:
            self._add_lock(node)
            node = node.parent

    def unlock(self, node: RadixNode, places: Iterable[WindowPage] = ()) -> None:
        """Takes one lock back; what was in use until now was last used now."""
        self.let_go(places)
        at = node
        while at.parent is not None:
            assert at.lock_count > 0, "unlocked more often than locked"
            at.lock_count -= 1
            at.last_used = self._clock
            if at.lock_count == 0:
                self._num_unlocked += self._weight * len(at.pages)
            at = at.parent
        self._leaves.offer(node)

    def extend(
        self,
        node: RadixNode,
        keys: Sequence[PageKey],
        pages: Sequence[int],
        windows: Sequence[list[WindowPage]] = (),
    ) -> tuple[RadixNode, list[int]]:
        """Puts pages behind those of `node`, which the caller has locked once (or which is a root), and moves that
        lock to where the sequence then ends.

        Where the tree has these keys already it keeps its own pages; the caller's lock now holds them.

        Args:
            windows: of each windowed group the places of its pages, held by the caller alone; or holes. They fill holes
                of the tree. Where the tree has a page already, that takes the given one's place in the list, and is
                held for the caller.

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
        if windows:
            self.windows.fill_holes([*path[:-1], *((end, count) for _, count in path[-1:])], windows, self._clock)
        if num_known < len(keys):
            end = self._append(end, keys[num_known:], pages[num_known:], [given[num_known:] for given in windows])
        return end, list(pages[:num_known]) if self._weight else []

    def evict(self, count: int) -> list[int]:
        """Drops min(count, num_evictable) pages, or a few more: what the groups have for the same tokens goes together.

        Takes the leaf that is coldest by the policy (lru: last_used; lfu: num_hits, then last_used): pages at its end
        first, and no more than needed, so that no page goes before a later page of its sequence. Then takes the next
        coldest, which may be the parent of the emptied leaf. Idle pages of windowed groups go
        before it, wherever they are, if they were used longer ago.
        """
        evicted: list[int] = []
        while len(evicted) < count and self.num_evictable:
            page = self.windows.coldest
            leaf = self._leaves.coldest() if self._leaves else None
            if page is not None and (leaf is None or page.last_used < leaf.last_used):
                evicted += self.windows.give_up(page)
            else:
                assert leaf is not None, "what can be evicted is in a leaf, or idle"
                evicted += self._cut_end(leaf, count - len(evicted))
        return evicted

    def clear(self) -> list[int]:
        """Drops every page that is not locked, and returns them."""
        evicted = self.evict(self.num_evictable)
        while self._leaves:  # of holes only
            self._cut_end(self._leaves.coldest(), 1)
        if self._events is not None and not self._filled_roots:
            self._events.clear()
        return evicted

    def pages(self) -> Iterator[int]:
        """All pages in the tree."""
        for node in self.nodes():
            if self._weight:
                yield from node.pages
            for places in node.windows:
                for place in places:
                    yield from place.ids

    def check_integrity(
        self, locked: Iterable[RadixNode], held: Iterable[WindowPage] = (), taken: Iterable[int] = ()
    ) -> None:
        """Checks what the head of this file promises.

        Args:
            locked: the nodes that are held, each one once per lock. held: pages of windowed groups, once per holder.
            taken: slots of snapshots that are not in the tree yet.

        Raises:
            AssertionError: it does not hold.
        """
        nodes = set(self.nodes())
        locks = count_locks(locked)
        assert locks.keys() <= nodes, "a locked node is not in the tree"
        for node in nodes:
            node.check_integrity(locks[node])
        for root in self._roots.values():
            assert not [*root.keys, *root.pages], "a root has pages"
            assert bool(root.children) == (root in self._filled_roots), "a tree is lost, or an empty one kept"
        assert self._filled_roots <= set(self._roots.values()), "a root has no name"
        pages = list(self.pages())
        assert len(set(pages)) == len(pages) == self.num_pages, "a page is in the tree twice, or is not counted"
        assert self._num_kept == self._weight * sum(len(node.pages) for node in nodes)
        assert self._num_unlocked == self._weight * sum(len(node.pages) for node in nodes if node.lock_count == 0)
        self.windows.check_integrity(nodes, held)
        if self.snapshots is not None:
            self.snapshots.check_integrity(nodes, taken)
        self._leaves.check_integrity(nodes)

    def _usable(self, path: Path) -> Path:
        """The part of a path that ends where every group can go on."""
        if self.snapshots is None:
            return self.windows.usable(path) if self.windows.groups else path
        found = self.snapshots.usable(path)
        while self.windows.groups and found and (seen := self.windows.usable(found)) != found:
            found = self.snapshots.usable(seen)
        return found

    def _cut_end(self, leaf: RadixNode, count: int) -> list[int]:
        """Takes up to `count` pages from the end of an unlocked leaf."""
        kept = len(leaf.keys)
        taken: list[int] = []
        if self.snapshots is not None:
            self.snapshots.drop(leaf)
        while kept and len(taken) < count:
            kept -= 1
            if self._weight:
                taken.append(leaf.pages[kept])
            for places in leaf.windows:
                taken += self.windows.give_up(places[kept])
        self._num_kept -= self._weight * (len(leaf.keys) - kept)
        self._num_unlocked -= self._weight * (len(leaf.keys) - kept)
        if kept == 0:
            self._remove(leaf)
        if self._events is not None:
            self._events.remove(leaf, kept)
        del leaf.keys[kept:], leaf.pages[kept:]
        for places in leaf.windows:
            del places[kept:]
        return taken

    @staticmethod
    def _path(node: RadixNode, keys: Sequence[PageKey]) -> Path:
        path: Path = []
        start = 0
        while start < len(keys) and (child := node.children.get(keys[start])) is not None:
            count = num_common(child.keys, keys[start : start + len(child.keys)])
            path.append((child, count))
            if count < len(child.keys):
                break
            start, node = start + count, child
        return path

    def _split_end(self, path: Path, start: RadixNode) -> RadixNode:
        """The node that ends where the path ends: `start` if it has no length."""
        if not path:
            return start
        node, count = path[-1]
        return node if count == len(node.keys) else node.split(count)

    def _append(
        self, node: RadixNode, keys: Sequence[PageKey], pages: Sequence[int], windows: Sequence[list[WindowPage]]
    ) -> RadixNode:
        """Adds pages that the tree does not have behind a node that the caller has locked (or a root)."""
        self._num_kept += self._weight * len(pages)
        for places in windows:
            self.windows.add(places)
        is_own = node.parent is not None and node.lock_count == 1 and not node.children  # no other request ends here
        if is_own and not node.snapshot:
            node.keys.extend(keys)
            node.pages.extend(pages)
            for own, places in zip(node.windows, windows, strict=True):
                own.extend(places)
            node.last_used = self._clock
        else:
            parent, node = node, RadixNode(list(keys), list(pages), node, lock_count=1, last_used=self._clock)
            node.windows = tuple(windows)
            parent.children[keys[0]] = node
            if parent.parent is None:
                self._filled_roots.add(parent)
        if self._events is not None:
            self._events.store(node, len(keys))
        return node

    def _add_lock(self, node: RadixNode) -> None:
        if node.lock_count == 0:
            self._num_unlocked -= self._weight * len(node.pages)
            self._leaves.withdraw(node)
        node.lock_count += 1
        node.num_hits += 1
        node.last_used = self._clock

    def _remove(self, leaf: RadixNode) -> None:
        parent = leaf.parent
        assert parent is not None
        self._leaves.withdraw(leaf)
        del parent.children[leaf.keys[0]]
        if parent.parent is None and not parent.children:
            self._filled_roots.discard(parent)
        self._leaves.offer(parent)

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the roots."""
        stack = [child for root in self._filled_roots for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())
