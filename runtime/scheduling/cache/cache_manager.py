"""CacheManager: who holds which KV pages. Page numbers only; the pages themselves live on the device. Who owns which
page: see page_owners.

Pages are reserved up to the last token that a planned step may compute (`grow`), or a few steps before, where that
evicts few (`has_spare`). Those of a windowed group are given back between steps only (`slide`), and as far as the
tokens that are computed for certain have left them behind: a step that is planned still reads what its first token
sees, and may be cut short. In the tree they become idle, not free, so that a later request can begin at any place.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from palladio.runtime.interface.messages.engine_stats import RankStats
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch
from palladio.runtime.scheduling.cache.page_allocator import PageAllocator
from palladio.runtime.scheduling.cache.page_owners import SCRATCH_PAGE, check_owners
from palladio.runtime.scheduling.cache.radix_cache import RadixCache
from palladio.runtime.scheduling.cache.state_snapshots import StateSnapshots
from palladio.runtime.scheduling.cache.tree_events import TreeEvents
from palladio.runtime.scheduling.state.page_groups import PageGroups
from palladio.runtime.scheduling.state.radix_node import PageKey, RadixNode, page_keys
from palladio.runtime.scheduling.state.request import Request
from palladio.runtime.scheduling.state.slot_columns import SlotColumns, Slots
from palladio.runtime.scheduling.state.window_pages import HeldWindow, PageIds, WindowPage

_SPARE = 8  # times as many pages as are taken early have to be available


@dataclasses.dataclass(frozen=True, slots=True)
class Prefix:
    """What the prefix tree has of a request's tokens.

    Attributes:
        node: where the match ends; None: the request has nothing to do with the cache.
        pages: that hold the matched tokens.
        windows: of each windowed group those pages that the next token sees.
    """

    node: RadixNode | None
    pages: list[int]
    windows: list[list[WindowPage]] = dataclasses.field(default_factory=list)


TableUpdate = tuple[int, int, int]
"""(slot, column, page): an entry of the block tables that has changed; see PageGroups for their columns."""


class CacheManager:
    """Pages of all running requests, and of the prefix cache.

    Args:
        eviction_policy: see --radix-eviction-policy.
        events: publishes the prefix cache's pages; None: they are not published.

    Attributes:
        groups: which block tables a request has pages for.
        page_size: tokens per page.
        num_tables: pages that a column takes, one for each block table.
        shares_prefixes: whether prefixes are cached.
        allocator: the free pages.
        tree: the prefix cache.
        events: events of the tree's pages, if they are published.
        snapshots: snapshots of states, if layers keep states; None: there are none.
    """

    def __init__(
        self,
        num_pages: int,
        groups: PageGroups,
        *,
        shares_prefixes: bool = True,
        eviction_policy: Literal["lru", "lfu"] = "lru",
        events: TreeEvents | None = None,
    ) -> None:
        self.groups = groups
        self.events = events
        self.page_size = groups.page_size
        self.num_tables = groups.num_tables
        self.allocator = PageAllocator(num_pages)
        self.tree = RadixCache(
            eviction_policy, groups.windows, keeps_all=groups.keeps_all, snapshots=groups.snapshots, events=events
        )
        self.snapshots: StateSnapshots | None = None
        if self.tree.snapshots is not None:
            self.snapshots = StateSnapshots(self.tree, self.tree.snapshots, groups.page_size, self._keys)
        self._table_updates: list[TableUpdate] = []
        self.shares_prefixes = shares_prefixes
        self._with_duplicates: list[Request] = []
        self._num_prompt_tokens = 0
        self._num_hit_tokens = 0
        self._num_evicted_pages = 0

    @property
    def num_available_pages(self) -> int:
        """Pages that are free or that only the prefix cache holds."""
        return self.allocator.num_free + self.tree.num_evictable

    @property
    def num_available_columns(self) -> int:
        """Pages of tokens for which every table can have one."""
        return self.num_available_pages // self.num_tables

    @property
    def num_total_tokens(self) -> int:
        """Tokens that the pool holds if every table keeps all of them."""
        return self._tokens(self.allocator.num_usable)

    @property
    def num_used_tokens(self) -> int:
        """In pages that running requests hold, in tokens that every table keeps."""
        return self.num_total_tokens - self._tokens(self.num_available_pages)

    def take_table_updates(self) -> list[TableUpdate]:
        """The updates since the last call. The caller applies them before the next step."""
        updates, self._table_updates = self._table_updates, []
        return updates

    def stats(self) -> RankStats:
        """The fields that it knows of."""
        return RankStats(
            num_used_tokens=self.num_used_tokens,
            num_total_tokens=self.num_total_tokens,
            num_cached_tokens=self._tokens(self.tree.num_pages),
            num_prompt_tokens=self._num_prompt_tokens,
            num_hit_tokens=self._num_hit_tokens,
            num_evicted_tokens=self._tokens(self._num_evicted_pages),
            **({} if self.tree.snapshots is None else vars(self.tree.snapshots.counts())),
            **({} if self.events is None else vars(self.events.counts())),
        )

    def find_prefix(self, request: Request) -> Prefix:
        """The longest cached prefix of a waiting request's tokens; the last token is never part of it, because its
        logits are needed, and nothing is where the logprobs of the whole prompt are."""
        if not (self.shares_prefixes and request.shares_prefix):
            return Prefix(None, [], [[] for _ in self.groups.windows])
        count = (len(request.token_ids) - 1) // self.page_size if request.prompt_logprobs is None else 0
        return self.find_pages(request, count)

    def find_pages(self, request: Request, count: int) -> Prefix:
        """Cached pages of the request's first `count` pages of tokens, as many as it can go on from."""
        keys, salt = self._keys(request, 0, count), request.given.options.cache_salt
        if request.given.media:
            keys = keys[: self._num_cached(request, keys)]
        node, pages = self.tree.match(keys, salt)
        windows = self.tree.windows.before(node, len(pages)) if self.groups.windows else []
        return Prefix(node, pages, windows)

    def num_cached_tokens(self, request: Request) -> int:
        """How many tokens of a waiting request `find_prefix` would find."""
        if not (self.shares_prefixes and request.shares_prefix) or request.prompt_logprobs is not None:
            return 0
        keys = self._keys(request, 0, (len(request.token_ids) - 1) // self.page_size)
        return self._num_cached(request, keys) * self.page_size

    def admit(self, request: Request, prefix: Prefix) -> None:
        """Gives a request that has just got a slot the pages of its prefix; its first token to compute follows it."""
        request.pages = list(prefix.pages)
        request.note_computed(len(prefix.pages) * self.page_size)
        request.num_tree_pages = len(prefix.pages)
        request.node = prefix.node
        if self.groups.keeps_all:
            self._table_updates.extend((request.slot, column, page) for column, page in enumerate(prefix.pages))
        if prefix.node is not None:
            self.hold(prefix)
            self._num_prompt_tokens += len(request.token_ids)
            self._num_hit_tokens += request.num_computed
            if self.snapshots is not None:
                self.snapshots.admit(request, prefix.node)
        for group, places in zip(self.groups.windows, prefix.windows, strict=True):
            held = HeldWindow.after(group, len(prefix.pages), places)
            request.windows.append(held)
            self._queue_updates(request, held, held.start, [place.ids for place in places])

    def hold(self, prefix: Prefix) -> None:
        """Keeps what was found, until it is let go."""
        if prefix.node is not None:
            self.tree.lock(prefix.node, [place for places in prefix.windows for place in places])

    def let_go(self, prefix: Prefix) -> None:
        """What was held may be evicted."""
        if prefix.node is not None:
            self.tree.unlock(prefix.node, [place for places in prefix.windows for place in places])

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Gives the request the pages for `num_tokens` tokens; False, and nothing changed, if there are too few."""
        column = len(request.pages)
        count = -(-num_tokens // self.page_size) - column
        if count <= 0:
            return True
        if count * self.num_tables > self.allocator.num_free and not self._make_room(count * self.num_tables):
            return False
        if self.groups.keeps_all:
            pages = self.allocator.allocate(count)
            request.pages.extend(pages)
            self._table_updates.extend((request.slot, column + i, page) for i, page in enumerate(pages))
        else:
            request.pages.extend([SCRATCH_PAGE] * count)
        for held in request.windows:
            ids = self.allocator.allocate(count * len(held.group.tables))
            self._queue_updates(request, held, column, held.extend(ids))
        request.note_pages()
        return True

    def has_spare(self, count: int) -> bool:
        """Whether `count` columns may be taken before they are needed: few cached pages, if any, have to be evicted."""
        count *= self.num_tables
        return count <= self.allocator.num_free or _SPARE * count <= self.num_available_pages

    def add_pages(self, columns: SlotColumns, slots: Slots) -> None:
        """Gives each of these requests a page more of each table. There are enough."""
        requests: list[Request] = columns.requests[slots].tolist()
        if self.groups.windows or not self.groups.keeps_all:
            has_room = all(self.grow(request, len(request.pages) * self.page_size + 1) for request in requests)
        elif has_room := len(slots) <= self.allocator.num_free or self._make_room(len(slots)):
            pages = self.allocator.allocate(len(slots))
            for slot, request, page in zip(slots.tolist(), requests, pages, strict=True):
                self._table_updates.append((slot, len(own := request.pages), page))
                own.append(page)
            columns.add_page(slots)
        assert has_room, "there are too few pages"

    def slide(self, running: Iterable[Request]) -> None:
        """Takes pages of windowed groups that no token sees from here on; between two steps of all ranks, see above."""
        if not self.groups.windows:
            return
        for request in running:
            for held in request.windows:
                first = held.group.first_needed(request.num_computed)
                if first <= held.start:
                    continue
                if first > request.num_tree_pages:
                    self.share(request)
                    self.drop_duplicates()  # no step writes to them any more
                places, own = held.slide(first)
                self.tree.let_go(places)
                self.allocator.free(own)

    def share(self, request: Request) -> None:
        """Puts the pages that the request's known tokens fill into the tree, for others to use."""
        if request.node is None or not self.shares_prefixes:
            return
        begin, end = request.num_tree_pages, min(request.num_computed, len(request.token_ids)) // self.page_size
        if end > begin:
            keys = self._keys(request, begin, end)
            windows = [held.take_own(begin, end) for held in request.windows]
            given = [[place.ids for place in places] for places in windows]
            request.node, duplicates = self.tree.extend(request.node, keys, request.pages[begin:end], windows)
            request.num_tree_pages = end
            request.duplicates += duplicates
            for held, ids, places in zip(request.windows, given, windows, strict=True):
                held.share(begin, ids, places)
            if duplicates or any(held.duplicates for held in request.windows):
                self._with_duplicates.append(request)

    def drop_duplicates(self) -> None:
        """Lets requests use the tree's pages in place of duplicates, once the steps that were to write to those have
        been dispatched. So between steps a request holds no more pages than its tokens fill."""
        for request in self._with_duplicates:
            if request.node is None:
                continue  # it has ended
            for column, page in enumerate(request.node.path_pages() if request.duplicates else ()):
                if request.pages[column] != page:
                    self._table_updates.append((request.slot, column, page))
                    request.pages[column] = page
            self.allocator.free(request.duplicates)
            request.duplicates = []
            for held in request.windows:
                for column, cached, own in held.drop_duplicates():
                    self._queue_updates(request, held, column, [cached])
                    self.allocator.free(list(own))
        self._with_duplicates.clear()

    def release(self, request: Request) -> None:
        """Take all pages from the request; full ones stay in the tree until room is needed."""
        if request.node is not None:
            self.share(request)
            if self.snapshots is not None:
                self.snapshots.release(request, keeps=self.shares_prefixes)
            self.tree.unlock(request.node, [place for held in request.windows for place in held.shared])
        self.allocator.free(request.duplicates)
        if self.groups.keeps_all:
            self.allocator.free(request.pages[request.num_tree_pages :])
        for held in request.windows:
            self.allocator.free(held.own_numbers())
        request.node, request.pages, request.duplicates, request.num_tree_pages = None, [], [], 0
        request.windows = []
        # Who gets its slot in the same step writes the same entries, and a scatter has no order.
        self._table_updates = [update for update in self._table_updates if update[0] != request.slot]
        if not self.shares_prefixes:
            self.flush()

    def num_lost_tokens(self, request: Request) -> int:
        """Computed tokens of a running request that no other holds: a retraction may lose them. Where layers keep
        states, those behind its last snapshot, which it would compute again in any case."""
        behind = self.snapshot_tokens(request)
        if behind is not None:
            return request.num_computed - behind
        shared, node = 0, request.node
        while node is not None:
            if node.lock_count > 1:
                shared += len(node.pages)
            node = node.parent
        return request.num_computed - shared * self.page_size

    def snapshot_tokens(self, request: Request) -> int | None:
        """Tokens of a running request that its last snapshot is behind; None: no layer keeps a state."""
        return None if self.snapshots is None else self.snapshots.reach(request)

    def flush(self) -> None:
        """Drops cached prefixes that no request uses."""
        self.allocator.free(self.tree.clear())

    def disable_sharing(self) -> None:
        """Drops the prefix cache for good; what running requests hold of it goes with them."""
        self.shares_prefixes = False
        if self.snapshots is not None:
            self.snapshots.close()
        self.flush()

    def with_copies(self, batch: ScheduledBatch) -> ScheduledBatch:
        """The next step that the device runs, whose rows are final, with its copies of states."""
        return batch if self.snapshots is None else dataclasses.replace(batch, copies=self.snapshots.plan(batch))

    def confirm(self, batch: ScheduledBatch) -> None:
        """A step has run, and its rows are read next."""
        if self.snapshots is not None and batch.copies is not None:
            self.snapshots.confirm(batch.copies)

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Checks that every page has exactly one owner, see page_owners.

        Raises:
            AssertionError: it has not; the message says which page.
        """
        taken = [] if self.snapshots is None else list(self.snapshots.taken)
        check_owners(self.allocator.num_pages, self.allocator.free_pages, self.tree, self.groups, list(running), taken)

    def _keys(self, request: Request, begin: int, end: int) -> list[PageKey]:
        """Kept with the request: one that waits is looked up at many steps."""
        known = request.page_keys
        if len(known) < end:
            known += page_keys(request.token_ids, self.page_size, len(known), end, request.given.media)
        return known[begin:end]

    def _num_cached(self, request: Request, keys: list[PageKey]) -> int:
        """Pages of these keys that are cached, and that end where computing may begin."""
        count = self.tree.num_matched(keys, request.given.options.cache_salt)
        while request.given.media and (uncut := request.uncut(count * self.page_size) // self.page_size) < count:
            count = self.tree.num_matched(keys[:uncut], request.given.options.cache_salt)
        return count

    def _tokens(self, num_pages: int) -> int:
        """How many tokens these pages hold if every table keeps all of them."""
        return num_pages // self.num_tables * self.page_size

    def _queue_updates(self, request: Request, held: HeldWindow, column: int, pages: Sequence[PageIds]) -> None:
        """Queue updates of the block table: a windowed group's pages from a column on."""
        for place, ids in enumerate(pages, start=column):
            for table, number in zip(held.group.tables, ids, strict=True):
                self._table_updates.append((request.slot, table * self.groups.num_columns + place, number))

    def _make_room(self, count: int) -> bool:
        """Evicts cached prefixes until `count` pages are free; False, and nothing changed, if there are too few."""
        missing = count - self.allocator.num_free
        if missing > self.tree.num_evictable:
            return False
        self.allocator.free(evicted := self.tree.evict(missing))
        self._num_evicted_pages += len(evicted)
        return True
