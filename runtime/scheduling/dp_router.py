"""DataParallelRouter: which data-parallel rank gets a request (--load-balance-method).

    round_robin     one rank after the other
    shortest_queue  the one whose requests have the fewest tokens
    prefix          the one that has the longest part of the prompt cached, unless it is far busier than the least busy

A rank's load is the tokens of all its requests, running and waiting ones: their prompts, and their outputs so far.

With prefix, requests of the same prompt (the n samples of one request, say) go where the first of them went, though
nothing of it may be cached yet. A prompt of which nothing is known goes to the shortest queue, and so does one whose
rank has more than `prefix_slack` tokens more than the least busy one: there it would wait longer than the cache saves.
"""

import collections
from collections.abc import Callable, Hashable, Sequence

from palladio.runtime.interface.config.parallel_config import LoadBalanceMethod

MAX_REMEMBERED = 1024  # prompts whose rank is known

Figures = Callable[[], Sequence[int]]  # of each rank; asked for only if the method needs them


class DataParallelRouter:
    """Args:
    prefix_slack: tokens by which a rank with a cached prefix may be busier than others.
    """

    def __init__(self, method: LoadBalanceMethod, num_ranks: int, prefix_slack: int) -> None:
        self._method = method
        self._num_ranks = num_ranks
        self._prefix_slack = prefix_slack
        self._next = 0  # the next rank, with round_robin and among equals
        self._routed: collections.OrderedDict[Hashable, int] = collections.OrderedDict()

    def choose(self, loads: Figures, cached: Figures, prompt: Callable[[], Hashable]) -> int:
        """The rank of a new request.

        Args:
            loads: tokens of all requests, by rank. cached: tokens of this one's prompt that are cached, by rank.
            prompt: the same for the same prompt.
        """
        if self._method == "round_robin":
            return self._take(self._next)
        known = loads()
        least = self._shortest(known)
        if self._method == "shortest_queue":
            return self._take(least)
        tokens, name = cached(), prompt()
        longest = max(tokens)
        if longest:
            holders = [rank for rank, count in enumerate(tokens) if count == longest]
            wanted = self._shortest(known, holders)
        else:
            wanted = self._routed.get(name, least)
        rank = wanted if known[wanted] - known[least] <= self._prefix_slack else least
        self._remember(name, rank)
        return self._take(rank)

    def _shortest(self, loads: Sequence[int], ranks: Sequence[int] | None = None) -> int:
        """The rank with the lowest load; among equals the next one in rotation."""
        among = range(self._num_ranks) if ranks is None else ranks
        return min(among, key=lambda rank: (loads[rank], (rank - self._next) % self._num_ranks))

    def _take(self, rank: int) -> int:
        self._next = (rank + 1) % self._num_ranks
        return rank

    def _remember(self, name: Hashable, rank: int) -> None:
        self._routed[name] = rank
        self._routed.move_to_end(name)
        if len(self._routed) > MAX_REMEMBERED:
            self._routed.popitem(last=False)
