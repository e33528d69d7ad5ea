"""Sizes of steps: Buckets, which they are padded to, and SchedulerLimits, which they keep to."""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Self

from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.scheduling.state.request import Request

MIN_PREFILL_TOKENS = 16  # below this a step costs the same: launch overhead
FINE_REQUESTS = 16  # where sizes are fine: less padding than this costs little
FINE_PREFILL_TOKENS = 256  # from here on padding costs more than another program to compile


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class PrefillBucket:
    num_tokens: int
    num_requests: int


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyBucket:
    """Sizes of a step that verifies drafts.

    Attributes:
        num_requests: rows that it samples.
        forward: the bucket of the forward pass that computes them, as chunks.
    """

    num_requests: int
    forward: PrefillBucket


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Padded sizes, ascending.

    Attributes:
        decode: requests of a decode step; empty: decode steps, if there are any, run as prefill steps of one token a
            request.
        prefill: (tokens, requests) of a prefill step.
        sample: rows that a step samples.
        verify: of steps that verify drafts; more requests than they hold decode without.
        several: those of `decode` whose steps may give a request several tokens.
    """

    decode: tuple[int, ...]
    prefill: tuple[PrefillBucket, ...]
    sample: tuple[int, ...]
    verify: tuple[VerifyBucket, ...] = ()
    several: tuple[int, ...] = ()

    @classmethod
    def create(
        cls,
        *,
        max_running: int,
        max_step_tokens: int,
        growth: int,
        min_decode: int = 1,
        decode_growth: int = 2,
        is_fine: bool = False,
        decode: Sequence[int] | None = None,
        max_decode: int | None = None,
    ) -> Self:
        """Geometric sizes up to the limits.

        Args:
            max_running: most requests of a step.
            max_step_tokens: most tokens of a prefill step.
            growth: ratio of neighbouring token counts of prefill steps: 2 pads less, 4 compiles less. At most 2 from
                FINE_PREFILL_TOKENS on.
            min_decode: requests of the smallest decode step; less only where less is the most.
            decode_growth: the same for requests: decode steps are many, and each pays for its padding.
            is_fine: half-way sizes of requests too, from FINE_REQUESTS on, and growth of at most 2.
            decode: sizes to take in their place. max_decode: leaves larger ones out. max_running is one in any case.
        """
        most = max_running if max_decode is None else min(max_running, max_decode)
        sizes: Sequence[int] = _geometric(min(min_decode, most), max_running, decode_growth)
        sizes = decode if decode is not None else _with_half_ways(sizes, FINE_REQUESTS) if is_fine else sizes
        requests = (*sorted({size for size in sizes if size <= most} - {max_running}), max_running)
        steps = _prefill_sizes(max_step_tokens, min(growth, 2) if is_fine else growth)
        prefill = tuple(PrefillBucket(tokens, min(tokens, max_running)) for tokens in steps)
        return cls(requests, prefill, requests)

    @classmethod
    def create_one(cls, *, max_running: int, max_step_tokens: int) -> Self:
        """A single shape for all steps, so that no result depends on which one was picked."""
        return cls((), (PrefillBucket(max_step_tokens, max_running),), (max_running,))

    def with_drafts(self, num_drafts: int) -> Self:
        """The same, where `num_drafts` tokens are proposed for each request. Each number of rows has one bucket, of the
        smallest prefill step that holds all of their drafts; a single shape holds as many as it can."""
        found = []
        for size in self.sample:
            needed = size * (1 + num_drafts) if self.decode else size + 1
            fitting = (one for one in self.prefill if one.num_tokens >= needed and one.num_requests >= size)
            found += [VerifyBucket(size, one) for one in itertools.islice(fitting, 1)]
        return dataclasses.replace(self, verify=tuple(found))

    def with_several(self, max_requests: int) -> Self:
        """The same, where decode steps of `max_requests` or fewer may give several tokens."""
        return dataclasses.replace(self, several=tuple(size for size in self.decode if size <= max_requests))

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
        """The smallest decode bucket that holds these requests."""
        return _round_up(self.decode, num_requests)

    def pick_verify(self, num_requests: int) -> VerifyBucket | None:
        """The smallest one that holds these requests; None: no step can verify as many."""
        return next((one for one in self.verify if one.num_requests >= num_requests), None)

    def pick_sample(self, num_rows: int) -> int:
        """The smallest sample bucket that holds these rows."""
        return _round_up(self.sample, num_rows)

    def pick_prefill(self, num_tokens: int, num_requests: int) -> PrefillBucket:
        """The smallest prefill bucket that holds these tokens and requests."""
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


def _with_half_ways(sizes: Sequence[int], low: int) -> tuple[int, ...]:
    """Sizes, and the middle between each two from `low` on."""
    middles = ((size + larger) // 2 for size, larger in itertools.pairwise(sizes) if size >= low)
    return tuple(sorted({*sizes, *middles}))


def _round_up(sizes: Sequence[int], value: int) -> int:
    return sizes[bisect.bisect_left(sizes, value)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """Attributes:
    max_running: requests that run at once (device slots 1 … max_running).
    max_queued: waiting requests; None: no limit.
    max_step_tokens: tokens of one prefill step.
    splits_prompts: whether a prompt may be prefilled over several steps; if not, none is longer than a step.
    fills_steps: a text that is never split may be passed by shorter ones, as far as they fit into a step which it does
        not fit into any more.
    mixes: whether running requests decode in prefill steps too; else the two take turns.
    num_decode_steps: tokens that a request decodes in one step. joined_passes: that it decodes in a step of few
        requests, see `Buckets.several`.
    num_drafts: tokens that are proposed for a request at once, see Proposer; 0: none.
    preemption_threshold: a waiting request takes the place of a running one if it is more urgent by more than this;
        None: never.
    low_values_first: low priority values are the urgent ones.
    conservativeness: see --schedule-conservativeness.
    """

    max_running: int
    max_queued: int | None
    max_step_tokens: int
    splits_prompts: bool = True
    fills_steps: bool = False
    mixes: bool = False
    num_decode_steps: int = 1
    joined_passes: int = 1
    num_drafts: int = 0
    preemption_threshold: int | None = None
    low_values_first: bool = False
    conservativeness: float = 1.0

    @property
    def decode_chunk(self) -> int:
        """Tokens from the first one that a decode row may compute to the last one: it may start as many drafts late."""
        return max(self.num_decode_steps, self.joined_passes, 1 + 2 * self.num_drafts)

    def check_whole(self, request: Request) -> None:
        """
        Raises:
            InvalidRequestError: a part that one step has to compute is longer than what a step leaves to a prompt, if
                all others decode in it.
        """
        most = self.max_step_tokens - (min(self.max_running - 1, self.max_step_tokens // 2) if self.mixes else 0)
        if request.longest_whole > most:
            raise InvalidRequestError.of(
                "{param}: a part of {length} tokens cannot be divided, and one step computes at most {most} tokens of "
                "a prompt beside running requests; raise --chunked-prefill-size",
                param="prompt",
                length=request.longest_whole,
                most=most,
            )
