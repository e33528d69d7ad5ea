"""In which order waiting requests are admitted (--schedule-policy). Background requests stand in a line of their own,
behind all others.

    fcfs        the one that came first
    lpm         the one with the longest cached prefix, so that it is used before it is evicted
    dfs-weight  depth-first through the tree of cached prefixes, branches with more requests first
    shortest-prefill-first  the one with the fewest tokens to compute: those that no cached prefix holds
    hrrn        the one with the highest response ratio: tokens that others computed while it waited, over its own to
                compute; so short prompts come first, and long ones when they have waited for their length
    lof         the one with the longest output (max_tokens)
    random      any, by a seeded generator
    priority    the one with the highest priority

Among equals the one that came first. Requests that had run and lost their pages come before all others (with
priority: before others of their own priority).

No request starves: of every FAIR_TURN new requests taken, one is the one that waited longest, whatever the policy says.
So a request with k new ones before it is taken as one of the next FAIR_TURN·(k+1), however many come after it. Two
policies take no fair turns: fcfs needs none, and who asks for priority wants the less urgent to wait.

No call takes time proportional to the queue: the policies that look at the tree do so for a window of it.
"""

import collections
import heapq
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Self, overload

from palladio.runtime.interface.config.scheduler_config import SchedulePolicy
from palladio.runtime.interface.errors import OverloadedError
from palladio.runtime.scheduling.cache.radix_cache import RadixCache
from palladio.runtime.scheduling.state.radix_node import PageKey, RadixNode, page_keys
from palladio.runtime.scheduling.state.request import Request

FAIR_TURN = 8  # every 8th admission of a new request takes the oldest one
WINDOW = 64  # how many requests, those that waited longest, policies of prefixes choose from
_OF_PREFIXES = ("lpm", "dfs-weight", "shortest-prefill-first", "hrrn")

_MIN_COMPACTED_HEAP = 64  # shorter heaps may be mostly stale entries: it costs nothing


class PolicyQueue:
    """The waiting requests, in the policy's order.

    Args:
        cache: where policies of prefixes look for them.
        page_size: tokens per page.
        low_values_first: whether a low `priority` is the urgent one.
        seed: of the policy random.
    """

    def __init__(
        self,
        policy: SchedulePolicy,
        cache: RadixCache,
        page_size: int,
        *,
        low_values_first: bool = False,
        seed: int = 0,
    ) -> None:
        self._policy = policy
        self._cache = cache
        self._page_size = page_size
        self._low_values_first = low_values_first
        self._random = random.Random(seed)
        # Each request with its number: counted up from 1 for new ones, down from -1 for those that were put back, which
        # stand at the front. So the numbers ascend.
        self._numbers: collections.OrderedDict[Request, int] = collections.OrderedDict()
        self._last_new = 0
        self._last_put_back = 0
        # For lof, random and priority: (rank, number, request). Entries of requests that are gone, or have another
        # number now, are stale.
        self._heap: list[tuple[float, int, Request]] = []
        self._window: list[Request] | None = None  # for policies of prefixes, the next one last; may hold stale
        self._num_turns = 0
        self._num_tokens_taken = 0  # that requests had to compute which have been taken, for hrrn
        self._taken_before: dict[Request, int] = {}  # that count when a request came, for hrrn

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, request: object) -> bool:
        return request in self._numbers

    def __iter__(self) -> Iterator[Request]:
        """Those that were put back, then all others by arrival."""
        return iter(self._numbers)

    def add(self, request: Request) -> None:
        """Queues a new request, as the last to arrive."""
        assert request not in self._numbers, f"{request.given.request_id} is waiting already"
        self._last_new += 1
        self._numbers[request] = self._last_new
        if self._policy in ("lof", "random", "priority"):
            heapq.heappush(self._heap, (self._rank(request), self._last_new, request))
        elif self._policy == "hrrn":
            self._taken_before[request] = self._num_tokens_taken

    def put_back(self, request: Request) -> None:
        """Queues a request that had run, before all others (policy priority: before others of its own priority);
        of several, the one put back last comes first."""
        assert request not in self._numbers, f"{request.given.request_id} is waiting already"
        self._last_put_back -= 1
        self._numbers[request] = self._last_put_back
        self._numbers.move_to_end(request, last=False)
        if self._policy == "priority":
            heapq.heappush(self._heap, (self._rank(request), self._last_put_back, request))

    def remove(self, request: Request) -> None:
        """Takes a request out of the queue, wherever it stands.

        Raises:
            KeyError: it is not waiting.
        """
        del self._numbers[request]
        self._taken_before.pop(request, None)
        if len(self._heap) > max(_MIN_COMPACTED_HEAP, 2 * len(self._numbers)):
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def refresh(self) -> None:
        """Makes the next `peek` look at the tree again; to be called once a scheduling round."""
        self._window = None

    def peek(self) -> Request | None:
        """Who is next; the same until the queue changes or is refreshed."""
        first = next(iter(self._numbers), None)
        if first is None or self._policy == "fcfs":
            return first
        if self._policy == "priority":
            return self._top_of_heap()
        is_fair_turn = self._num_turns % FAIR_TURN == FAIR_TURN - 1
        if self._numbers[first] < 0 or is_fair_turn:
            return first
        return self._next_of_window() if self._policy in _OF_PREFIXES else self._top_of_heap()

    def take(self) -> Request:
        """Takes the next request out of the queue, which is not empty."""
        request = self.peek()
        assert request is not None, "the queue is empty"
        if self._numbers[request] > 0:  # requests that were put back do not use up the fair turns of new ones
            self._num_turns += 1
        if self._policy == "hrrn":
            self._num_tokens_taken += self._num_uncached(request, self._cached_path(request))
        self.remove(request)
        return request

    def _rank(self, request: Request) -> float:
        """The lowest is next."""
        if self._policy == "lof":
            return -request.max_tokens
        if self._policy == "random":
            return self._random.random()
        return request.given.options.priority if self._low_values_first else -request.given.options.priority

    def _is_valid(self, entry: tuple[float, int, Request]) -> bool:
        _, number, request = entry
        return self._numbers.get(request) == number

    def _top_of_heap(self) -> Request:
        while not self._is_valid(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def _next_of_window(self) -> Request:
        while True:
            if not self._window:
                self._window = self._sorted_window()
            if self._window[-1] in self._numbers:
                return self._window[-1]
            self._window.pop()

    def _sorted_window(self) -> list[Request]:
        window = list(itertools.islice(self._numbers, WINDOW))
        paths = [self._cached_path(request) for request in window]
        keys: list[list[tuple[float, int]]]
        if self._policy == "dfs-weight":
            keys = _depth_first_keys([[node for node, _ in path] for path in paths])
        else:
            keys = [[(self._prefix_rank(request, path), 0)] for request, path in zip(window, paths, strict=True)]
        order = sorted(zip(keys, range(len(window)), strict=True), reverse=True)
        return [window[i] for _, i in order]

    def _prefix_rank(self, request: Request, path: list[tuple[RadixNode, int]]) -> float:
        """Rank a request by its own cached prefix, as the policy says: the lowest is next."""
        if self._policy == "lpm":
            return -sum(count for _, count in path)
        num_uncached = self._num_uncached(request, path)
        if self._policy == "shortest-prefill-first":
            return num_uncached
        return -(self._num_tokens_taken - self._taken_before.get(request, 0)) / num_uncached

    def _num_uncached(self, request: Request, path: list[tuple[RadixNode, int]]) -> int:
        """Tokens that it has to compute: its last one always."""
        return len(request.token_ids) - self._page_size * sum(count for _, count in path)

    def _cached_path(self, request: Request) -> list[tuple[RadixNode, int]]:
        if not request.shares_prefix or request.prompt_logprobs is not None:
            return []  # it will compute its whole prompt
        keys = _LazyPageKeys(request, self._page_size)
        return self._cache.path(keys, request.given.options.cache_salt)


def _depth_first_keys(paths: list[list[RadixNode]]) -> list[list[tuple[float, int]]]:
    """Sort keys that put requests, given the nodes that each one's prefix runs through from the root on, into
    depth-first order: of the nodes below another one that with the most requests comes first, among equals that of
    the earliest request; requests that go no further than a node come after those that do."""
    num_requests: collections.Counter[RadixNode] = collections.Counter()
    earliest: dict[RadixNode, int] = {}
    for i, path in enumerate(paths):
        num_requests.update(path)
        for node in path:
            earliest.setdefault(node, i)
    ends_here = (1, 0)  # after all nodes, whose keys begin with negative numbers
    return [[*((-num_requests[node], earliest[node]) for node in path), ends_here] for path in paths]


class _LazyPageKeys(Sequence[PageKey]):
    """Keys of those pages of a waiting request that the cache can give it; the last token is always left to compute.

    They are made as far as they are asked for and stay with the request: a long prompt costs little while nothing of
    it is cached, and is not cut up again in the next round.
    """

    def __init__(self, request: Request, page_size: int) -> None:
        self._request = request
        self._page_size = page_size
        self._length = max(0, len(request.token_ids) - 1) // page_size

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> PageKey: ...
    @overload
    def __getitem__(self, index: slice) -> list[PageKey]: ...
    def __getitem__(self, index: int | slice) -> PageKey | list[PageKey]:
        if isinstance(index, int):
            i = range(self._length)[index]
            return self._made(i + 1)[i]
        start, stop, step = index.indices(self._length)
        assert step == 1, "pages are looked up in order"
        return self._made(stop)[start:stop]

    def _made(self, stop: int) -> list[PageKey]:
        known = self._request.page_keys
        if len(known) < stop:
            request = self._request
            known += page_keys(request.token_ids, self._page_size, len(known), stop, request.given.media)
        return known


class WaitingQueue:
    """A PolicyQueue, as the scheduler sees it.

    Args:
        foreground: in the order that --schedule-policy says.
        background: whose requests are next when the other one is empty.

    Attributes:
        num_foreground, num_background: requests in each.
    """

    def __init__(self, foreground: PolicyQueue, background: PolicyQueue) -> None:
        self._foreground = foreground
        self._background = background
        self.num_foreground = len(foreground)
        self.num_background = len(background)

    @classmethod
    def create(
        cls,
        policy: SchedulePolicy,
        cache: RadixCache,
        page_size: int,
        *,
        low_values_first: bool = False,
        seed: int = 0,
    ) -> Self:
        """Args: as for PolicyQueue; of the foreground.

        Background requests are taken in the order that they came; with the policy priority in that of their priority
        too: it says which of them give way to which, and those that do must stand behind.
        """
        behind: SchedulePolicy = "priority" if policy == "priority" else "fcfs"
        return cls(
            PolicyQueue(policy, cache, page_size, low_values_first=low_values_first, seed=seed),
            PolicyQueue(behind, cache, page_size, low_values_first=low_values_first),
        )

    def __len__(self) -> int:
        return self.num_foreground + self.num_background

    def __iter__(self) -> Iterator[Request]:
        return itertools.chain(self._foreground, self._background)

    @property
    def num_retracted(self) -> int:
        """Requests that lost their pages and have not got them back; they stand at the head of their line."""
        lines = (self._foreground, self._background)
        return sum(sum(1 for _ in itertools.takewhile(lambda r: r.num_retractions > 0, line)) for line in lines)

    def check_room(self, limit: int | None, num_elsewhere: int = 0) -> None:
        """
        Args:
            limit: of waiting requests, lines of batches excepted; None: there is none.
            num_elsewhere: requests that wait, or will, but not here.

        Raises:
            OverloadedError: the queue is full.
        """
        if limit is not None and self.num_foreground + num_elsewhere >= limit:
            raise OverloadedError(
                f"The queue is full ({limit} requests are waiting, --max-queued-requests {limit}); try again later"
            )

    def add(self, request: Request) -> None:
        """Add a new request."""
        self._line(request).add(request)
        self._count(request, 1)

    def put_back(self, request: Request) -> None:
        """Put a request back that was taken."""
        self._line(request).put_back(request)
        self._count(request, 1)

    def remove(self, request: Request) -> None:
        """Remove a request that ends while it waits."""
        self._line(request).remove(request)
        self._count(request, -1)

    def refresh(self) -> None:
        """Make the next `peek` look at the tree again; to be called once a scheduling round."""
        self._foreground.refresh()

    def peek(self) -> Request | None:
        """Who is next; the same until the lines change or are refreshed."""
        return (self._foreground if self.num_foreground else self._background).peek()

    def find_shorter(self, max_tokens: int) -> Request | None:
        """Return the first of the oldest that has so few tokens and nothing unread; None: none of them has.

        Background requests are not looked at while others wait.
        """
        line = self._foreground if self.num_foreground else self._background
        oldest = itertools.islice(line, WINDOW)
        return next((one for one in oldest if len(one.token_ids) <= max_tokens and not one.num_unread), None)

    def take(self, request: Request | None = None) -> Request:
        """Take a request out of its line: the next one, or one of `find_shorter`. The queue is not empty."""
        if request is not None and request is not self.peek():
            self.remove(request)
            return request
        request = (self._foreground if self.num_foreground else self._background).take()
        self._count(request, -1)
        return request

    def _count(self, request: Request, change: int) -> None:
        if request.given.options.background:
            self.num_background += change
        else:
            self.num_foreground += change

    def _line(self, request: Request) -> PolicyQueue:
        return self._background if request.given.options.background else self._foreground
