"""StepPlanner: which requests take part in the next step of a rank, and with which of their tokens."""

import time
from collections.abc import Iterable

import numpy as np

from palladio.runtime.interface.outputs.request_trace import WaitReason
from palladio.runtime.scheduling.batch.buckets import Buckets, SchedulerLimits
from palladio.runtime.scheduling.batch.scheduled_batch import DecodeRows, ScheduledBatch, ScheduledRow, StepKind
from palladio.runtime.scheduling.cache.cache_manager import CacheManager, Prefix
from palladio.runtime.scheduling.policy.batch_share import BatchShare, StepClass, StepMix
from palladio.runtime.scheduling.policy.drafts import draft_rows
from palladio.runtime.scheduling.policy.kv_budget import KVBudget
from palladio.runtime.scheduling.policy.queue_time import QueueTime
from palladio.runtime.scheduling.policy.retractor import Retractor
from palladio.runtime.scheduling.policy.waiting_queue import WaitingQueue
from palladio.runtime.scheduling.state.request import Request, RequestStatus, StepNeeds
from palladio.runtime.scheduling.state.running import RunningRequests
from palladio.runtime.scheduling.state.slot_columns import Slots

_NO_SLOTS: Slots = np.zeros(0, np.intp)


class StepPlanner:
    """Plans the steps of one rank: admits waiting requests, divides prompts into chunks, and lets requests decode.

    Args:
        share: of background requests.
        running, waiting, clock, kv_budget, retractor: the scheduler's.

    Attributes:
        buckets: those that can be used now, see `use`.
        prefilled_last: whether the last step prefilled: then decode steps are next, unless steps hold both.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        buckets: Buckets,
        cache: CacheManager,
        share: BatchShare,
        *,
        running: RunningRequests,
        waiting: WaitingQueue,
        clock: QueueTime,
        kv_budget: KVBudget,
        retractor: Retractor,
    ) -> None:
        self.buckets = buckets
        self.prefilled_last = False
        self._limits = limits
        self._cache = cache
        self._share = share
        self._running = running
        self._waiting = waiting
        self._clock = clock
        self._kv_budget = kv_budget
        self._retractor = retractor

    def use(self, buckets: Buckets) -> None:
        """Sets the buckets; they only grow."""
        self.buckets = buckets

    def take_turn(self, *, prefilled: bool) -> None:
        """Note which kind of step the joint step of all ranks was.

        Args:
            prefilled: whether it was a prefill step, as in `prefilled_last`.
        """
        self.prefilled_last = prefilled

    def prepare(self) -> None:
        """Before a step of all ranks is planned."""
        if len(self._waiting):
            self._clock.advance()
        self._cache.drop_duplicates()
        self._cache.slide(self._running)

    def plan(self, step_class: StepClass) -> ScheduledBatch | None:
        """Plans the next step, of the requests whose step it is, and moves their lengths on; None: nothing can run."""
        slots, num_waiting = self._decoders(step_class), len(self._waiting)
        if not num_waiting and self._retractor.have_room(slots):
            return self._decode(slots)  # what is below comes to the same
        mixes = self._limits.mixes and 2 * len(self._running) <= self.max_step_tokens
        decoding: Slots | None = None
        may_admit = True
        # Unless a step holds both kinds of work they take turns, so that a long prompt does not stop running streams.
        if mixes or self.prefilled_last:
            num_shortages = len(self._retractor.retractions)
            decoding = self._retractor.with_room(slots)
            may_admit = len(self._retractor.retractions) == num_shortages
            if len(decoding) and not mixes:
                return self._decode(decoding)
        beside = _NO_SLOTS if decoding is None else decoding
        requests = self._running.columns.requests[beside]
        urgent = self._preempt(step_class, len(beside)) if may_admit and len(self._waiting) else None
        if decoding is not None and urgent is not None:
            decoding = beside = beside[self._running.columns.requests[beside] == requests]
        prefill = self._take_prefill(step_class, urgent, len(beside), may_admit)
        if prefill:
            self.prefilled_last = True
            prefill.sort(key=lambda row: not row.samples)
            return self._batch("prefill", self._rows(beside), prefill)
        return self._decode(self._take_decoding(step_class) if decoding is None else decoding)

    @property
    def max_step_tokens(self) -> int:
        """The most tokens of a prefill step."""
        return min(self._limits.max_step_tokens, self.buckets.max_prefill_tokens)

    @property
    def _mix(self) -> StepMix:
        """While there are background requests."""
        return StepMix(self._share, self._running)

    # Prefill

    def _take_prefill(
        self, step_class: StepClass, first: Request | None, num_decoding: int, may_admit: bool
    ) -> list[ScheduledRow]:
        """Chunks of prompts: of the one that took others' place, of running ones, of those that wait and have room."""
        rows: list[ScheduledRow] = []
        budget = self.max_step_tokens - num_decoding
        if step_class == "background" and self._limits.splits_prompts:
            share = self._share.max_prefill_tokens(self.buckets)
            candidates = [*self._mix.members(step_class), *filter(None, [self._waiting.peek()])]
            budget = min(budget, max(share, *(request.longest_whole for request in candidates), 0))
        if first is not None:
            budget -= self._add_chunk(rows, first, budget)
        # Few are split, but a retraction may leave one anywhere.
        slots = self._running.slots if step_class == "all" else self._mix.slots(step_class)
        for running in [r for r in self._running.columns.prefilling(slots) if r is not first]:
            if budget > 0:
                budget -= self._add_chunk(rows, running, budget)
        if len(self._waiting):
            max_rows = self.buckets.max_prefill_requests - num_decoding
            self._clock.put_down_to(self._admit_waiting(step_class, rows, budget, max_rows) if may_admit else "memory")
        return rows

    def _admit_waiting(self, step_class: StepClass, rows: list[ScheduledRow], budget: int, max_rows: int) -> WaitReason:
        """Adds the first chunks of those that wait; returns for what the rest of them, if any, go on waiting."""
        slots: WaitReason = "slots" if self.buckets.max_requests >= self._limits.max_running else "compile"
        num_slots = self._kv_budget.num_slots(self.buckets)
        if len(self._running) >= num_slots:
            return slots
        beside: Iterable[Request] = self._mix.members(step_class) if step_class == "foreground" else self._running
        reserved = self._kv_budget.reserved_tokens(beside)
        self._waiting.refresh()
        while budget > 0 and len(self._running) < num_slots and len(rows) < max_rows:
            request = self._kv_budget.next_waiting(step_class, budget)
            if request is None:
                request = self._kv_budget.next_shorter(step_class, budget)
            if request is None:
                return "step"
            prefix = self._cache.find_prefix(request)
            if self._running and not self._kv_budget.fits(request, prefix, reserved):
                return "memory"  # alone it fits: the front refuses requests that do not fit an empty pool
            self._waiting.take(request)
            self._admit(request, prefix)
            budget -= self._add_chunk(rows, request, budget)
            reserved += self._kv_budget.expected_tokens(request)
        return "step" if len(self._running) < num_slots else slots

    def _admit(self, request: Request, prefix: Prefix) -> None:
        request.status = RequestStatus.RUNNING
        self._running.add(request)
        request.begin_prefill()
        self._cache.admit(request, prefix)
        request.trace.waits.add_since(self._clock.leave(), request.wait_mark)
        if request.scheduled is None:
            request.scheduled = time.time()
            request.num_cached_tokens = request.num_computed

    def _add_chunk(self, rows: list[ScheduledRow], request: Request, budget: int) -> int:
        """Adds as much of the request's prefill as the budget and the free pages allow; returns the tokens added."""
        start = request.num_computed
        free = (len(request.pages) + self._cache.num_available_columns) * self._cache.page_size - start
        count = min(request.prefill_end - start, budget, free)
        if self._cache.snapshots is not None:
            count = self._cache.snapshots.stop(request, start, start + count) - start
        if request.given.media:
            count = request.uncut(start + count) - start
        if count <= 0 or (self._limits.fills_steps and start + count < request.prefill_end):
            return 0
        self._cache.grow(request, start + count)
        request.note_computed(start + count)
        self._cache.share(request)
        samples = not request.is_prefilling
        if samples:
            request.note_unread(1)
        rows.append(ScheduledRow(request, start, count, samples, revision=request.revision))
        return count

    def _preempt(self, step_class: StepClass, num_decoding: int) -> Request | None:
        """The next waiting request, if it has just taken the place of running ones that give way to it: it runs now."""
        request = self._kv_budget.next_urgent(step_class, self.max_step_tokens - num_decoding)
        victims = [] if request is None else self._retractor.find_victims(request, self.buckets)
        if request is None or not victims:
            return None
        self._waiting.take()
        for victim in victims:
            self._retractor.retract(victim)
        self._admit(request, self._cache.find_prefix(request))
        return request

    # Decode

    def _decoders(self, step_class: StepClass) -> Slots:
        return self._running.slots if step_class == "all" else self._mix.decoders(step_class, self.buckets)

    def _take_decoding(self, step_class: StepClass) -> Slots:
        """Slots of requests that can decode, each with room for one more token."""
        return self._retractor.with_room(self._decoders(step_class))

    def _decode(self, decoding: Slots) -> ScheduledBatch | None:
        self.prefilled_last, columns, limits = False, self._running.columns, self._limits
        if not len(decoding):
            return None
        drafting = draft_rows(decoding, columns, self.buckets, limits, self._cache) if limits.num_drafts else None
        if drafting is not None:
            return self._batch("verify", drafting, [])
        most = self._max_tokens(decoding) if self.buckets.several else limits.num_decode_steps
        if most == 1:
            return self._batch("decode", self._rows(decoding), [])
        if columns.constrained(decoding).any():  # each mask depends on the token before it
            fitting = columns.shortest(decoding, min(self.buckets.max_prefill_requests, self.max_step_tokens))
            return self._batch("prefill", self._rows(fitting), [])
        return self._batch("decode", DecodeRows.plan_several(self._running, decoding, most, self._cache), [])

    def _max_tokens(self, slots: Slots) -> int:
        """How many tokens a decode step may give each of these requests, if they have no drafts."""
        limits, several = self._limits, self.buckets.several
        # Who prefills, waits, or is a background request beside others, is not held up by several tokens.
        is_alone = len(slots) == len(self._running) and not len(self._waiting)
        if not is_alone or self.buckets.pick_decode(len(slots)) not in several:
            return limits.num_decode_steps
        # Others need the host between two tokens, or a program that samples alone.
        is_plain = self._running.steady.needs in StepNeeds.RANDOM
        return limits.joined_passes if is_plain else limits.num_decode_steps

    def _rows(self, slots: Slots) -> DecodeRows:
        """Decode rows of one token each."""
        return DecodeRows.plan_one_each(self._running, slots, has_drafts=self._limits.num_drafts > 0)

    def _batch(self, kind: StepKind, decodes: DecodeRows, chunks: list[ScheduledRow]) -> ScheduledBatch:
        if decodes.total or chunks[0].samples:  # those that do come first
            self._retractor.note_samples()
        if decodes.total:
            self._kv_budget.ratio.decay()
        return ScheduledBatch(kind, decodes, chunks, self._cache.take_table_updates(), len(self._waiting))
