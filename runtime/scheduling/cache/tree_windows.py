"""The windowed groups' pages in the prefix tree: which a request can go on from, and which may be given up.

A windowed group has pages for some of a node's keys; elsewhere its places are holes. Those who hold a page have locked
its node, or one below it. What no request holds is idle, and can be given up at any time, wherever it is.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence

from palladio.runtime.scheduling.state.page_groups import WindowGroup
from palladio.runtime.scheduling.state.radix_node import Path, RadixNode
from palladio.runtime.scheduling.state.window_pages import PageIds, WindowPage


class TreeWindows:
    """The pages of windowed groups in the tree, and which of them may be evicted.

    Args:
        groups: in the order of `RadixNode.windows`.

    Attributes:
        num_ids: how many page numbers all pages in the tree have.
        num_idle: how many of these belong to pages that no request holds.
    """

    def __init__(self, groups: Sequence[WindowGroup]) -> None:
        self.groups = groups
        self.num_ids = 0
        self.num_idle = 0
        self._idle: collections.OrderedDict[WindowPage, None] = collections.OrderedDict()  # used longest ago first

    @property
    def coldest(self) -> WindowPage | None:
        """The idle page that was used longest ago."""
        return next(iter(self._idle), None)

    def hold(self, pages: Iterable[WindowPage], now: int) -> None:
        """One more sees these pages: they are not evicted until `let_go`. Their nodes are locked."""
        for page in pages:
            if page.use(1, now):
                self._remove_idle(page)

    def let_go(self, pages: Iterable[WindowPage], now: int) -> None:
        """Take one user from each page, as of `now`."""
        for page in pages:
            if page.use(-1, now):
                self._idle[page] = None
                self.num_idle += len(page.ids)

    def add(self, places: Iterable[WindowPage]) -> None:
        """Places of new keys, or of holes that are filled."""
        self.num_ids += sum(len(place.ids) for place in places)

    def give_up(self, page: WindowPage) -> PageIds:
        """Makes a hole of an idle page; a hole stays one. Returns the numbers that are free now."""
        if page.ids:
            self._remove_idle(page)
            self.num_ids -= len(page.ids)
        return page.empty()

    def usable(self, path: Path) -> Path:
        """The part of a path, from the root on, that ends where every group can go on."""
        end, known = sum(count for _, count in path), -1
        while end != known:
            known = end
            for number, group in enumerate(self.groups):
                path = _first_pages(path, end)
                places = (p for node, count in reversed(path) for p in reversed(node.windows[number][:count]))
                end = _last_boundary(group, places, end)
        return _first_pages(path, end)

    def before(self, node: RadixNode, depth: int) -> list[list[WindowPage]]:
        """The pages of each group that a query right behind the node sees.

        Args:
            depth: pages from the root on.
        """
        found: list[list[WindowPage]] = []
        for number, group in enumerate(self.groups):
            needed = depth - group.first_needed(depth * group.page_size)
            places: list[WindowPage] = []
            at: RadixNode | None = node
            while at is not None and len(places) < needed:
                places[:0] = at.windows[number][len(places) - needed :] if at.parent is not None else ()
                at = at.parent
            found.append(places)
        return found

    def fill_holes(self, path: Path, windows: Sequence[list[WindowPage]], now: int) -> None:
        """Fill holes on a path with a request's pages, or give the request the tree's; see RadixCache.extend.

        Args:
            path: path of the keys that the tree has.
        """
        begin = 0
        for node, count in path:
            for places, given in zip(node.windows, windows, strict=True):
                for i, page in enumerate(given[begin : begin + count]):
                    if not page.ids:
                        continue
                    if places[i].ids:
                        self.hold([places[i]], now)
                        given[begin + i] = places[i]
                    else:
                        places[i] = page
                        self.add([page])
            begin += count

    def check_integrity(self, nodes: Iterable[RadixNode], held: Iterable[WindowPage]) -> None:
        """Check the owners of windowed pages.

        Args:
            nodes: all nodes of the tree.
            held: pages that requests hold, each once for each request.

        Raises:
            AssertionError: something else than `held` is held, or is idle.
        """
        holders, idle = collections.Counter(held), set(self._idle)
        assert self.num_idle == sum(len(page.ids) for page in idle)
        num_ids = 0
        for node in nodes:
            assert [len(places) for places in node.windows] == [len(node.keys)] * len(self.groups)
            for page in itertools.chain(*node.windows):
                num_ids += len(page.ids)
                assert page.num_holders == holders.pop(page, 0), "somebody holds a page without saying so, or none does"
                assert page.num_holders == 0 or page.ids, "somebody holds a hole"
                assert page.num_holders == 0 or node.lock_count, "somebody holds a page of a node that is not locked"
                assert (page in idle) == bool(page.ids and not page.num_holders), "a page is idle, or should be"
                idle.discard(page)
        assert num_ids == self.num_ids, f"{num_ids} pages in the tree, {self.num_ids} counted"
        assert not holders, "somebody holds a page that is not in the tree"
        assert not idle, "an idle page is not in the tree"

    def _remove_idle(self, page: WindowPage) -> None:
        del self._idle[page]
        self.num_idle -= len(page.ids)


def _last_boundary(group: WindowGroup, places: Iterator[WindowPage], end: int) -> int:
    """The last of the columns 0 … end that a request can go on from: all pages that a query there sees are present.

    Args:
        places: of columns end-1, end-2, …; no more are taken than needed.
    """
    boundary, first = end, group.first_needed(end * group.page_size)
    column = end
    while column > first:
        column -= 1
        if not next(places).ids:
            boundary, first = column, group.first_needed(column * group.page_size)
    return boundary


def _first_pages(path: Path, count: int) -> Path:
    """The first `count` pages of a path."""
    kept: Path = []
    for node, length in path:
        if count <= 0:
            break
        kept.append((node, min(length, count)))
        count -= length
    return kept
