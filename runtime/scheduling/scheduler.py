"""The scheduler: which requests take part in the next step, and what a step's tokens mean for them.

It runs one step ahead of the device: when it plans step n+1, the device alone may know the tokens of step n, and how
many they are (see Request). A request that turns out to have ended at step n, or goes on from there in another way, may
be part of step n+1 too; its row is void then. Steps run in order, so others can have pages and slots at once.
"""

import itertools
import time
from collections.abc import Iterable

import numpy as np

from palladio.runtime.interface.outputs.counts import DraftCounts
from palladio.runtime.interface.outputs.request_trace import DecodeSteps, WaitReason
from palladio.runtime.interface.outputs.step_tokens import NewTokens
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenOutput
from palladio.runtime.scheduling.batch.scheduled_batch import Buckets, ScheduledBatch, SchedulerLimits, StepKind
from palladio.runtime.scheduling.batch.step_rows import DecodeRows, SampledRows, ScheduledRow
from palladio.runtime.scheduling.cache.cache_manager import CacheManager, Prefix
from palladio.runtime.scheduling.policy.batch_share import (
    BatchShare,
    QueueTime,
    RunningRequests,
    ScheduleTurn,
    ScheduleTurns,
)
from palladio.runtime.scheduling.policy.drafts import draft_rows, note_drafts
from palladio.runtime.scheduling.policy.kv_budget import KVBudget
from palladio.runtime.scheduling.policy.retractor import Retractor
from palladio.runtime.scheduling.policy.waiting_queue import Deadlines, WaitingQueue, timeout_reason
from palladio.runtime.scheduling.state.page_headroom import Slots
from palladio.runtime.scheduling.state.request import NOT_FINITE, Request, RequestStatus, take_tokens


class Scheduler:
    """Queues, admits, grows, retracts and ends requests.

    Args: share: of background requests; one for all data-parallel ranks, which share steps.

    Attributes:
        waiting: retracted requests included.
        running: requests that own a slot and pages.
        buckets: those that can be used now, see `use`.
        retractor: takes pages from running requests.
        decode_steps: whose tokens have been read, since the start.
        drafts: how many were right, since the start.
        compile_seconds: that steps have waited for programs to be compiled, since the start, see `use`.
        clock: why requests wait.
        kv_budget: how much cache requests are expected to take.
        turns: whose step is next, where there are background requests.
        prefilled_last: whether the last step prefilled: then decode steps are next, unless steps hold both.
    """

    def __init__(
        self, limits: SchedulerLimits, buckets: Buckets, cache: CacheManager, waiting: WaitingQueue, share: BatchShare
    ) -> None:
        self.limits = limits
        self.buckets = buckets
        self.cache = cache
        self.waiting = waiting
        self.running = RunningRequests(limits.max_running, cache.page_size)
        self.decode_steps = DecodeSteps()
        self.drafts = DraftCounts()
        self.compile_seconds = 0.0
        self.clock = QueueTime()
        self.turns = ScheduleTurns(share, self.running)
        self._requests: dict[str, Request] = {}
        self._nobody: Slots = np.zeros(0, np.intp)
        self._planned: DecodeRows | None = None  # the last rows of one token each
        self.kv_budget = KVBudget(cache, limits, self.turns, self.running, waiting)
        self._deadlines = Deadlines()
        self.prefilled_last = False
        self.retractor = Retractor(cache, self.kv_budget, self.running, self._suspend, limits)

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request, *, is_accepted: bool = False) -> None:
        """Queues a request.

        Args:
            is_accepted: it was in the queue of an engine that failed: this one takes it even if the queue is full.

        Raises:
            OverloadedError: the queue is full.
        """
        if not is_accepted and not request.given.options.background:
            self.waiting.check_room(self.limits.max_queued)
        assert request.given.request_id not in self._requests, f"request id {request.given.request_id} is in use"
        self._requests[request.given.request_id] = request
        self.turns.join(request)
        request.trace.queued = request.trace.queued or time.time()  # it may come from another rank
        request.compile_mark = self.compile_seconds
        request.wait_mark = self.clock.join("step" if not len(self.waiting) else None)
        if request.num_retractions:
            self.waiting.put_back(request)
        else:
            self.waiting.add(request)
        self._deadlines.add(request)

    def forget(self, request: Request) -> None:
        """Forgets a waiting request, none of whose rows is unread: another scheduler queues it."""
        assert not request.num_unread
        self.waiting.remove(request)
        del self._requests[request.given.request_id]
        self.turns.leave(request)
        request.trace.waits.add_since(self.clock.leave(), request.wait_mark)

    def abort(self, request_id: str) -> bool:
        """Ends a request without output; False if it is not here (any more)."""
        if (request := self._requests.get(request_id)) is not None:
            self._end(request)
        return request is not None

    def expire(self) -> list[TokenOutput]:
        """Ends the requests whose time is up."""
        expired = self._deadlines.take_expired(time.time())
        return [self.fail(r, timeout_reason(r)) for r in expired if r.given.request_id in self._requests]

    def fail(self, request: Request, finish: FinishReason) -> TokenOutput:
        """Ends a request for a reason of the engine's."""
        output = request.output([])
        self._finish(request, output, finish, time.time())
        return output

    def start_over(self) -> None:
        """After the device has lost its state: every running request is computed anew, without a token lost."""
        for request in self._requests.values():
            request.note_unread(-request.num_unread)
        self.retractor.retract_all()
        self.cache.take_table_updates()
        self.cache.flush()

    def use(self, buckets: Buckets, compile_seconds: float) -> None:
        """What is known of the programs from now on. Args: as the attributes; buckets only grow."""
        self.buckets, self.compile_seconds = buckets, compile_seconds

    def take_turn(self, *, prefilled: bool) -> None:
        """Where ranks take turns together. Args: prefilled: see `prefilled_last`."""
        self.prefilled_last = prefilled

    def schedule(self) -> ScheduledBatch | None:
        """Plans the next step and moves its requests' lengths on; None when nothing can run (yet)."""
        self.prepare()
        return next(filter(None, map(self.plan, self.turns.order(self.waiting.num_foreground))), None)

    def prepare(self) -> None:
        """Before a step is planned."""
        if len(self.waiting):
            self.clock.advance()
        self.cache.drop_duplicates()
        self.cache.slide(self.running)

    def plan(self, turn: ScheduleTurn) -> ScheduledBatch | None:
        """See `schedule`; of the requests whose turn it is."""
        slots = self.turns.decoders(turn, self.buckets)
        if not len(self.waiting) and self.retractor.have_room(slots):
            return self._decode(slots)  # what is below comes to the same
        mixes = self.limits.mixes and 2 * len(self.running) <= self.max_step_tokens
        decoding: Slots | None = None
        may_admit = True
        # Unless a step holds both kinds of work they take turns, so that a long prompt does not stop running streams.
        if mixes or self.prefilled_last:
            num_shortages = len(self.retractor.retractions)
            decoding = self._take_decoding(turn)
            may_admit = len(self.retractor.retractions) == num_shortages
            if len(decoding) and not mixes:
                return self._decode(decoding)
        beside = self._nobody if decoding is None else decoding
        requests = self.running.columns.requests[beside]
        urgent = self._preempt(turn, len(beside)) if may_admit and len(self.waiting) else None
        if decoding is not None and urgent is not None:
            decoding = beside = beside[self.running.columns.requests[beside] == requests]
        prefill = self._take_prefill(turn, urgent, len(beside), may_admit)
        if prefill:
            self.prefilled_last = True
            prefill.sort(key=lambda row: not row.samples)
            return self._batch("prefill", self._rows(beside), prefill)
        return self._decode(self._take_decoding(turn) if decoding is None else decoding)

    def process(self, batch: ScheduledBatch, read: SampledRows) -> list[NewTokens]:
        """Takes a step's tokens into its requests, ends those that are done, and returns what is new. What was read of
        the rows that sample is no longer the caller's."""
        now = time.time()
        self.cache.confirm(batch)
        if batch.kind == "verify":
            note_drafts(self.drafts, batch, read)
        outputs: list[NewTokens] = []
        looked_at: Iterable[tuple[int, ScheduledRow]] = enumerate(batch.chunks, start=batch.num_decodes)
        if batch.num_decodes:
            taken = batch.decodes.take(read)
            if num_taken := int(np.count_nonzero(taken)):
                outputs.append(read.plain(batch.decodes, taken, num_taken))
            others = np.flatnonzero(~taken).tolist() if num_taken < len(taken) else []
            looked_at = itertools.chain(((number, batch.decodes.row(number)) for number in others), looked_at)
        for number, row in looked_at:
            if row.is_void:
                continue
            request, output = row.request, read.output(number, row.request)
            if output.prompt_logprobs is not None:
                request.take_prompt_logprobs(row.start, output.prompt_logprobs)
            if row.samples:
                row.read(len(output.token_ids))
                self._take_tokens(request, output, now)
                outputs.append(output)
        return outputs

    def count_decoding(self, steps: DecodeSteps) -> None:
        """Decode steps whose tokens have been read; told before `process` gets them, for the traces of requests."""
        self.decode_steps = self.decode_steps.plus(steps)

    def find(self, request_id: str) -> Request | None:
        """A request that has not ended."""
        return self._requests.get(request_id)

    def check_integrity(self) -> None:
        """Raises AssertionError if a page or a slot is owned twice or by nobody."""
        self.cache.check_integrity(self.running)
        self.running.check_integrity()
        assert len(self._requests) == len(self.running) + len(self.waiting), "a request is lost"
        assert all(request.slot == 0 and not request.pages for request in self.waiting)

    @property
    def max_step_tokens(self) -> int:
        """Of a prefill step."""
        return min(self.limits.max_step_tokens, self.buckets.max_prefill_tokens)

    def _take_prefill(
        self, turn: ScheduleTurn, first: Request | None, num_decoding: int, may_admit: bool
    ) -> list[ScheduledRow]:
        """Chunks of prompts: of the one that took others' place, of running ones, of those that wait and have room."""
        rows: list[ScheduledRow] = []
        budget = self.max_step_tokens - num_decoding
        if turn == "background" and self.limits.splits_prompts:
            share = self.turns.share.max_prefill_tokens(self.buckets)
            candidates = [*self.turns.members(turn), *filter(None, [self.waiting.peek()])]
            budget = min(budget, max(share, *(request.longest_whole for request in candidates), 0))
        if first is not None:
            budget -= self._add_chunk(rows, first, budget)
        # Few are split, but a retraction may leave one anywhere.
        for running in [r for r in self.turns.prefilling(turn) if r is not first]:
            if budget > 0:
                budget -= self._add_chunk(rows, running, budget)
        if len(self.waiting):
            max_rows = self.buckets.max_prefill_requests - num_decoding
            self.clock.put_down_to(self._admit_waiting(turn, rows, budget, max_rows) if may_admit else "memory")
        return rows

    def _admit_waiting(self, turn: ScheduleTurn, rows: list[ScheduledRow], budget: int, max_rows: int) -> WaitReason:
        """Adds the first chunks of those that wait; returns for what the rest of them, if any, go on waiting."""
        slots: WaitReason = "slots" if self.buckets.max_requests >= self.limits.max_running else "compile"
        num_slots = self.kv_budget.num_slots(self.buckets)
        if len(self.running) >= num_slots:
            return slots
        reserved = self.kv_budget.reserved_tokens(self.turns.members("foreground" if turn == "foreground" else "all"))
        self.waiting.refresh()
        while budget > 0 and len(self.running) < num_slots and len(rows) < max_rows:
            request = self.kv_budget.next_waiting(turn, budget)
            if request is None:
                return "step"
            prefix = self.cache.find_prefix(request)
            if self.running and not self.kv_budget.fits(request, prefix, reserved):
                return "memory"  # alone it fits: the front refuses requests that do not fit an empty pool
            self.waiting.take()
            self._admit(request, prefix)
            budget -= self._add_chunk(rows, request, budget)
            reserved += self.kv_budget.expected_tokens(request)
        return "step" if len(self.running) < num_slots else slots

    def _admit(self, request: Request, prefix: Prefix) -> None:
        request.status = RequestStatus.RUNNING
        self.running.add(request)
        request.begin_prefill()
        self.cache.admit(request, prefix)
        request.trace.waits.add_since(self.clock.leave(), request.wait_mark)
        if request.scheduled is None:
            request.scheduled = time.time()
            request.num_cached_tokens = request.num_computed

    def _add_chunk(self, rows: list[ScheduledRow], request: Request, budget: int) -> int:
        """Adds as much of the request's prefill as the budget and the free pages allow; returns the tokens added."""
        start = request.num_computed
        free = (len(request.pages) + self.cache.num_available_columns) * self.cache.page_size - start
        count = min(request.prefill_end - start, budget, free)
        if self.cache.snapshots is not None:
            count = self.cache.snapshots.stop(request, start, start + count) - start
        if request.given.media:
            count = request.uncut(start + count) - start
        if count <= 0:
            return 0
        self.cache.grow(request, start + count)
        request.note_computed(start + count)
        self.cache.share(request)
        samples = not request.is_prefilling
        if samples:
            request.note_unread(1)
        rows.append(ScheduledRow(request, start, count, samples, revision=request.revision))
        return count

    # Decode

    def _take_decoding(self, turn: ScheduleTurn) -> Slots:
        """Slots of requests that can decode, each with room for one more token."""
        return self.retractor.with_room(self.turns.decoders(turn, self.buckets))

    def _decode(self, decoding: Slots) -> ScheduledBatch | None:
        self.prefilled_last, columns, limits = False, self.running.columns, self.limits
        if not len(decoding):
            return None
        drafting = draft_rows(decoding, columns, self.buckets, limits, self.cache) if limits.num_drafts else None
        if drafting is not None:
            return self._batch("verify", drafting, [])
        most = self.turns.max_tokens(decoding, len(self.waiting), self.buckets, limits)
        if most == 1:
            return self._batch("decode", self._rows(decoding), [])
        if columns.constrained(decoding).any():  # each mask depends on the token before it
            fitting = columns.shortest(decoding, min(self.buckets.max_prefill_requests, self.max_step_tokens))
            return self._batch("prefill", self._rows(fitting), [])
        return self._batch("decode", DecodeRows.plan_several(columns, decoding, most, self.cache), [])

    def _rows(self, slots: Slots) -> DecodeRows:
        """Of one token each."""
        columns, has_drafts = self.running.columns, self.limits.num_drafts > 0
        self._planned = rows = DecodeRows.plan_tokens(columns, slots, self._planned, has_drafts=has_drafts)
        return rows

    def _batch(self, kind: StepKind, decodes: DecodeRows, chunks: list[ScheduledRow]) -> ScheduledBatch:
        self.retractor.note_step(samples=bool(len(decodes)) or chunks[0].samples)  # those that do come first
        if len(decodes):
            self.kv_budget.ratio.decay()
        return ScheduledBatch(kind, decodes, chunks, self.cache.take_table_updates(), len(self.waiting))

    # Retraction and preemption

    def _preempt(self, turn: ScheduleTurn, num_decoding: int) -> Request | None:
        """The next waiting request, if it has just taken the place of running ones that give way to it: it runs now."""
        request = self.kv_budget.next_urgent(turn, self.max_step_tokens - num_decoding)
        victims = [] if request is None else self.retractor.find_victims(request, self.buckets)
        if request is None or not victims:
            return None
        self.waiting.take()
        for victim in victims:
            self.retractor.retract(victim)
        self._admit(request, self.cache.find_prefix(request))
        return request

    def _suspend(self, request: Request) -> None:
        """Puts a running request back into the queue, without its pages."""
        self._leave(request)
        request.status = RequestStatus.WAITING
        request.wait_mark = self.clock.join_retracted(is_first=not len(self.waiting))
        self.waiting.put_back(request)

    def _make_room(self, request: Request, count: int) -> bool:
        """Pages for known tokens that a running request is to compute in one step, if that pays: it takes a step of all
        running requests, and saves this one a step for each token but the first. States have moved on already."""
        pays = request.status is RequestStatus.RUNNING and count > len(self.running)
        return pays and not self.cache.groups.has_states and self.cache.grow(request, request.num_known_tokens + count)

    # Ends

    def _end(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self._leave(request)
        else:  # aborted in the queue; or retracted just before its last token was read
            self.waiting.remove(request)
        request.end()
        del self._requests[request.given.request_id]
        self.turns.leave(request)

    def _leave(self, request: Request) -> None:
        if not request.num_unread:  # else its last step is still to be read, and to be counted
            request.note_decoding(self.decode_steps)
        self.cache.release(request)
        self.running.remove(request)

    def _take_tokens(self, request: Request, output: TokenOutput, now: float) -> None:
        if request.decode_mark is None and request.status is RequestStatus.RUNNING:
            request.decode_mark = self.decode_steps
        finish = take_tokens(request, output, self._make_room)
        request.note_taken()
        if request.status is RequestStatus.WAITING and not request.num_unread:
            request.note_decoding(self.decode_steps)  # retracted before these tokens were read
        if request.first_token is None:
            request.first_token = now
            prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
            output.begin(request.times(None), request.trace_so_far(self.compile_seconds), prompt_logprobs)
        if finish is not None:
            self._finish(request, output, finish, now)
        if finish is NOT_FINITE:
            self.cache.flush()  # its keys and values may be what is not finite

    def _finish(self, request: Request, output: TokenOutput, finish: FinishReason, now: float) -> None:
        request.note_decoding(self.decode_steps)
        if request.status is RequestStatus.WAITING:
            request.trace.waits.add_since(self.clock.leave(), request.wait_mark)
        output.end(finish, request.times(now), request.trace_so_far(self.compile_seconds))
        self._end(request)
