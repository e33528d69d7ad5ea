"""CacheManager: who holds which KV pages; PageAllocator: which are free. Page numbers only; the pages themselves live
on the device."""

import collections
import dataclasses
from collections.abc import Iterable
from typing import Literal

import numpy as np

from palladio.runtime.interface.messages import RankStats
from palladio.runtime.scheduling.radix_cache import PageKey, RadixCache, RadixNode, page_keys
from palladio.runtime.scheduling.request import Request

SCRATCH_PAGE = 0  # padding writes go here; it is never allocated


class PageAllocator:
    """Free pages 1 … num_pages-1. Page 0 is the scratch page.

    Attributes:
        num_pages: pages on the device, the scratch page included.
    """

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 2, "one scratch page and at least one real one"
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, 0, -1))  # a stack: recently freed pages are warm in caches

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_usable(self) -> int:
        """Pages that requests can own: all but the scratch page."""
        return self.num_pages - 1

    @property
    def free_pages(self) -> tuple[int, ...]:
        return tuple(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` pages off the free stack; the caller checks `num_free` first."""
        assert count <= len(self._free), f"{count} pages wanted, {len(self._free)} free"
        if count == 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        return taken

    def free(self, pages: list[int]) -> None:
        """Gives pages back. The list must not be used afterwards."""
        self._free.extend(pages)


@dataclasses.dataclass(frozen=True, slots=True)
class Prefix:
    """What the prefix tree has of a request's tokens.

    Attributes:
        node: where the match ends; None: the request has nothing to do with the cache.
        pages: that hold the matched tokens.
        num_idle_pages: of those, held by nobody yet, so that they count as available until the request takes them.
    """

    node: RadixNode | None
    pages: list[int]
    num_idle_pages: int


class Released:
    """What running requests would give up, one after the other: counted, nothing changes.

    Attributes:
        num_pages: that would be available in addition.
    """

    def __init__(self) -> None:
        self.num_pages = 0
        self._num_locks: collections.Counter[RadixNode] = collections.Counter()  # of each node, theirs

    def add(self, request: Request) -> None:
        """One more running request."""
        self.num_pages += len(request.duplicates) + len(request.pages) - request.num_tree_pages
        node = request.node
        while node is not None and node.parent is not None:
            self._num_locks[node] += 1
            self.num_pages += len(node.pages) if self._is_idle(node) else 0
            node = node.parent

    def num_idle_pages(self, node: RadixNode | None) -> int:
        """Pages from the root to the end of the node that nobody would hold."""
        count = 0
        while node is not None and self._is_idle(node):
            count += len(node.pages)
            node = node.parent
        return count

    def _is_idle(self, node: RadixNode) -> bool:
        return node.lock_count == self._num_locks[node]


TableUpdate = tuple[int, int, int]
"""(slot, column, page): an entry of the block table that has changed."""


class CacheManager:
    """Pages of all running requests, and of the prefix cache.

    Args:
        shares_prefixes: False: no prefix cache.
        eviction_policy: see --radix-eviction-policy.

    Attributes:
        page_size: tokens per page.
        allocator: the free pages.
        tree: the prefix cache.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        shares_prefixes: bool = True,
        eviction_policy: Literal["lru", "lfu"] = "lru",
    ) -> None:
        self.page_size = page_size
        self.allocator = PageAllocator(num_pages)
        self.tree = RadixCache(eviction_policy)
        self._table_updates: list[TableUpdate] = []
        self._shares_prefixes = shares_prefixes
        self._with_duplicates: list[Request] = []
        self._num_prompt_tokens = 0
        self._num_hit_tokens = 0
        self._num_evicted_pages = 0

    @property
    def num_available_pages(self) -> int:
        """Free pages, and those that only the prefix cache holds."""
        return self.allocator.num_free + self.tree.num_evictable

    @property
    def num_available_tokens(self) -> int:
        return self.num_available_pages * self.page_size

    @property
    def num_total_tokens(self) -> int:
        return self.allocator.num_usable * self.page_size

    @property
    def num_used_tokens(self) -> int:
        """In pages that running requests hold."""
        return self.num_total_tokens - self.num_available_tokens

    def take_table_updates(self) -> list[TableUpdate]:
        """Those since the last call; whoever dispatches a step applies them before it."""
        updates, self._table_updates = self._table_updates, []
        return updates

    @property
    def shares_prefixes(self) -> bool:
        """Whether prefixes are cached."""
        return self._shares_prefixes

    def stats(self) -> RankStats:
        """The fields that it knows of."""
        return RankStats(
            num_used_tokens=self.num_used_tokens,
            num_total_tokens=self.num_total_tokens,
            num_cached_tokens=self.tree.num_pages * self.page_size,
            num_prompt_tokens=self._num_prompt_tokens,
            num_hit_tokens=self._num_hit_tokens,
            num_evicted_tokens=self._num_evicted_pages * self.page_size,
        )

    def find_prefix(self, request: Request) -> Prefix:
        """The longest cached prefix of a waiting request's tokens; the last token is never part of it, because its
        logits are needed, and nothing is where the logprobs of the whole prompt are."""
        if not (self._shares_prefixes and request.shares_prefix):
            return Prefix(None, [], 0)
        count = (len(request.token_ids) - 1) // self.page_size if request.prompt_logprobs is None else 0
        node, pages = self.find_pages(request, count)
        return Prefix(node, pages, Released().num_idle_pages(node))

    def find_pages(self, request: Request, count: int) -> tuple[RadixNode, list[int]]:
        """Cached pages of the request's first `count` pages of tokens, as many as there are, and where they end."""
        return self.tree.match(self._keys(request, 0, count), request.given.options.cache_salt)

    def num_cached_tokens(self, request: Request) -> int:
        """Of a waiting request: as many as `find_prefix` would find."""
        if not (self._shares_prefixes and request.shares_prefix) or request.prompt_logprobs is not None:
            return 0
        keys = self._keys(request, 0, (len(request.token_ids) - 1) // self.page_size)
        return self.tree.num_matched(keys, request.given.options.cache_salt) * self.page_size

    def admit(self, request: Request, prefix: Prefix) -> None:
        """Gives a request that has just got a slot the pages of its prefix; its first token to compute follows it."""
        request.pages = list(prefix.pages)
        request.num_computed = len(prefix.pages) * self.page_size
        request.num_tree_pages = len(prefix.pages)
        request.node = prefix.node
        self._table_updates.extend((request.slot, column, page) for column, page in enumerate(prefix.pages))
        if prefix.node is not None:
            self.tree.lock(prefix.node)
            self._num_prompt_tokens += len(request.token_ids)
            self._num_hit_tokens += request.num_computed

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Gives the request the pages for `num_tokens` tokens; False, and nothing changed, if there are too few."""
        column = len(request.pages)
        count = -(-num_tokens // self.page_size) - column
        if count <= 0:
            return True
        if count > self.allocator.num_free and not self._make_room(count):
            return False
        pages = self.allocator.allocate(count)
        request.pages.extend(pages)
        self._table_updates.extend((request.slot, column + i, page) for i, page in enumerate(pages))
        return True

    def share(self, request: Request) -> None:
        """Puts the pages that the request's known tokens fill into the tree, for others to use."""
        if request.node is None or not self._shares_prefixes:
            return
        begin, end = request.num_tree_pages, min(request.num_computed, len(request.token_ids)) // self.page_size
        if end > begin:
            keys = self._keys(request, begin, end)
            request.node, duplicates = self.tree.extend(request.node, keys, request.pages[begin:end])
            request.num_tree_pages = end
            if duplicates:
                request.duplicates += duplicates
                self._with_duplicates.append(request)

    def drop_duplicates(self) -> None:
        """Lets requests use the tree's pages in place of their own duplicates; once the steps that were to write to
        those have been dispatched. So between steps a request holds no more pages than its tokens fill."""
        for request in self._with_duplicates:
            if request.node is None:
                continue  # it has ended
            for column, page in enumerate(_path(request.node)):
                if request.pages[column] != page:
                    self._table_updates.append((request.slot, column, page))
                    request.pages[column] = page
            self.allocator.free(request.duplicates)
            request.duplicates = []
        self._with_duplicates.clear()

    def release(self, request: Request) -> None:
        """Takes all pages from the request; those that its tokens fill stay in the tree until room is needed."""
        if request.node is not None:
            self.share(request)
            self.tree.unlock(request.node)
        self.allocator.free(request.duplicates)
        self.allocator.free(request.pages[request.num_tree_pages :])
        request.node, request.pages, request.duplicates, request.num_tree_pages = None, [], [], 0
        if not self._shares_prefixes:
            self.flush()

    def num_lost_tokens(self, request: Request) -> int:
        """Computed tokens of a running request that nobody else holds: what it may have to compute again if it is
        retracted."""
        shared, node = 0, request.node
        while node is not None:
            if node.lock_count > 1:
                shared += len(node.pages)
            node = node.parent
        return request.num_computed - shared * self.page_size

    def flush(self) -> None:
        """Drops cached prefixes that no request uses."""
        self.allocator.free(self.tree.clear())

    def disable_sharing(self) -> None:
        """Drops the prefix cache for good; what running requests hold of it goes with them."""
        self._shares_prefixes = False
        self.flush()

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Checks that every page has exactly one owner.

        Raises:
            AssertionError: it has not; the message says which page.
        """
        running = list(running)
        owned = [SCRATCH_PAGE, *self.allocator.free_pages, *self.tree.pages()]
        for request in running:
            needed = -(-request.num_computed // self.page_size)
            assert len(request.pages) >= needed, f"{request.given.request_id} owns too few pages"
            owned += request.duplicates
            owned += request.pages[request.num_tree_pages :]
            self._check_path(request)
        num_owners = np.bincount(np.array(owned), minlength=self.allocator.num_pages)
        wrong = np.flatnonzero(num_owners != 1)
        assert wrong.size == 0, f"page {wrong[0]} has {num_owners[wrong[0]]} owners; {wrong.size} pages are wrong"
        self.tree.check_integrity([request.node for request in running if request.node is not None])

    def _keys(self, request: Request, begin: int, end: int) -> list[PageKey]:
        """Kept with the request: one that waits is looked up at many steps."""
        known = request.page_keys
        if len(known) < end:
            known += page_keys(request.token_ids, self.page_size, len(known), end)
        return known[begin:end]

    def _make_room(self, count: int) -> bool:
        """Evicts cached prefixes until so many pages are free; False, and nothing changed, if there are too few."""
        missing = count - self.allocator.num_free
        if missing > self.tree.num_evictable:
            return False
        self.allocator.free(self.tree.evict(missing))
        self._num_evicted_pages += missing
        return True

    @staticmethod
    def _check_path(request: Request) -> None:
        path = [] if request.node is None else _path(request.node)
        assert len(path) == request.num_tree_pages, f"{request.given.request_id} holds another node than it should"
        own = set(request.duplicates)
        differing = {page for page, cached in zip(request.pages, path, strict=False) if page != cached}
        assert differing == own, f"{request.given.request_id}: pages {differing ^ own} are neither shared nor its own"


def _path(node: RadixNode) -> list[int]:
    """Pages from the root to the end of the node."""
    runs = []
    ancestor: RadixNode | None = node
    while ancestor is not None:
        runs.append(ancestor.pages)
        ancestor = ancestor.parent
    return [page for run in reversed(runs) for page in run]
