"""The KV budget: who is admitted, and how much output to expect."""

import collections
from collections.abc import Iterable, Sequence

from palladio.runtime.scheduling.batch.buckets import Buckets, SchedulerLimits
from palladio.runtime.scheduling.cache.cache_manager import CacheManager, Prefix
from palladio.runtime.scheduling.policy.batch_share import BatchShare, StepClass, StepMix
from palladio.runtime.scheduling.policy.waiting_queue import WaitingQueue
from palladio.runtime.scheduling.state.radix_node import RadixNode
from palladio.runtime.scheduling.state.request import Request
from palladio.runtime.scheduling.state.running import RunningRequests
from palladio.runtime.scheduling.state.window_pages import WindowPage

INIT_RATIO = 0.7
MIN_RATIO_FACTOR = 0.14
DECAY_STEPS = 600  # decode steps from the initial ratio to the lowest
CLIP_MAX_NEW_TOKENS = 4096  # longer requests are counted as this long: few run to their limit
RETRACT_DECODE_STEPS = 20  # after a retraction, expect the others to run at least this much further


class NewTokenRatio:
    """Attributes:
    value: in [0, 1].
    """

    def __init__(self, conservativeness: float) -> None:
        self.value = min(INIT_RATIO * conservativeness, 1.0)
        self._lowest = self.value * MIN_RATIO_FACTOR
        self._decay = INIT_RATIO * (1 - MIN_RATIO_FACTOR) / DECAY_STEPS

    def expected_output(self, request: Request) -> int:
        """Tokens that the request is expected to generate from here."""
        return int(min(request.max_remaining_tokens, CLIP_MAX_NEW_TOKENS) * self.value)

    def decay(self) -> None:
        """After each decode step."""
        self.value = max(self.value - self._decay, self._lowest)

    def raise_for(self, running: Iterable[Request]) -> None:
        """After a retraction that left these requests running."""
        done = planned = 0
        for request in running:
            done += request.num_output_tokens + RETRACT_DECODE_STEPS
            planned += min(request.max_tokens, CLIP_MAX_NEW_TOKENS)
        self.value = min(1.0, max(self.value, done / max(planned, 1)))


class KVBudget:
    """
    Args:
        share: of background requests.
        running, waiting: the scheduler's.

    Attributes:
        ratio: the share of its max_tokens that a request is expected to use.
    """

    def __init__(
        self,
        cache: CacheManager,
        limits: SchedulerLimits,
        share: BatchShare,
        running: RunningRequests,
        waiting: WaitingQueue,
    ) -> None:
        self.ratio = NewTokenRatio(limits.conservativeness)
        self._cache = cache
        self._limits = limits
        self._share = share
        self._running = running
        self._waiting = waiting

    def num_slots(self, buckets: Buckets) -> int:
        """Requests that may run at once."""
        return min(self._limits.max_running, buckets.max_requests)

    def next_waiting(self, step_class: StepClass, budget: int) -> Request | None:
        """Choose the request to admit next; None: none in this step.

        Args:
            budget: prompt tokens that the step has left.
        """
        request = self._waiting.peek()
        if request is None or (step_class == "foreground" and request.given.options.background):
            return None
        if request.num_unread or (not self._limits.splits_prompts and len(request.token_ids) > budget):
            return None  # unread: retracted a moment ago, and its last token has not been read yet
        return request

    def next_shorter(self, step_class: StepClass, budget: int) -> Request | None:
        """Choose a request that fits into the rest of a step, where the next one does not: it is a text that is never
        split, and comes first in the next step. None: none does, or the model splits texts."""
        request = self._waiting.peek() if self._limits.fills_steps else None
        if request is None or (step_class == "foreground" and request.given.options.background):
            return None
        return self._waiting.find_shorter(budget)

    def next_urgent(self, step_class: StepClass, budget: int) -> Request | None:
        """The same, if there may be running requests that give way to it."""
        gives_way = self._limits.preemption_threshold is not None or (
            self._share.num_background > 0 and self._share.is_shared
        )
        if not gives_way or not len(self._waiting):
            return None
        self._waiting.refresh()
        return self.next_waiting(step_class, budget)

    def fits(self, request: Request, prefix: Prefix, reserved: int) -> bool:
        """Whether there is cache for a waiting request. Args: as for needed_tokens."""
        return self.needed_tokens(request, prefix, reserved) <= self._cache.num_available_pages * self._cache.page_size

    def needed_tokens(self, request: Request, prefix: Prefix, reserved: int, released: "Released | None" = None) -> int:
        """Tokens of cache that have to be available for a waiting request to be admitted; those of each block table
        count.

        Args:
            reserved: for the requests that run.
            released: what they give up before; None: nothing. Idle pages of the prefix count as available until the
                request takes them.
        """
        size = self._cache.page_size
        rest = len(request.token_ids) - len(prefix.pages) * size
        wanted = rest + self.ratio.expected_output(request) + size
        held = [len(places) for places in prefix.windows]
        growth = self._growth(wanted, held, self._limits.max_step_tokens)
        released = Released(keeps_all=self._cache.groups.keeps_all) if released is None else released
        return growth + reserved + released.num_idle_pages(prefix.node, prefix.windows) * size

    def expected_tokens(self, request: Request) -> int:
        """Tokens of cache that a running request will still take: the rest of its prefill, and its expected output."""
        rest = max(0, request.prefill_end - request.num_computed)
        wanted = rest + self.ratio.expected_output(request) + self._cache.page_size
        held = [window.num_pages for window in request.windows]
        return self._growth(wanted, held, self._limits.max_step_tokens if rest else self._limits.decode_chunk)

    def _growth(self, num_tokens: int, held: Sequence[int], chunk: int) -> int:
        """KV tokens that `num_tokens` more tokens of a request take, in all block tables.

        Args:
            held: pages that it has already in each windowed group.
            chunk: the most that it computes in a step.
        """
        groups, size = self._cache.groups, self._cache.page_size
        total = num_tokens if groups.keeps_all else 0
        for group, num_pages in zip(groups.windows, held, strict=True):
            most = max(1, group.most_pages(chunk) - num_pages)
            total += len(group.tables) * min(num_tokens, most * size)
        return total

    def reserved_tokens(self, running: Iterable[Request]) -> int:
        return sum(map(self.expected_tokens, running))

    def room(self, request: Request, buckets: Buckets) -> "AdmissionCheck":
        """What room there is for a waiting request, beside those running ones that it has to leave theirs."""
        mix = StepMix(self._share, self._running)
        others = mix.members("all" if request.given.options.background else "foreground")
        return AdmissionCheck(self, self._cache, request, len(self._running), self.num_slots(buckets), others)


class Released:
    """What running requests would give up, one after the other: counted, nothing changes.

    Args:
        keeps_all: see PageGroups.

    Attributes:
        num_pages: that would be available in addition.
    """

    def __init__(self, *, keeps_all: bool) -> None:
        self.num_pages = 0
        self._weight = int(keeps_all)
        self._num_locks: collections.Counter[RadixNode] = collections.Counter()  # of each node, theirs
        self._num_held: collections.Counter[WindowPage] = collections.Counter()  # of each page, those of theirs

    def add(self, request: Request) -> None:
        """One more running request."""
        self.num_pages += len(request.duplicates)
        self.num_pages += self._weight * (len(request.pages) - request.num_tree_pages)
        node = request.node
        while node is not None and node.parent is not None:
            self._num_locks[node] += 1
            self.num_pages += self._weight * len(node.pages) if self._is_idle(node) else 0
            node = node.parent
        for held in request.windows:
            self.num_pages += len(held.own_numbers())
            for page in held.shared:
                self._num_held[page] += 1
                self.num_pages += len(page.ids) if page.num_holders == self._num_held[page] else 0

    def num_idle_pages(self, node: RadixNode | None, windows: Iterable[Iterable[WindowPage]]) -> int:
        """Pages from the root to the end of the node, and of windowed groups, that no request would hold."""
        count = 0
        while node is not None and self._is_idle(node):
            count += self._weight * len(node.pages)
            node = node.parent
        for places in windows:
            count += sum(len(page.ids) for page in places if page.num_holders == self._num_held[page])
        return count

    def _is_idle(self, node: RadixNode) -> bool:
        return node.lock_count == self._num_locks[node]


class AdmissionCheck:
    """Whether a waiting request fits, and whether it would if running ones gave up their pages and slots.

    Args:
        num_slots: that requests may have; num_running are in use.
        others: for whose further tokens cache is kept.
    """

    def __init__(
        self,
        kv_budget: KVBudget,
        cache: CacheManager,
        request: Request,
        num_running: int,
        num_slots: int,
        others: Iterable[Request],
    ) -> None:
        self._kv_budget = kv_budget
        self._cache = cache
        self._request = request
        self._num_running = num_running
        self._num_slots = num_slots
        self._expected = {other: kv_budget.expected_tokens(other) for other in others}
        self._reserved = sum(self._expected.values())
        self._prefix = cache.find_prefix(request)
        self._released = Released(keeps_all=cache.groups.keeps_all)

    def suffices(self) -> bool:
        """Whether the request fits without those that were left out. Alone it does: the front refuses those that do not
        fit an empty pool."""
        if self._num_running >= self._num_slots:
            return False
        needed = self._kv_budget.needed_tokens(self._request, self._prefix, self._reserved, self._released)
        num_pages = self._cache.num_available_pages + self._released.num_pages
        return self._num_running == 0 or needed <= num_pages * self._cache.page_size

    def leave_out(self, victim: Request) -> None:
        """One more running request gives up what it has, in thought."""
        self._num_running -= 1
        self._reserved -= self._expected.get(victim, 0)
        self._released.add(victim)
