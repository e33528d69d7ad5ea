"""Decode steps that give a request several tokens: who takes part with how many, and how many drafts were right."""

import dataclasses
from collections.abc import Sequence

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


@dataclasses.dataclass
class DraftCounts:
    """Of steps that were read, since the start.

    Attributes:
        num_draft_rows: that had room for drafts. num_draft_tokens: that there was room for in them.
        num_accepted_drafts: that were right.
    """

    num_draft_rows: int = 0
    num_draft_tokens: int = 0
    num_accepted_drafts: int = 0

    def note(self, batch: ScheduledBatch, read: Sequence[TokenOutput]) -> None:
        """A step that verified. Args: read: of each row, all that it sampled."""
        for row, output in zip(batch.rows, read, strict=True):
            if row.num_drafts and not row.is_void:
                self.num_draft_rows += 1
                self.num_draft_tokens += row.num_drafts
                self.num_accepted_drafts += max(0, len(output.token_ids) - 1)

    def since(self, then: "DraftCounts") -> "DraftCounts":
        """Those after a moment. Args: then: a copy of that moment's."""
        return DraftCounts(**{name: value - vars(then)[name] for name, value in vars(self).items()})

    @property
    def accept_length(self) -> float:
        """Tokens that such a row gives on average."""
        return 1 + self.num_accepted_drafts / max(self.num_draft_rows, 1)

    @property
    def accept_rate(self) -> float:
        """Share of the drafts that were right."""
        return self.num_accepted_drafts / max(self.num_draft_tokens, 1)


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
    """A row for each request, of as many steps as one program takes; of one where there are too few pages."""
    rows = []
    for request in decoding:
        count = min(limits.num_decode_steps, request.max_remaining_tokens)
        grown = cache.grow(request, request.num_computed + count)
        rows.append(decode_row(request, count if grown else 1))
    return rows
