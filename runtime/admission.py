"""Admission: how much cache requests are expected to take, so that those that run seldom lose their pages."""

from collections.abc import Iterable

from palladio.runtime.cache_manager import CacheManager, Prefix
from palladio.runtime.new_token_ratio import NewTokenRatio
from palladio.runtime.request import Request


class Admission:
    """Attributes:
    ratio: the share of its max_tokens that a request is expected to use.
    """

    def __init__(self, cache: CacheManager, conservativeness: float) -> None:
        self.ratio = NewTokenRatio(conservativeness)
        self._cache = cache

    def fits(self, request: Request, prefix: Prefix, reserved: int) -> bool:
        """Whether there is cache for a waiting request. Args: as for needed_tokens."""
        return self.needed_tokens(request, prefix, reserved) <= self._cache.num_available_tokens

    def needed_tokens(self, request: Request, prefix: Prefix, reserved: int) -> int:
        """Tokens of cache that have to be available for a waiting request to be admitted.

        Args:
            reserved: for the requests that run.
        """
        size = self._cache.page_size
        rest = len(request.token_ids) - len(prefix.pages) * size
        wanted = rest + self.ratio.expected_output(request) + size
        return wanted + reserved + prefix.num_idle_pages * size

    def expected_tokens(self, request: Request) -> int:
        """Tokens of cache that a running request will still take: the rest of its prefill, and its expected output."""
        rest = max(0, request.prefill_end - request.num_computed)
        return rest + self.ratio.expected_output(request) + self._cache.page_size

    def reserved_tokens(self, running: Iterable[Request]) -> int:
        return sum(map(self.expected_tokens, running))
