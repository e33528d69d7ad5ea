"""The scheduler: which requests take part in the next step, and what a step's tokens mean for them.

It runs one step ahead of the device: when it plans step n+1, the tokens of step n may still be on the device
(`Request.num_pending`). So a request that turns out to have ended at step n may be part of step n+1 too; its row is
ignored then. Device steps run in order, so pages and slots can be given to others at once.
"""

import dataclasses
import time
from typing import Literal

from palladio.runtime.buckets import Buckets
from palladio.runtime.cache_manager import CacheManager, Prefix
from palladio.runtime.deadlines import Deadlines
from palladio.runtime.errors import OverloadedError
from palladio.runtime.new_token_ratio import NewTokenRatio
from palladio.runtime.outputs import FinishReason, TokenLogprob, TokenOutput
from palladio.runtime.request import Request, RequestStatus
from palladio.runtime.scheduled_batch import ScheduledBatch, ScheduledRow, StepTokens
from palladio.runtime.waiting_queue import WaitingQueue

NOT_FINITE = FinishReason(
    "abort",
    message="The model's logits for this request are not finite (NaN or infinity); try --dtype float32",
    status=500,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """Attributes:
    max_running: requests that run at once (device slots 1 … max_running).
    max_queued: waiting requests; None: no limit.
    max_step_tokens: tokens of one prefill step.
    splits_prompts: whether a prompt may be prefilled over several steps; if not, none is longer than a step.
    mixes: whether running requests decode in prefill steps too; else the two take turns.
    num_decode_steps: tokens that a request decodes in one step.
    preemption_threshold: a waiting request takes the place of a running one if it is more urgent by more than this;
        None: never.
    low_values_first: low priority values are the urgent ones.
    conservativeness: see --schedule-conservativeness.
    """

    max_running: int
    max_queued: int | None
    max_step_tokens: int
    splits_prompts: bool = True
    mixes: bool = False
    num_decode_steps: int = 1
    preemption_threshold: int | None = None
    low_values_first: bool = False
    conservativeness: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Retraction:
    """For the log: how many requests lost their pages, and what it did to the new-token ratio."""

    num_retracted: int
    old_ratio: float
    new_ratio: float


class Scheduler:
    """Queues, admits, grows, retracts and ends requests.

    Attributes:
        waiting: retracted requests included.
        running: requests that own a slot and pages.
        buckets: those that can be used now; larger sets may replace it while programs are compiled.
        retractions: since the log last took them.
    """

    def __init__(self, limits: SchedulerLimits, buckets: Buckets, cache: CacheManager, waiting: WaitingQueue) -> None:
        self.limits = limits
        self.buckets = buckets
        self.cache = cache
        self.waiting = waiting
        self.running: list[Request] = []
        self.retractions: list[Retraction] = []
        self._requests: dict[str, Request] = {}
        self._free_slots = list(range(limits.max_running, 0, -1))
        self._ratio = NewTokenRatio(limits.conservativeness)
        self._deadlines = Deadlines()
        self._prefilled_last = False

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            OverloadedError: the queue is full.
        """
        limit = self.limits.max_queued
        if limit is not None and len(self.waiting) >= limit:
            raise OverloadedError(
                f"The queue is full ({limit} requests wait, --max-queued-requests {limit}); try again later"
            )
        assert request.request_id not in self._requests, f"request id {request.request_id} is in use"
        self._requests[request.request_id] = request
        self.waiting.add(request)
        self._deadlines.add(request)

    def abort(self, request_id: str) -> bool:
        """Ends a request without output; False if it is not here (any more)."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._end(request)
        return True

    def expire(self) -> list[TokenOutput]:
        """Ends the requests whose time is up."""
        now = time.time()
        return [self._expire(request, now) for request in self._deadlines.take_expired(now)]

    def schedule(self) -> ScheduledBatch | None:
        """Plans the next step and moves its requests' lengths on; None when nothing can run (yet)."""
        self.cache.drop_duplicates()
        if self.limits.preemption_threshold is not None:
            self._preempt(self.limits.preemption_threshold)
        mixes = self.limits.mixes and 2 * len(self.running) <= self._max_step_tokens
        decoding: list[Request] | None = None
        may_admit = True
        # Unless a step holds both kinds of work they take turns, so that a long prompt does not stop running streams.
        if mixes or self._prefilled_last:
            num_retractions = len(self.retractions)
            decoding = self._take_decoding()
            may_admit = len(self.retractions) == num_retractions
            if decoding and not mixes:
                return self._decode(decoding)
        prefill = self._take_prefill(len(decoding or ()), may_admit)
        if prefill:
            self._prefilled_last = True
            prefill.sort(key=lambda row: not row.samples)
            return self._batch("prefill", [self._decode_row(r, 1) for r in decoding or ()] + prefill)
        return self._decode(self._take_decoding() if decoding is None else decoding)

    def process(self, batch: ScheduledBatch, tokens: StepTokens, step: int = 0) -> list[TokenOutput]:
        """Takes a step's tokens into its requests, ends those that are done, and returns what is new.

        Args:
            step: of a decode batch of several steps: which one.
        """
        outputs: list[TokenOutput] = []
        now = time.time()
        finished = RequestStatus.FINISHED
        for i, row in enumerate(batch.rows):
            request = row.request
            if request.status is finished:
                continue  # ended while this step was under way
            if tokens.prompt_logprobs is not None:
                self._take_prompt_logprobs(request, row, tokens.prompt_logprobs[i])
            if row.samples and step < row.num_tokens:
                outputs.append(self._take_token(request, tokens, i, now))
        return outputs

    def check_integrity(self) -> None:
        """Checks ownership of pages and slots.

        Raises:
            AssertionError: something is owned twice or by nobody.
        """
        self.cache.check_integrity(self.running)
        slots = sorted(self._free_slots + [request.slot for request in self.running])
        assert slots == list(range(1, self.limits.max_running + 1)), "a slot is lost or used twice"
        assert len(self._requests) == len(self.running) + len(self.waiting), "a request is lost"
        assert all(request.slot == 0 and not request.pages for request in self.waiting)

    # Prefill

    @property
    def _max_step_tokens(self) -> int:
        return min(self.limits.max_step_tokens, self.buckets.max_prefill_tokens)

    @property
    def _has_free_slot(self) -> bool:
        return len(self.running) < min(self.limits.max_running, self.buckets.max_requests)

    def _take_prefill(self, num_decoding: int, may_admit: bool) -> list[ScheduledRow]:
        """Chunks of prompts: of running requests, then of those that wait, if there is room for them."""
        rows: list[ScheduledRow] = []
        budget = self._max_step_tokens - num_decoding
        for running in self.running:  # at most one is split over steps, but a retraction may leave it anywhere
            if budget > 0 and running.is_prefilling:
                budget -= self._add_chunk(rows, running, budget)
        if not (may_admit and self._has_free_slot and len(self.waiting)):
            return rows
        max_rows = self.buckets.max_prefill_requests - num_decoding
        reserved = self._reserved_tokens()
        self.waiting.refresh()
        while budget > 0 and self._has_free_slot and len(rows) < max_rows:
            request = self.waiting.peek()
            if request is None:
                break
            if request.num_pending or (not self.limits.splits_prompts and len(request.token_ids) > budget):
                break  # pending: retracted a moment ago, and its last token has not been read yet
            prefix = self.cache.find_prefix(request)
            if not self._has_room(request, prefix, reserved):
                break
            self.waiting.take()
            self._admit(request, prefix)
            budget -= self._add_chunk(rows, request, budget)
            reserved += self._expected_tokens(request)
        return rows

    def _has_room(self, request: Request, prefix: Prefix, reserved: int) -> bool:
        if not self.running:
            return True  # the front refuses requests that do not fit an empty pool
        size = self.cache.page_size
        rest = len(request.token_ids) - len(prefix.pages) * size
        wanted = rest + self._ratio.expected_output(request) + size
        return wanted + reserved + prefix.num_idle_pages * size <= self.cache.num_available_tokens

    def _expected_tokens(self, request: Request) -> int:
        """Tokens of cache that a running request will still take: the rest of its prefill, and its expected output."""
        rest = max(0, request.prefill_end - request.num_computed)
        return rest + self._ratio.expected_output(request) + self.cache.page_size

    def _reserved_tokens(self) -> int:
        return sum(map(self._expected_tokens, self.running))

    def _admit(self, request: Request, prefix: Prefix) -> None:
        request.status = RequestStatus.RUNNING
        request.slot = self._free_slots.pop()
        request.prefill_end = len(request.token_ids)
        self.cache.admit(request, prefix)
        if request.scheduled is None:
            request.scheduled = time.time()
            request.num_cached_tokens = request.num_computed
        self.running.append(request)

    def _add_chunk(self, rows: list[ScheduledRow], request: Request, budget: int) -> int:
        """Adds as much of the request's prefill as the budget and the free pages allow; returns the tokens added."""
        start = request.num_computed
        free = len(request.pages) * self.cache.page_size - start + self.cache.num_available_tokens
        count = min(request.prefill_end - start, budget, free)
        if count <= 0:
            return 0
        self.cache.grow(request, start + count)
        request.num_computed += count
        self.cache.share(request)
        samples = not request.is_prefilling
        if samples and request.max_tokens > 0:
            request.num_pending += 1
        rows.append(ScheduledRow(request, start, count, samples))
        return count

    # Decode

    def _take_decoding(self) -> list[Request]:
        """Requests that can decode, each with room for one more token."""
        size = self.cache.page_size
        ready: list[Request] = []
        growing: list[Request] = []
        for request in self.running:  # as plain as can be: this runs for each request at each step
            length = request.num_computed
            if length < request.prefill_end or not request.wants_token:
                continue
            ready.append(request)
            if length >= len(request.pages) * size:
                growing.append(request)
        if len(growing) > self.cache.num_available_pages:
            self._retract_for(growing)
            ready = [r for r in ready if r.status is RequestStatus.RUNNING]
        for request in growing:
            if request.status is RequestStatus.RUNNING:
                grown = self.cache.grow(request, request.num_computed + 1)
                assert grown, "retraction left too few pages"
        return ready

    def _decode(self, decoding: list[Request]) -> ScheduledBatch | None:
        self._prefilled_last = False
        if not decoding:
            return None
        num_steps = self.limits.num_decode_steps
        if num_steps == 1:
            return self._batch("decode", [self._decode_row(request, 1) for request in decoding])
        rows = []
        for request in decoding:
            count = min(num_steps, request.max_remaining_tokens)
            grown = self.cache.grow(request, request.num_computed + count)
            rows.append(self._decode_row(request, count if grown else 1))
        return self._batch("decode", rows)

    def _decode_row(self, request: Request, count: int) -> ScheduledRow:
        row = ScheduledRow(request, request.num_computed, count, samples=True, decodes=True)
        request.num_computed += count
        request.num_pending += count
        return row

    def _batch(self, kind: Literal["decode", "prefill"], rows: list[ScheduledRow]) -> ScheduledBatch:
        updates, self.cache.table_updates = self.cache.table_updates, []
        num_decodes = sum(row.decodes for row in rows)
        if num_decodes:
            self._ratio.decay()
        return ScheduledBatch(kind, rows, updates, len(self.waiting), num_decodes)

    # Retraction and preemption

    def _retract_for(self, growing: list[Request]) -> None:
        """Takes pages from running requests until each of the growing ones that is left can have another.

        The least urgent go first; of those, who loses least: the fewest computed tokens have to be computed again, and
        among equals the youngest goes. One request always stays, and it fits alone, so the others get their turn.
        """
        num_growing, old_ratio, retracted = len(growing), self._ratio.value, 0
        victims = sorted(self.running, key=self._retraction_order)
        while num_growing > self.cache.num_available_pages and len(victims) > 1:
            victim = victims.pop()
            num_growing -= victim in growing
            self._retract(victim)
            retracted += 1
        self._ratio.raise_for(self.running)
        self.retractions.append(Retraction(retracted, old_ratio, self._ratio.value))

    def _retraction_order(self, request: Request) -> tuple[int, int, float]:
        """Who is retracted last sorts first."""
        return -self._urgency(request), -self.cache.num_lost_tokens(request), request.received

    def _urgency(self, request: Request) -> int:
        """How much a request is to be preferred; 0 unless priorities are on."""
        if self.limits.preemption_threshold is None:
            return 0
        return -request.options.priority if self.limits.low_values_first else request.options.priority

    def _preempt(self, threshold: int) -> None:
        """Makes room for the next waiting request if it is more urgent than running ones by more than the threshold."""
        self.waiting.refresh()
        request = self.waiting.peek()
        while request is not None and self.running:
            if self._has_free_slot and self._has_room(request, self.cache.find_prefix(request), self._reserved_tokens()):
                return
            victim = max(self.running, key=self._retraction_order)
            if self._urgency(request) - self._urgency(victim) <= threshold:
                return
            self._retract(victim)

    def _retract(self, request: Request) -> None:
        self._leave(request)
        request.status = RequestStatus.WAITING
        request.num_computed = 0
        request.num_retractions += 1
        self.waiting.put_back(request)

    # Ends

    def _end(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self._leave(request)
        else:  # aborted in the queue; or retracted just before its last token was read
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        del self._requests[request.request_id]

    def _leave(self, request: Request) -> None:
        self.cache.release(request)
        self.running.remove(request)
        self._free_slots.append(request.slot)
        request.slot = 0

    def _expire(self, request: Request, now: float) -> TokenOutput:
        state = "waiting for its turn" if request.scheduled is None else f"{request.num_output_tokens} tokens done"
        finish = FinishReason(
            "abort",
            message=f"The request did not finish within its timeout of {request.options.timeout:g} s ({state}); "
            "raise timeout (or --request-timeout), or ask for fewer tokens",
            status=504,
        )
        output = TokenOutput(request.request_id, [], cached_tokens=request.num_cached_tokens, finish=finish)
        self._finish(request, output, now)
        return output

    def _take_token(self, request: Request, tokens: StepTokens, i: int, now: float) -> TokenOutput:
        token_ids: list[int] = []
        output = TokenOutput(request.request_id, token_ids, cached_tokens=request.num_cached_tokens)
        if request.max_tokens > 0:
            token_id = tokens.token_ids[i]
            request.num_pending -= 1
            request.token_ids.append(token_id)
            token_ids.append(token_id)
            if tokens.logprobs is not None and (logprob := tokens.logprobs[i]) is not None:
                output.logprobs = [logprob]
        if request.first_token is None:
            request.first_token = now
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        finish = request.finish_reason() if tokens.is_finite[i] else NOT_FINITE
        if finish is not None:
            output.finish = finish
            self._finish(request, output, now)
        if finish is NOT_FINITE:
            self.cache.flush()  # its keys and values may be what is not finite
        return output

    def _finish(self, request: Request, output: TokenOutput, now: float) -> None:
        output.num_retractions = request.num_retractions
        output.times = request.times(now)
        self._end(request)

    @staticmethod
    def _take_prompt_logprobs(request: Request, row: ScheduledRow, new: list[TokenLogprob] | None) -> None:
        if new is None or request.prompt_logprobs is None:
            return
        if row.start == 0:
            request.prompt_logprobs = [TokenLogprob(request.prompt_ids[0], None)]
        request.prompt_logprobs.extend(new)
