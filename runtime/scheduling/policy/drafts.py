"""Steps that verify drafts: who has how many, and how many of them were right."""

import numpy as np

from palladio.runtime.interface.outputs.counts import DraftCounts
from palladio.runtime.scheduling.batch.buckets import Buckets, SchedulerLimits
from palladio.runtime.scheduling.batch.scheduled_batch import DecodeRows, ScheduledBatch
from palladio.runtime.scheduling.cache.cache_manager import CacheManager
from palladio.runtime.scheduling.state.new_tokens import SampledRows
from palladio.runtime.scheduling.state.slot_columns import SlotColumns, Slots


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
    """A row for each request, with drafts as far as there is room for their tokens and pages; None if none can have
    any. Rows with a grammar have no drafts: its mask is for one token."""
    bucket = buckets.pick_verify(len(slots))
    is_free = ~columns.constrained(slots)
    if bucket is None or not is_free.any():
        return None
    num_drafts = limits.num_drafts * is_free
    num_spare = bucket.forward.num_tokens - len(slots)
    num_drafts = np.clip(num_spare - (np.cumsum(num_drafts) - num_drafts), 0, num_drafts)
    computed, most = columns.computed[slots], columns.max_computed[slots]
    needed = np.minimum(np.minimum(computed + columns.uncertain[slots], most) + 1 + num_drafts, most)
    for row in np.flatnonzero((num_drafts > 0) & (needed > columns.free_until[slots])).tolist():
        if not cache.grow(columns.requests[slots[row]], int(needed[row])):
            num_drafts[row] = 0
    return DecodeRows.plan(columns, slots, 1 + num_drafts, num_drafts)
