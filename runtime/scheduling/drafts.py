"""Decode steps that give a request several tokens: who takes part with how many, and how many drafts were right."""

import numpy as np

from palladio.runtime.interface.draft_counts import DraftCounts
from palladio.runtime.scheduling.batch_share import Needs, RunningRequests, needs_of
from palladio.runtime.scheduling.cache_manager import CacheManager
from palladio.runtime.scheduling.scheduled_batch import Buckets, ScheduledBatch, SchedulerLimits
from palladio.runtime.scheduling.slot_columns import SlotColumns, Slots
from palladio.runtime.scheduling.step_rows import DecodeRows, SampledRows


def note_drafts(counts: DraftCounts, batch: ScheduledBatch, read: SampledRows) -> None:
    """A step that verified has been read: its drafts count for the engine and for their requests.

    Args:
        counts: the engine's.
        read: of each row, all that it sampled.
    """
    for number in np.flatnonzero(batch.decodes.num_drafts).tolist():
        row = batch.decodes.row(number)
        if not row.is_void:
            num_accepted = max(0, read.num_tokens(number) - 1)
            counts.add(row.num_drafts, num_accepted)
            row.request.trace.add_drafts(row.num_drafts, num_accepted)


def draft_rows(
    slots: Slots, columns: SlotColumns, buckets: Buckets, limits: SchedulerLimits, cache: CacheManager
) -> DecodeRows | None:
    """A row for each request, with drafts as far as there is room for their tokens and pages; None if nobody can have
    any. The mask of a grammar is for one token, so there are none beside it."""
    bucket = buckets.pick_verify(len(slots))
    is_free = ~columns.constrained(slots)
    if bucket is None or not is_free.any():
        return None
    num_drafts = limits.num_drafts * is_free
    num_spare = bucket.forward.num_tokens - len(slots)
    num_drafts = np.clip(num_spare - (np.cumsum(num_drafts) - num_drafts), 0, num_drafts)
    computed, most = columns.computed[slots], columns.max_computed[slots]
    needed = np.minimum(np.minimum(computed + columns.unsure[slots], most) + 1 + num_drafts, most)
    for row in np.flatnonzero((num_drafts > 0) & (needed > columns.free_until[slots])).tolist():
        if not cache.grow(columns.requests[slots[row]], int(needed[row])):
            num_drafts[row] = 0
    return DecodeRows.plan(columns, slots, 1 + num_drafts, num_drafts)


def max_tokens(
    slots: Slots, running: RunningRequests, num_waiting: int, buckets: Buckets, limits: SchedulerLimits
) -> int:
    """How many tokens a decode step may give each of these requests, if they have no drafts."""
    # Who prefills, waits, or is a background request beside others, is not held up by several tokens.
    is_alone = len(slots) == len(running) and not num_waiting
    if not is_alone or not buckets.several or buckets.pick_decode(len(slots)) not in buckets.several:
        return limits.num_decode_steps
    # Others need the host between two tokens, or a program that samples alone.
    is_plain = all(needs_of(request) in Needs.RANDOM for request in running.columns.requests[slots])
    return limits.joined_passes if is_plain else limits.num_decode_steps


def shortest(slots: Slots, columns: SlotColumns, count: int) -> Slots:
    """So many of these requests at most, those with the shortest outputs."""
    order = np.argsort([request.num_output_tokens for request in columns.requests[slots]], kind="stable")
    return slots[order[:count]]


def long_rows(slots: Slots, columns: SlotColumns, num_steps: int, cache: CacheManager) -> DecodeRows:
    """A row for each request, of so many steps, or fewer at its end; of one where there are too few pages. Where states
    are copied, none goes over the end of a page."""
    computed = columns.computed[slots]
    remaining = columns.max_computed[slots] - np.maximum(computed, columns.known[slots] - 1)
    num_tokens = np.minimum(remaining, num_steps)
    if cache.snapshots is not None:
        num_tokens = np.minimum(num_tokens, cache.page_size - computed % cache.page_size)
    for row in np.flatnonzero(computed + num_tokens > columns.free_until[slots]).tolist():
        if not cache.grow(columns.requests[slots[row]], int(computed[row] + num_tokens[row])):
            num_tokens[row] = 1
    return DecodeRows.plan(columns, slots, num_tokens)
