"""The map of a pool's pages: used, cached or free."""

import itertools
import time
from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from palladio.runtime.interface.messages.page_map import GroupPages, PageMap
from palladio.runtime.scheduling.cache.cache_manager import CacheManager
from palladio.runtime.scheduling.cache.page_owners import SCRATCH_PAGE
from palladio.runtime.scheduling.state.request import Request

MAX_CELLS = 2048  # of a map, and so the most runs that it can have

_Pages = NDArray[np.bool_]  # by page number


def map_pages(cache: CacheManager, running: Collection[Request]) -> PageMap:
    """Map the pages of a pool. Takes some 10 µs for each thousand pages that are free or cached.

    Args:
        running: the pool's running requests.
    """
    begun = time.perf_counter()
    num_pages = cache.allocator.num_pages
    free, cached = np.zeros(num_pages, bool), np.zeros(num_pages, bool)
    free[[SCRATCH_PAGE, *cache.allocator.free_pages]] = True
    groups = _Groups(cache, running)
    for pages in groups.mark_cached():
        cached[pages] = True
    used = ~(free | cached)
    pages_per_cell = -(-(num_pages - 1) // MAX_CELLS)
    return PageMap(
        num_pages - 1,
        int(used.sum()),
        int(cached.sum()),
        pages_per_cell,
        _runs(used[1:], cached[1:], pages_per_cell),
        groups.counted(),
        time.perf_counter() - begun,
    )


def _runs(used: _Pages, cached: _Pages, size: int) -> list[tuple[int, int, int]]:
    starts = np.arange(0, len(used), size)
    cells = np.stack([np.add.reduceat(state, starts, dtype=np.int32) for state in (used, cached)], axis=1)
    begins = np.flatnonzero(np.any(cells[1:] != cells[:-1], axis=1)) + 1
    places = [0, *begins.tolist(), len(cells)]
    values = cells[places[:-1]].tolist()
    return [(end - begin, *pair) for (begin, end), pair in zip(itertools.pairwise(places), values, strict=True)]


class _Groups:
    """Counts pages by group: first those of layers that keep all tokens, then those of each window."""

    def __init__(self, cache: CacheManager, running: Collection[Request]) -> None:
        self._groups = cache.groups
        self._tree = cache.tree
        windows = range(len(cache.groups.windows))
        self._cached = [0, *(0 for _ in windows)]
        own = sum(len(request.pages) - request.num_tree_pages + len(request.duplicates) for request in running)
        held = (sum(len(request.windows[place].own_numbers()) for request in running) for place in windows)
        self._used = [own, *held]

    def mark_cached(self) -> Iterable[list[int]]:
        """The pages that only the tree holds."""
        for node in self._tree.nodes():
            if self._groups.keeps_all:
                self._count(0, len(node.pages), is_held=node.lock_count > 0)
                if node.lock_count == 0:
                    yield node.pages
            for place, pages in enumerate(node.windows, start=1):
                for page in pages:
                    self._count(place, len(page.ids), is_held=page.num_holders > 0)
                    if page.num_holders == 0 and page.ids:
                        yield list(page.ids)

    def counted(self) -> list[GroupPages]:
        """After all of `mark_cached`."""
        kinds = [(None, 1), *((group.window, len(group.tables)) for group in self._groups.windows)]
        found = [GroupPages(*kind, *pair) for kind, *pair in zip(kinds, self._used, self._cached, strict=True)]
        return found if self._groups.keeps_all else found[1:]

    def _count(self, place: int, number: int, *, is_held: bool) -> None:
        (self._used if is_held else self._cached)[place] += number
