"""Which programs there are, which of them an engine can start with, and in what order the others are built."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from palladio.runtime.execution.sampler import SampleTier
from palladio.runtime.scheduling.buckets import Buckets, PrefillBucket

TIERS: tuple[SampleTier, ...] = ("greedy", "random", "masked", "full")  # each can do what those before it can
FIRST_REQUESTS = 8  # that an engine can run at once before its larger programs are built
FIRST_TOKENS = 256  # of a prefill step until then


class ProgramKey(NamedTuple):
    """Names a compiled program: what it does, the sizes of its bucket, and the sampler's tier."""

    name: Literal["forward", "sample", "decode", "score", "reset", "tables", "compare", "pool"]
    num_requests: int = 0
    num_tokens: int = 0
    tier: SampleTier | None = None

    @property
    def kind(self) -> tuple[str, bool]:
        """What it does, and whether for prompts: programs of one kind differ in their sizes and tiers."""
        return self.name, bool(self.num_tokens)

    def __str__(self) -> str:
        sizes = {"bs": self.num_requests, "tok": self.num_tokens}
        parts = [f"{name}={size}" for name, size in sizes.items() if size]
        return f"{self.name}[{','.join([*parts, *([self.tier] if self.tier else [])])}]".removesuffix("[]")


IsBuilt = Callable[[ProgramKey], bool]


def decode_key(num_requests: int, num_steps: int) -> ProgramKey:
    """What a decode step of this bucket needs at least, beside sampling."""
    return ProgramKey("forward", num_requests) if num_steps == 1 else ProgramKey("decode", num_requests, tier="full")


def sample_key(num_rows: int) -> ProgramKey:
    """What sampling so many rows needs at least."""
    return ProgramKey("sample", num_rows, tier="full")


def prefill_keys(bucket: PrefillBucket) -> tuple[ProgramKey, ProgramKey]:
    """What a prefill step of this bucket may need."""
    return ProgramKey("forward", bucket.num_requests, bucket.num_tokens), ProgramKey("score", 0, bucket.num_tokens)


def first_keys(buckets: Buckets, num_steps: int, *, splits_prompts: bool) -> list[ProgramKey]:
    """The fewest programs that can serve every request, if only a few at once."""
    num_requests = next((size for size in buckets.decode if size >= FIRST_REQUESTS), buckets.sample[-1])
    keys = [ProgramKey("tables"), ProgramKey("reset"), sample_key(num_requests)]
    if buckets.decode:
        keys.append(decode_key(num_requests, num_steps))
    enough = FIRST_TOKENS if splits_prompts else buckets.max_prefill_tokens
    fitting = (b for b in buckets.prefill if b.num_tokens >= enough and b.num_requests >= num_requests)
    return [*keys, *prefill_keys(next(fitting, buckets.prefill[-1]))]


def largest_keys(buckets: Buckets, num_steps: int) -> list[ProgramKey]:
    """The programs that need most memory."""
    decode = [decode_key(buckets.decode[-1], num_steps)] if buckets.decode else []
    return [*prefill_keys(buckets.prefill[-1]), *decode, sample_key(buckets.sample[-1])]


def background_order(keys: Sequence[ProgramKey], first: Sequence[ProgramKey]) -> list[ProgramKey]:
    """The rest: what lets more run at once, then what lets smaller steps pad less, then the cheaper tiers."""
    num_requests = max((key.num_requests for key in first if key.name == "sample"), default=0)
    num_tokens = max(key.num_tokens for key in first)

    def rank(key: ProgramKey) -> tuple[int, int]:
        if key.name == "compare":
            return 4, 0
        if key.tier not in (None, "full"):
            return 3, key.num_requests
        if key.num_tokens:
            return (1, key.num_tokens) if key.num_tokens > num_tokens else (2, -key.num_tokens)
        return (0, key.num_requests) if key.num_requests > num_requests else (2, -key.num_requests)

    chosen = set(first)
    return sorted((key for key in keys if key not in chosen), key=rank)


def open_buckets(buckets: Buckets, num_steps: int, is_built: IsBuilt) -> Buckets:
    """Those whose programs are built."""
    sample = tuple(size for size in buckets.sample if is_built(sample_key(size)))
    if buckets.decode:  # a decode step samples all of its rows
        sample = tuple(size for size in sample if is_built(decode_key(size, num_steps)))
    prefill = tuple(bucket for bucket in buckets.prefill if all(map(is_built, prefill_keys(bucket))))
    return Buckets(sample if buckets.decode else (), prefill, sample)


def cheapest_tier(wanted: SampleTier, is_built: Callable[[SampleTier], bool]) -> SampleTier:
    """The tier to sample in: the wanted one, or until it is built one that does more; the wanted one if none is."""
    return next(filter(is_built, TIERS[TIERS.index(wanted) :]), wanted)
