"""The scheduler: which requests take part in the next step, and what a step's tokens mean for them.

It runs one step ahead of the device: when it plans step n+1, the tokens of step n may still be on the device
(`Request.num_pending`). So a request that turns out to have ended at step n may be part of step n+1 too; its row is
ignored then. Device steps run in order, so pages and slots can be given to others at once.
"""

import collections
import dataclasses
import time
from collections.abc import Sequence
from typing import Literal

from palladio.runtime.buckets import Buckets
from palladio.runtime.cache_manager import CacheManager
from palladio.runtime.errors import OverloadedError
from palladio.runtime.outputs import FinishReason, TokenLogprob, TokenOutput
from palladio.runtime.request import Request, RequestStatus

# The share of a request's max_tokens that admission expects it to use: starts high, sinks while no request is
# retracted, jumps up when one is. SGLang's scheme and constants, so that --schedule-conservativeness means the same.
INIT_NEW_TOKEN_RATIO = 0.7
MIN_NEW_TOKEN_RATIO_FACTOR = 0.14
NEW_TOKEN_RATIO_DECAY = INIT_NEW_TOKEN_RATIO * (1 - MIN_NEW_TOKEN_RATIO_FACTOR) / 600  # a decode step
CLIP_MAX_NEW_TOKENS = 4096  # longer requests are counted as this long: few run to their limit
RETRACT_DECODE_STEPS = 20  # after a retraction, expect the others to run at least this much further

NOT_FINITE = FinishReason(
    "abort",
    message="The model's logits for this request are not finite (NaN or infinity); try --dtype float32",
    status=500,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledRow:
    """One request's part of a step: its tokens [start, start + num_tokens)."""

    request: Request
    start: int
    num_tokens: int
    samples: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """One step, as the host sees it.

    Attributes:
        kind: "decode": one token per row, the last one sampled; "prefill": known tokens.
        table_updates: changes of the block table that must be applied before the step.
        num_waiting: length of the queue after scheduling (for the log).
    """

    kind: Literal["decode", "prefill"]
    rows: list[ScheduledRow]
    table_updates: list[tuple[int, int, int]]
    num_waiting: int

    @property
    def num_tokens(self) -> int:
        return len(self.rows) if self.kind == "decode" else sum(row.num_tokens for row in self.rows)


@dataclasses.dataclass(frozen=True, slots=True)
class StepTokens:
    """What the device answered for a batch, row by row.

    Attributes:
        token_ids: one per row (junk where the row does not sample).
        is_finite: one per row; False where the logits were NaN or infinite, so that the token means nothing.
        logprobs: one per row, where any row asked for them.
        prompt_logprobs: per row: of the prompt tokens that this step's rows predict; None where not asked for.
    """

    token_ids: Sequence[int]
    is_finite: Sequence[bool]
    logprobs: list[TokenLogprob | None] | None = None
    prompt_logprobs: list[list[TokenLogprob] | None] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerLimits:
    """Attributes:
    max_running: requests that run at once (device slots 1 … max_running).
    max_queued: waiting requests; None: no limit.
    max_step_tokens: prompt tokens of one prefill step.
    splits_prompts: whether a prompt may be prefilled over several steps; if not, none is longer than a step.
    conservativeness: see --schedule-conservativeness.
    """

    max_running: int
    max_queued: int | None
    max_step_tokens: int
    splits_prompts: bool = True
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
        waiting: by id, in order; retracted requests at the front.
        running: requests that own a slot and pages.
        retractions: since the log last took them.
    """

    def __init__(self, limits: SchedulerLimits, buckets: Buckets, cache: CacheManager) -> None:
        self.limits = limits
        self.buckets = buckets
        self.cache = cache
        self.waiting: collections.OrderedDict[str, Request] = collections.OrderedDict()
        self.running: list[Request] = []
        self.retractions: list[Retraction] = []
        self._requests: dict[str, Request] = {}
        self._free_slots = list(range(limits.max_running, 0, -1))
        self._init_ratio = min(INIT_NEW_TOKEN_RATIO * limits.conservativeness, 1.0)
        self._min_ratio = self._init_ratio * MIN_NEW_TOKEN_RATIO_FACTOR
        self._ratio = self._init_ratio
        self._prefilled_last = False

    @property
    def has_requests(self) -> bool:
        return bool(self.running or self.waiting)

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
        self.waiting[request.request_id] = request

    def abort(self, request_id: str) -> bool:
        """Ends a request without output; False if it is not here (any more)."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._end(request)
        return True

    def schedule(self) -> ScheduledBatch | None:
        """Plans the next step and moves its requests' lengths on; None when nothing can run (yet)."""
        batch: ScheduledBatch | None = None
        # Where both kinds of work wait they take turns, so that a long prompt does not stop the running streams.
        if not self._prefilled_last:
            batch = self._schedule_prefill() or self._schedule_decode()
        else:
            batch = self._schedule_decode() or self._schedule_prefill()
        self._prefilled_last = batch is not None and batch.kind == "prefill"
        return batch

    def process(self, batch: ScheduledBatch, tokens: StepTokens) -> list[TokenOutput]:
        """Takes a step's tokens into its requests, ends those that are done, and returns what is new."""
        outputs: list[TokenOutput] = []
        now = time.time()
        for i, row in enumerate(batch.rows):
            request = row.request
            if request.status is RequestStatus.FINISHED:
                continue  # ended while this step was under way
            if tokens.prompt_logprobs is not None:
                self._take_prompt_logprobs(request, row, tokens.prompt_logprobs[i])
            if not row.samples:
                continue
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
        assert all(request.slot == 0 and not request.pages for request in self.waiting.values())

    def _schedule_prefill(self) -> ScheduledBatch | None:
        rows: list[ScheduledRow] = []
        budget = self.limits.max_step_tokens
        for request in self.running:  # at most one is split over steps, but a retraction may leave it anywhere
            if request.is_prefilling and budget > 0:
                budget -= self._add_chunk(rows, request, budget)
        reserved = self._reserved_tokens() if self.waiting else 0
        while self.waiting and budget > 0 and len(rows) < self.buckets.max_prefill_requests:
            request = next(iter(self.waiting.values()))
            if not self._free_slots or request.num_pending or not self._fits(request, reserved):
                break
            if not self.limits.splits_prompts and len(request.token_ids) > budget:
                break
            del self.waiting[request.request_id]
            self._admit(request)
            budget -= self._add_chunk(rows, request, budget)
            reserved += self._expected_tokens(request)
        return self._batch("prefill", rows) if rows else None

    def _schedule_decode(self) -> ScheduledBatch | None:
        ready = [r for r in self.running if not r.is_prefilling and r.wants_token]
        if not ready:
            return None
        if self._retract_for(ready):
            ready = [r for r in ready if r.status is RequestStatus.RUNNING]
        rows: list[ScheduledRow] = []
        for request in ready:
            grown = self.cache.grow(request, request.num_computed + 1)
            assert grown, "retraction left too few pages"
            rows.append(ScheduledRow(request, request.num_computed, 1, samples=True))
            request.num_computed += 1
            request.num_pending += 1
        self._ratio = max(self._ratio - NEW_TOKEN_RATIO_DECAY, self._min_ratio)
        return self._batch("decode", rows) if rows else None

    def _batch(self, kind: Literal["decode", "prefill"], rows: list[ScheduledRow]) -> ScheduledBatch:
        updates, self.cache.table_updates = self.cache.table_updates, []
        return ScheduledBatch(kind, rows, updates, len(self.waiting))

    def _admit(self, request: Request) -> None:
        request.status = RequestStatus.RUNNING
        request.slot = self._free_slots.pop()
        request.prefill_end = len(request.token_ids)
        if request.scheduled is None:
            request.scheduled = time.time()
        self.running.append(request)

    def _add_chunk(self, rows: list[ScheduledRow], request: Request, budget: int) -> int:
        """Adds as much of the request's prefill as the budget and the free pages allow; returns the tokens added."""
        start = request.num_computed
        free = len(request.pages) * self.cache.page_size - start + self.cache.num_free_tokens
        count = min(request.prefill_end - start, budget, free)
        if count <= 0:
            return 0
        self.cache.grow(request, start + count)
        request.num_computed += count
        samples = not request.is_prefilling
        if samples and request.max_tokens > 0:
            request.num_pending += 1
        rows.append(ScheduledRow(request, start, count, samples))
        return count

    def _fits(self, request: Request, reserved: int) -> bool:
        if not self.running:
            return True  # the front refuses requests that do not fit an empty pool
        return self._expected_tokens(request) + reserved <= self.cache.num_free_tokens

    def _expected_tokens(self, request: Request) -> int:
        """Tokens of cache that it will still take: the rest of its prefill, and the output it is expected to make."""
        output = min(request.max_remaining_tokens, CLIP_MAX_NEW_TOKENS)
        return max(0, request.prefill_end - request.num_computed) + int(output * self._ratio) + self.cache.page_size

    def _reserved_tokens(self) -> int:
        return sum(self._expected_tokens(request) for request in self.running)

    def _retract_for(self, ready: list[Request]) -> bool:
        """Takes pages from running requests until each ready one can grow by a token; False if none had to go.

        Those that lose least go first: the fewest computed tokens have to be computed again, and among equals the
        youngest. One request always stays, and it fits alone, so the others get their turn.
        """
        old_ratio, retracted = self._ratio, 0
        needed = sum(self.cache.pages_to_grow(r, r.num_computed + 1) for r in ready)
        if needed <= self.cache.allocator.num_free:
            return False
        victims = sorted(self.running, key=lambda r: (-r.num_computed, r.received))
        while needed > self.cache.allocator.num_free and len(victims) > 1:
            victim = victims.pop()
            if victim in ready:
                needed -= self.cache.pages_to_grow(victim, victim.num_computed + 1)
            self._retract(victim)
            retracted += 1
        self._ratio = self._ratio_after_retraction()
        self.retractions.append(Retraction(retracted, old_ratio, self._ratio))
        return True

    def _ratio_after_retraction(self) -> float:
        done = sum(r.num_output_tokens + RETRACT_DECODE_STEPS for r in self.running)
        planned = sum(min(r.max_tokens, CLIP_MAX_NEW_TOKENS) for r in self.running)
        return min(1.0, max(self._ratio, done / max(planned, 1)))

    def _retract(self, request: Request) -> None:
        self._leave(request)
        request.status = RequestStatus.WAITING
        request.num_computed = 0
        request.num_retractions += 1
        self.waiting[request.request_id] = request
        self.waiting.move_to_end(request.request_id, last=False)

    def _end(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self._leave(request)
        else:  # aborted in the queue; or retracted just before its last token was read
            del self.waiting[request.request_id]
        request.status = RequestStatus.FINISHED
        del self._requests[request.request_id]

    def _leave(self, request: Request) -> None:
        self.cache.release(request)
        self.running.remove(request)
        self._free_slots.append(request.slot)
        request.slot = 0

    def _take_token(self, request: Request, tokens: StepTokens, i: int, now: float) -> TokenOutput:
        output = TokenOutput(request.request_id, [], cached_tokens=request.num_cached_tokens)
        if request.max_tokens > 0:
            request.num_pending -= 1
            request.token_ids.append(tokens.token_ids[i])
            output.token_ids.append(tokens.token_ids[i])
            logprob = None if tokens.logprobs is None else tokens.logprobs[i]
            output.logprobs = None if logprob is None else [logprob]
        if request.first_token is None:
            request.first_token = now
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        output.finish = request.finish_reason() if tokens.is_finite[i] else NOT_FINITE
        if output.finish is not None:
            output.num_retractions = request.num_retractions
            output.times = request.times(now)
            self._end(request)
        return output

    @staticmethod
    def _take_prompt_logprobs(request: Request, row: ScheduledRow, new: list[TokenLogprob] | None) -> None:
        if new is None or request.prompt_logprobs is None:
            return
        if row.start == 0:
            request.prompt_logprobs = [TokenLogprob(request.prompt_ids[0], None)]
        request.prompt_logprobs.extend(new)
