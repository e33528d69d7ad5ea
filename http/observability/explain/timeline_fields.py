"""Timelines of requests as JSON, and how many bytes of them are kept."""

import collections
import weakref
from typing import Any, Final

from palladio.http.observability.records.request_record import RequestRecord
from palladio.runtime.interface.outputs.timeline import MAX_BYTES, MAX_RECORDS, Timeline, TimelineRecord

MAX_KEPT_BYTES: Final = 32 << 20  # of requests that have ended
MAX_SHOWN: Final = 2 * MAX_RECORDS  # records of one answer: it is written in one go, in which nothing else runs


class TimelineBudget:
    """Limits the bytes that timelines of ended requests take; drops the oldest."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: collections.deque[weakref.ref[Timeline]] = collections.deque()  # gone with their records

    def add(self, record: RequestRecord) -> None:
        """A request has ended."""
        new = [one.trace.timeline for one in record.samples if one.trace is not None and one.trace.timeline is not None]
        if not new:
            return
        self._kept.extend(map(weakref.ref, new))
        alive = [timeline for timeline in (kept() for kept in self._kept) if timeline is not None]
        num_bytes = sum(len(timeline.data) for timeline in alive)
        for oldest in alive:
            if num_bytes <= self._max_bytes:
                break
            num_bytes -= len(oldest.data)
            oldest.drop()
        self._kept = collections.deque(weakref.ref(timeline) for timeline in alive if not timeline.is_dropped)


def timeline_fields(timeline: Timeline, news: Timeline | None, num_shown: int) -> dict[str, Any]:
    """What an explanation says of a sample's timeline.

    Args:
        news: of the engine, which no output has taken along yet.
        num_shown: records that the answer has already.
    """
    if news is not None:
        timeline = timeline.copy()
        timeline.extend(news)
    state = "dropped" if timeline.is_dropped else "merged" if timeline.is_merged else "whole"
    records: list[dict[str, Any]] = []
    if num_shown + len(timeline) > MAX_SHOWN:
        state = "left_out"
    else:
        records = [_record_fields(record) for record in timeline]
    sizes = {"bytes": len(timeline.data), "max_bytes": MAX_BYTES, "most_steps": timeline.most_steps}
    return {"state": state, **sizes, "records": records}


def _record_fields(record: TimelineRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": record.kind, "after_seconds": record.start, "seconds": record.seconds}
    if record.compile_seconds:
        fields["compile_seconds"] = record.compile_seconds
    match record.kind:
        case "queued":
            fields["reason"] = record.reason
        case "prefix":
            fields["tokens"] = record.tokens
        case "retracted":
            fields["lost_tokens"] = record.tokens
        case "prefill":
            fields |= {"steps": record.steps, "tokens": record.tokens, "new_tokens": record.new_tokens}
            fields |= {"step_tokens": _mean(record.rows, record), "bucket_tokens": _mean(record.bucket, record)}
        case "decode":
            fields |= {"steps": record.steps, "new_tokens": record.new_tokens}
            fields |= {"rows": _mean(record.rows, record), "bucket": _mean(record.bucket, record)}
        case "mixed":
            fields |= {"steps": record.steps, "tokens": record.tokens, "new_tokens": record.new_tokens}
    if record.drafts:
        fields |= {"drafts": record.drafts, "accepted_drafts": record.accepted}
    return fields


def _mean(total: int, record: TimelineRecord) -> float:
    """Return the mean over the steps of a record."""
    return total if record.steps <= 1 else total / record.steps
