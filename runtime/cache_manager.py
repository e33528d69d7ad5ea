"""CacheManager: which request owns which pages, and the changes of the device's block table that follow from it.

Who owns page p, for every p in [0, num_pages):

    p == 0                        the scratch page, nobody
    p in allocator.free_pages     nobody
    p in request.pages            that one RUNNING request, for its tokens [i·S, (i+1)·S) where pages[i] == p

`check_integrity` states it as code.
"""

from collections.abc import Iterable

import numpy as np

from palladio.runtime.page_allocator import SCRATCH_PAGE, PageAllocator
from palladio.runtime.request import Request


class CacheManager:
    """Pages of all running requests.

    Attributes:
        page_size: tokens per page.
        allocator: the free pages.
        table_updates: (slot, column, page) entries of the block table that changed since the last dispatched step;
            whoever dispatches a step applies and clears them.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.allocator = PageAllocator(num_pages)
        self.table_updates: list[tuple[int, int, int]] = []

    @property
    def num_free_tokens(self) -> int:
        return self.allocator.num_free * self.page_size

    @property
    def num_total_tokens(self) -> int:
        return self.allocator.num_usable * self.page_size

    @property
    def num_used_tokens(self) -> int:
        return self.num_total_tokens - self.num_free_tokens

    def pages_to_grow(self, request: Request, num_tokens: int) -> int:
        """How many more pages the request needs to hold `num_tokens` tokens."""
        return max(0, -(-num_tokens // self.page_size) - len(request.pages))

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Gives the request the pages for `num_tokens` tokens; False, and nothing changed, if there are too few."""
        count = self.pages_to_grow(request, num_tokens)
        if count == 0:
            return True
        if count > self.allocator.num_free:
            return False
        column = len(request.pages)
        pages = self.allocator.allocate(count)
        request.pages.extend(pages)
        self.table_updates.extend((request.slot, column + i, page) for i, page in enumerate(pages))
        return True

    def release(self, request: Request) -> None:
        """Takes all pages from the request. Steps already dispatched may still write to them: they run before any
        step that a later owner is part of, so that owner's writes win."""
        self.allocator.free(request.pages)
        request.pages = []

    def flush(self) -> None:
        """Drops cached prefixes that no request uses. There is no prefix cache yet, so there is nothing to drop."""

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Checks that every page has exactly one owner.

        Raises:
            AssertionError: it has not; the message says which page.
        """
        owned = [SCRATCH_PAGE, *self.allocator.free_pages]
        for request in running:
            needed = -(-request.num_computed // self.page_size)
            assert len(request.pages) >= needed, f"{request.request_id} owns too few pages"
            owned += request.pages
        num_owners = np.bincount(np.array(owned), minlength=self.allocator.num_pages)
        wrong = np.flatnonzero(num_owners != 1)
        assert wrong.size == 0, f"page {wrong[0]} has {num_owners[wrong[0]]} owners; {wrong.size} pages are wrong"
