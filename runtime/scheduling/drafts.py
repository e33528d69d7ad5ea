"""Decode steps that give a request several tokens: who takes part with how many, and how many drafts were right."""

from collections.abc import Sequence

from palladio.runtime.interface.draft_counts import DraftCounts
from palladio.runtime.interface.outputs import TokenOutput
from palladio.runtime.scheduling.cache_manager import CacheManager
from palladio.runtime.scheduling.request import Request
from palladio.runtime.scheduling.scheduled_batch import (
    Buckets,
    ScheduledBatch,
    ScheduledRow,
    SchedulerLimits,
    decode_row,
)


def note_drafts(counts: DraftCounts, batch: ScheduledBatch, read: Sequence[TokenOutput]) -> None:
    """A step that verified has been read: its drafts count for the engine and for their requests.

    Args:
        counts: the engine's.
        read: of each row, all that it sampled.
    """
    for row, output in zip(batch.rows, read, strict=True):
        if row.num_drafts and not row.is_void:
            num_accepted = max(0, len(output.token_ids) - 1)
            counts.add(row.num_drafts, num_accepted)
            row.request.trace.add_drafts(row.num_drafts, num_accepted)


def draft_rows(
    decoding: list[Request], buckets: Buckets, limits: SchedulerLimits, cache: CacheManager
) -> list[ScheduledRow]:
    """A row for each request, with drafts as far as there is room for their tokens and pages; none if nobody can have
    any. The mask of a grammar is for one token, so there are none beside it."""
    bucket = buckets.pick_verify(len(decoding))
    if bucket is None or all(request.constraint is not None for request in decoding):
        return []
    rows, num_spare = [], bucket.forward.num_tokens - len(decoding)
    for request in decoding:
        count = 0 if request.constraint is not None else min(limits.num_drafts, num_spare)
        if count and not cache.grow(request, min(request.most_computed + 1 + count, request.max_computed)):
            count = 0
        num_spare -= count
        rows.append(decode_row(request, 1 + count, count))
    return rows


def long_rows(decoding: list[Request], limits: SchedulerLimits, cache: CacheManager) -> list[ScheduledRow]:
    """A row for each request, of as many steps as one program takes; of one where there are too few pages. Where states
    are copied, none goes over the end of a page."""
    rows = []
    for request in decoding:
        count = min(limits.num_decode_steps, request.max_remaining_tokens)
        if cache.snapshots is not None:
            count = min(count, cache.page_size - request.num_computed % cache.page_size)
        grown = cache.grow(request, request.num_computed + count)
        rows.append(decode_row(request, count if grown else 1))
    return rows
