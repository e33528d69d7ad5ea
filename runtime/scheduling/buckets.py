"""Buckets: the closed set of step shapes. A function of the limits alone, so that every program is compiled ahead."""

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Self

MIN_PREFILL_TOKENS = 16  # below this a step costs the same: launch overhead
FINE_PREFILL_TOKENS = 256  # from here on padding costs more than another program to compile


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class PrefillBucket:
    num_tokens: int
    num_requests: int


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Padded sizes, ascending.

    Attributes:
        decode: requests of a decode step; empty: decode steps, if there are any, run as prefill steps of one token a
            request.
        prefill: (tokens, requests) of a prefill step.
        sample: rows that a step samples.
    """

    decode: tuple[int, ...]
    prefill: tuple[PrefillBucket, ...]
    sample: tuple[int, ...]

    @classmethod
    def create(
        cls,
        *,
        max_running: int,
        max_step_tokens: int,
        growth: int,
        decode_growth: int = 2,
        decode: Sequence[int] | None = None,
        max_decode: int | None = None,
    ) -> Self:
        """Geometric sizes up to the limits.

        Args:
            max_running: most requests of a step.
            max_step_tokens: most tokens of a prefill step.
            growth: ratio of neighbouring token counts of prefill steps: 2 pads less, 4 compiles less. At most 2 from
                FINE_PREFILL_TOKENS on.
            decode_growth: the same for requests: decode steps are many, and each pays for its padding.
            decode: sizes to take in their place. max_decode: leaves larger ones out. max_running is one in any case.
        """
        sizes = _geometric(1, max_running, decode_growth) if decode is None else decode
        most = max_running if max_decode is None else min(max_running, max_decode)
        requests = (*sorted({size for size in sizes if size <= most} - {max_running}), max_running)
        prefill = tuple(
            PrefillBucket(tokens, min(tokens, max_running)) for tokens in _prefill_sizes(max_step_tokens, growth)
        )
        return cls(requests, prefill, requests)

    @classmethod
    def create_one(cls, *, max_running: int, max_step_tokens: int) -> Self:
        """A single shape for all steps, so that no result depends on which one was picked."""
        return cls((), (PrefillBucket(max_step_tokens, max_running),), (max_running,))

    @property
    def max_prefill_requests(self) -> int:
        return self.prefill[-1].num_requests

    @property
    def max_prefill_tokens(self) -> int:
        return self.prefill[-1].num_tokens

    @property
    def max_requests(self) -> int:
        """Most requests that can run at once."""
        return min(self.decode[-1] if self.decode else self.max_prefill_requests, self.sample[-1])

    def pick_decode(self, num_requests: int) -> int:
        """The smallest decode bucket that holds so many requests."""
        return _round_up(self.decode, num_requests)

    def pick_sample(self, num_rows: int) -> int:
        """The smallest sample bucket that holds so many rows."""
        return _round_up(self.sample, num_rows)

    def pick_prefill(self, num_tokens: int, num_requests: int) -> PrefillBucket:
        """The smallest prefill bucket that holds so many tokens of so many requests."""
        for bucket in self.prefill:
            if bucket.num_tokens >= num_tokens and bucket.num_requests >= num_requests:
                return bucket
        raise AssertionError(f"no prefill bucket for {num_tokens} tokens of {num_requests} requests")


def _geometric(low: int, high: int, growth: int) -> tuple[int, ...]:
    sizes = []
    size = low
    while size < high:
        sizes.append(size)
        size *= growth
    return (*sizes, high)


def _prefill_sizes(high: int, growth: int) -> tuple[int, ...]:
    coarse = _geometric(min(MIN_PREFILL_TOKENS, high), min(FINE_PREFILL_TOKENS, high), growth)
    return (*coarse[:-1], *_geometric(coarse[-1], high, min(growth, 2)))


def _round_up(sizes: Sequence[int], value: int) -> int:
    return sizes[bisect.bisect_left(sizes, value)]
