"""Records the timeline of each request that asks for one, step by step."""

import dataclasses
import time
from collections.abc import Sequence
from typing import NamedTuple

from palladio.runtime.core.watch.step_observer import StepObserver
from palladio.runtime.execution.batch.reading import InFlightStep
from palladio.runtime.interface.messages.engine_stats import LiveRequest
from palladio.runtime.interface.outputs.request_trace import MAX_CHUNKS
from palladio.runtime.interface.outputs.timeline import QueueReason, Timeline, TimelineRecord
from palladio.runtime.interface.outputs.token_output import NewTokens, TokenOutput
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch, ScheduledRow, ScheduledStep
from palladio.runtime.scheduling.dp_scheduler import EngineScheduler
from palladio.runtime.scheduling.state.request import Request, RequestStatus

LEAST_IDLE = 1e-3  # seconds between two steps of a request: what is shorter, the host needs
_MAX_PENDING = 256  # records between two outputs: only chunks, waits and retractions, which are few


class Moment(NamedTuple):
    """Attributes:
    time: of `time.perf_counter`.
    compiled: seconds that the engine's steps had waited for programs by then.
    """

    time: float
    compiled: float


@dataclasses.dataclass(slots=True, eq=False)
class WatchedRequest:
    """A request whose timeline is recorded. Times are of `time.perf_counter`, but for the timeline's own.

    Attributes:
        received: when it came.
        done: until when its time is recorded.
        is_queued: it waits. reason: what it waits for.
        compiled: seconds that the engine had compiled by `done`.
        num_tokens, num_drafts, num_accepted, num_retractions: how many are recorded.
        num_unread: how many of its rows are not read yet.
        computed: where its last row ended.
        news: records that no output has taken along yet.
    """

    request: Request
    received: float
    done: float
    compiled: float
    reason: QueueReason
    is_queued: bool = True
    num_tokens: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    num_retractions: int = 0
    num_unread: int = 0
    computed: int = 0
    news: Timeline = dataclasses.field(default_factory=lambda: Timeline(max_records=_MAX_PENDING))

    @classmethod
    def of(cls, request: Request, now: Moment, reason: QueueReason) -> "WatchedRequest":
        """One that has just come to the engine."""
        seconds = max(0.0, time.time() - request.given.received)
        new = cls(request, now.time - seconds, now.time, now.compiled, reason)
        new.news.add(TimelineRecord("handover", 0.0, seconds))
        return new

    def record(self, record: TimelineRecord, until: Moment) -> None:
        """Add a record that starts where the last one ends, or at its own start if that is later."""
        start = max(self.done, self.received + record.start)
        seconds, compile_seconds = max(0.0, until.time - start), max(0.0, until.compiled - self.compiled)
        self.news.add(record._replace(start=start - self.received, seconds=seconds, compile_seconds=compile_seconds))
        self.done, self.compiled = start + seconds, max(self.compiled, until.compiled)

    def wait(self, until: Moment, reason: QueueReason | None) -> None:
        """Record that the request has waited until now.

        Args:
            reason: what it waits for from now on; None: it waits no more.
        """
        self.record(TimelineRecord("queued", 0.0, reason=self.reason), until)
        self.is_queued = reason is not None
        self.reason = reason or ""

    def idle(self, until: Moment) -> None:
        """Record that nothing was done for the request until now, unless it was for a moment only."""
        if until.time > self.done + LEAST_IDLE:
            self.record(TimelineRecord("idle", 0.0), until)

    def plan(self, row: ScheduledRow, step: InFlightStep, batch: ScheduledBatch, began: Moment) -> "WatchedRow":
        """Note that one of its rows is dispatched.

        Args:
            began: when the dispatch began.
        """
        admits, self.is_queued = self.is_queued, False
        self.num_unread += 1
        self.computed = row.end
        if not row.decodes:
            return WatchedRow(self, row, began, 1, batch.num_tokens, step.bucket_size, admits)
        rows = batch.num_decodes
        bucket = step.bucket_size if batch.kind == "decode" else rows
        return WatchedRow(self, row, began, step.num_steps, rows * step.num_steps, bucket * step.num_steps, admits)

    def read(self, part: "WatchedRow", now: Moment) -> None:
        """One of its rows has been read."""
        self.num_unread -= 1
        row, start = part.row, part.start
        if part.admits:
            self.wait(start, None)
            if row.start:
                self.record(TimelineRecord("prefix", 0.0, tokens=row.start), start)
        else:
            self.idle(start)
        drafts, total = self.request.trace.drafts, self.request.num_output_tokens
        record = TimelineRecord(
            *("decode" if row.decodes else "prefill", start.time - self.received, 0.0, "", part.num_steps, 0.0),
            tokens=0 if row.decodes else row.num_tokens,
            new_tokens=total - self.num_tokens,
            rows=part.filled,
            bucket=part.bucket,
            drafts=drafts.num_draft_tokens - self.num_drafts,
            accepted=drafts.num_accepted_drafts - self.num_accepted,
        )
        self.num_tokens, self.num_drafts = total, drafts.num_draft_tokens
        self.num_accepted = drafts.num_accepted_drafts
        self.record(record, now)

    def forget_unread(self) -> None:
        """Its rows will not be read."""
        self.num_unread = 0

    @property
    def is_retracted(self) -> bool:
        """Whether it has lost its pages since the last look, and the tokens of the time before that are there."""
        return self.request.num_retractions != self.num_retractions and not self.num_unread

    def retract(self, now: Moment, reason: QueueReason) -> None:
        """Record a retraction, once `is_retracted`.

        Args:
            reason: what the request waits for from now on.
        """
        count, request = self.request.num_retractions, self.request
        known = request.trace.retractions[self.num_retractions : count]
        lost = sum(one.tokens for one in known) if count <= MAX_CHUNKS else self.computed
        self.num_retractions = count
        self.idle(now)
        self.record(TimelineRecord("retracted", now.time - self.received, tokens=lost), now)
        self.is_queued = request.status is RequestStatus.WAITING
        self.reason = reason

    def wait_on(self, now: Moment, reason: QueueReason) -> None:
        """Record what the request waits for, if that has changed.

        Args:
            reason: what it waits for from now on.
        """
        if reason != self.reason:
            self.wait(now, reason)

    def so_far(self, now: float) -> Timeline:
        """What no output has taken along yet, which stays here."""
        news = self.news.copy()
        if self.is_queued:
            start = self.done - self.received
            news.add(TimelineRecord("queued", start, max(0.0, now - self.done), self.reason))
        return news

    def take_news(self) -> Timeline | None:
        """What no output has taken along yet, which one now does."""
        if not self.news.data:
            return None
        taken, self.news = self.news, Timeline(max_records=_MAX_PENDING)
        return taken


@dataclasses.dataclass(slots=True)
class WatchedRow:
    """A row of a dispatched step.

    Attributes:
        start: when the host began to dispatch the step, or had read its predecessor, if that was later.
        filled: of the bucket, see TimelineRecord.rows.
        admits: it is the first one since its request was queued.
    """

    watched: WatchedRequest
    row: ScheduledRow
    start: Moment
    num_steps: int
    filled: int
    bucket: int
    admits: bool

    def begin(self, earliest: Moment) -> None:
        if earliest.time > self.start.time:
            self.start = earliest


class TimelineRecorder(StepObserver):
    """Records every step in the timelines of its requests. Without such requests it only checks an empty dictionary.

    A step lasts as its requests feel it: from the end of the one before, as the host has read it, or from its own
    dispatch if that was later. So the parts of a timeline do not overlap.
    """

    def __init__(self, scheduler: EngineScheduler) -> None:
        self._scheduler = scheduler
        self._watched: dict[str, WatchedRequest] = {}
        self._unread: dict[
            int, tuple[ScheduledStep, list[WatchedRow]]
        ] = {}  # by the step's id; the step keeps it its own
        self._began = self._last_read = Moment(0.0, 0.0)

    def after_add(self, request: Request) -> None:
        if request.given.options.timeline:
            self._watched[request.given.request_id] = WatchedRequest.of(request, self._now, self._reason(request))

    def before_dispatch(self) -> None:
        if self._watched:
            self._began = self._now

    def after_dispatch(self, step: InFlightStep) -> None:
        if not self._watched:
            return
        found: list[WatchedRow] = []
        for _, batch in step.planned.parts:
            for row in batch.rows:
                watched = self._watched.get(row.request.given.request_id)
                if watched is not None:
                    found.append(watched.plan(row, step, batch, self._began))
        if found:
            self._unread[id(step.planned)] = step.planned, found

    def after_process(self, planned: ScheduledStep) -> None:
        if not self._watched:
            self._unread.clear()
            return
        now = self._now
        _, found = self._unread.pop(id(planned), (planned, ()))
        for part in found:
            part.begin(self._last_read)
            part.watched.read(part, now)
        self._last_read = now

    def after_loss(self) -> None:
        self._unread.clear()
        for watched in self._watched.values():
            watched.forget_unread()

    def after_step(self, is_idle: bool) -> None:
        if not self._watched:
            return
        now = self._now
        for watched in self._watched.values():
            if watched.is_retracted:
                watched.retract(now, self._reason(watched.request))
            if watched.is_queued and watched.request.status is not RequestStatus.FINISHED:
                watched.wait_on(now, self._reason(watched.request))

    def after_outputs(self, outputs: Sequence[NewTokens]) -> None:
        if not self._watched:
            return
        for output in outputs:
            if not isinstance(output, TokenOutput):
                continue  # each output of a request with a timeline is one of its own
            watched = self._watched.get(output.request_id)
            if watched is None:
                continue
            if output.finish is not None:
                del self._watched[output.request_id]
                if watched.is_queued:
                    watched.wait(self._now, None)
            news = watched.take_news()
            if news is not None:
                output.tell(news)

    def after_abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._watched.pop(request_id, None)

    def add_to_request(self, request: LiveRequest) -> None:
        watched = self._watched.get(request.request_id)
        if watched is not None:
            request.trace.tell(watched.so_far(time.perf_counter()))

    @property
    def _now(self) -> Moment:
        return Moment(time.perf_counter(), self._scheduler.schedulers[0].compile_seconds)

    def _reason(self, request: Request) -> QueueReason:
        """What a waiting request waits for."""
        return self._scheduler.wait_reason(request.given.request_id) or "grammar"
