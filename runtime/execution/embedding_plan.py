"""As compile_plan, for an engine that makes embeddings: it only prefills, and pools where others sample."""

from palladio.runtime.execution.program_keys import FIRST_REQUESTS, FIRST_TOKENS, IsBuilt, ProgramKey
from palladio.runtime.scheduling.buckets import Buckets, PrefillBucket


def embedding_keys(bucket: PrefillBucket) -> tuple[ProgramKey, ProgramKey]:
    """What a step of this bucket needs."""
    sizes = bucket.num_requests, bucket.num_tokens
    return ProgramKey("forward", *sizes), ProgramKey("pool", *sizes)


def first_embedding_keys(buckets: Buckets, *, splits_prompts: bool) -> list[ProgramKey]:
    """The fewest programs that can serve every request, if only a few at once."""
    num_requests = min(FIRST_REQUESTS, buckets.max_requests)
    enough = FIRST_TOKENS if splits_prompts else buckets.max_prefill_tokens
    fitting = (b for b in buckets.prefill if b.num_tokens >= enough and b.num_requests >= num_requests)
    return [ProgramKey("tables"), *embedding_keys(next(fitting, buckets.prefill[-1]))]


def largest_embedding_keys(buckets: Buckets) -> list[ProgramKey]:
    """The programs that need most memory."""
    return list(embedding_keys(buckets.prefill[-1]))


def open_embedding_buckets(buckets: Buckets, is_built: IsBuilt) -> Buckets:
    """Those whose programs are built."""
    prefill = tuple(bucket for bucket in buckets.prefill if all(map(is_built, embedding_keys(bucket))))
    return Buckets((), prefill, buckets.sample)
