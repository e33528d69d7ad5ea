"""The scheduler of one data-parallel rank: its requests from the queue to their end, and what a step's tokens mean for
them. Which of them take part in the next step: StepPlanner.

It runs one step ahead of the device: when it plans step n+1, the device alone may know the tokens of step n, and how
many they are (see Request). A request that turns out to have ended at step n, or goes on from there in another way, may
be part of step n+1 too; its row is void then. Steps run in order, so others can have pages and slots at once.

Where there is one rank, the engine has its scheduler; where there are several, a DataParallelScheduler with the same
methods.
"""

import dataclasses
import itertools
import time
from collections.abc import Iterable, Sequence

import numpy as np

from palladio.runtime.interface.messages.engine_stats import RankStats
from palladio.runtime.interface.messages.page_map import PageMap
from palladio.runtime.interface.outputs.counts import DraftCounts
from palladio.runtime.interface.outputs.request_trace import DecodeSteps, WaitReason
from palladio.runtime.interface.outputs.token_output import FinishReason, NewTokens, TokenOutput
from palladio.runtime.scheduling.batch.buckets import Buckets, SchedulerLimits
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch, ScheduledRow, ScheduledStep
from palladio.runtime.scheduling.cache.cache_manager import CacheManager
from palladio.runtime.scheduling.cache.page_map import map_pages
from palladio.runtime.scheduling.cache.tree_events import TreeEvents
from palladio.runtime.scheduling.policy.batch_share import BatchShare
from palladio.runtime.scheduling.policy.deadlines import Deadlines, timeout_reason
from palladio.runtime.scheduling.policy.drafts import note_drafts
from palladio.runtime.scheduling.policy.kv_budget import KVBudget
from palladio.runtime.scheduling.policy.queue_time import QueueTime
from palladio.runtime.scheduling.policy.retractor import Retractor
from palladio.runtime.scheduling.policy.waiting_queue import WaitingQueue
from palladio.runtime.scheduling.state.new_tokens import NOT_FINITE, SampledRows, take_tokens
from palladio.runtime.scheduling.state.request import Request, RequestStatus
from palladio.runtime.scheduling.state.running import RunningRequests
from palladio.runtime.scheduling.step_planner import StepPlanner


class Scheduler:
    """Queues, schedules, retracts and ends requests.

    Args:
        share: of background requests; one for all data-parallel ranks, which share steps.

    Attributes:
        waiting: retracted requests included.
        running: requests that own a slot and pages.
        retractor: takes pages from running requests.
        decode_steps: whose tokens have been read, since the start.
        drafts: how many were right, since the start.
        compile_seconds: that steps have waited for programs to be compiled, since the start, see `use`.
        clock: why requests wait.
        kv_budget: how much cache requests are expected to take.
        planner: of steps.
    """

    def __init__(
        self, limits: SchedulerLimits, buckets: Buckets, cache: CacheManager, waiting: WaitingQueue, share: BatchShare
    ) -> None:
        self.limits = limits
        self.cache = cache
        self.waiting = waiting
        self.share = share
        self.running = RunningRequests(limits.max_running, cache.page_size)
        self.decode_steps = DecodeSteps()
        self.drafts = DraftCounts()
        self.compile_seconds = 0.0
        self.clock = QueueTime()
        self._requests: dict[str, Request] = {}
        self._deadlines: Deadlines | None = None  # made with the first request that has a time limit
        share.watch(self._requests)
        self.kv_budget = KVBudget(cache, limits, share, self.running, waiting)
        self.retractor = Retractor(cache, self.kv_budget, self.running, self._suspend, limits)
        self.planner = StepPlanner(
            limits,
            buckets,
            cache,
            share,
            running=self.running,
            waiting=waiting,
            clock=self.clock,
            kv_budget=self.kv_budget,
            retractor=self.retractor,
        )

    # Of the only rank, and of several: DataParallelScheduler has the same

    @property
    def schedulers(self) -> Sequence["Scheduler"]:
        """The scheduler of each data-parallel rank."""
        return (self,)

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_total_tokens(self) -> int:
        """That the KV cache holds."""
        return self.cache.num_total_tokens

    @property
    def buckets(self) -> Buckets:
        """Those that can be used now, see `use`."""
        return self.planner.buckets

    @property
    def events(self) -> list[TreeEvents]:
        """Events of the prefix cache, if its pages are published."""
        return [] if self.cache.events is None else [self.cache.events]

    def use(self, buckets: Buckets, compile_seconds: float) -> None:
        """Sets what is known of the programs from now on. Args: as the attributes; buckets only grow."""
        self.compile_seconds = compile_seconds
        self.planner.use(buckets)

    def check(self, request: Request, num_elsewhere: int = 0) -> None:
        """Checks whether a new request may be queued.

        Args:
            num_elsewhere: requests that will be queued, or wait in other ranks.

        Raises:
            InvalidRequestError: no step holds a part of it that has to be computed in one.
            OverloadedError: the queue is full. A request from the queue of an engine that failed is taken all the same.
        """
        self.limits.check_whole(request)
        if not request.given.resent and not request.given.options.background:
            self.waiting.check_room(self.limits.max_queued, num_elsewhere)

    def add(self, request: Request) -> None:
        """Queues a request, even if the queue is full."""
        name = request.given.request_id
        assert name not in self._requests, f"request id {name} is in use"
        self._requests[name] = request
        if request.given.options.background:
            self.share.count(1)
        request.trace.queued = request.trace.queued or time.time()  # it may come from another rank
        request.compile_mark = self.compile_seconds
        request.wait_mark = self.clock.join("step" if not len(self.waiting) else None)
        if request.num_retractions:
            self.waiting.put_back(request)
        else:
            self.waiting.add(request)
        if request.deadline is not None:
            self._deadlines = self._deadlines or Deadlines()
            self._deadlines.add(request)

    def find(self, request_id: str) -> Request | None:
        """A request that has not ended."""
        return self._requests.get(request_id)

    def wait_reason(self, request_id: str) -> WaitReason | None:
        """What a waiting request waits for; None: it is not here."""
        return self.clock.reason if request_id in self._requests else None

    def abort(self, request_id: str) -> bool:
        """Ends a request without output; False if it is not here (any more)."""
        if (request := self._requests.get(request_id)) is not None:
            self._end(request)
        return request is not None

    def expire(self) -> list[TokenOutput]:
        """Ends the requests whose time is up."""
        if self._deadlines is None:
            return []
        expired = self._deadlines.take_expired(time.time())
        return [self.fail(r, timeout_reason(r)) for r in expired if r.given.request_id in self._requests]

    def fail(self, request: Request, finish: FinishReason) -> TokenOutput:
        """Ends a request, which has not ended, for a reason of the engine's."""
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

    def retract_all(self) -> None:
        """Every running request gives up its pages and waits. No row of theirs is unread."""
        self.retractor.retract_all()

    def flush(self) -> None:
        """Drops cached prefixes that no request uses."""
        self.cache.flush()

    def schedule(self) -> ScheduledBatch | None:
        """Plans the next step and moves its requests' lengths on; None when nothing can run (yet)."""
        planner = self.planner
        planner.prepare()
        if self.share.num_background:
            classes = self.share.order(self.waiting.num_foreground)
            batch = next(filter(None, map(planner.plan, classes)), None)
        else:
            batch = planner.plan("all")
        return None if batch is None else self.cache.with_copies(batch)

    def process(self, step: ScheduledStep, read: Sequence[SampledRows]) -> list[NewTokens]:
        """Take a step's tokens into its requests, end those that are done, and return what is new.

        The call takes the sampled rows over: the caller must not use them again.

        Args:
            read: sampled rows of each rank's batch: one.
        """
        assert isinstance(step, ScheduledBatch), "this is the scheduler of one rank"
        (rows,) = read
        self.cache.confirm(step)
        plain = None if step.chunks else step.decodes.take_steady(rows)
        return self._process(step, rows) if plain is None else [plain]

    def check_integrity(self) -> None:
        """Raises AssertionError if a page or a slot is owned twice or lost."""
        self.cache.check_integrity(self.running)
        self.running.check_integrity()
        assert len(self._requests) == len(self.running) + len(self.waiting), "a request is lost"
        assert len(list(self.waiting)) == len(self.waiting), "the queue counts other requests than it has"
        assert all(request.slot == 0 and not request.pages for request in self.waiting)

    def stats(self) -> list[RankStats]:
        """Counters of each rank, without the throughput, which StepLogger knows."""
        stats = dataclasses.replace(
            self.cache.stats(),
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            new_token_ratio=self.kv_budget.ratio.value,
            num_retracted_waiting=self.waiting.num_retracted,
            num_retractions=self.clock.num_retracted,
            num_waiting_tokens=sum(request.num_known_tokens for request in self.waiting),
            **vars(self.drafts),
        )
        return [stats]

    def page_maps(self) -> list[PageMap]:
        """The page map of each rank."""
        return [map_pages(self.cache, list(self.running))]

    # Of a rank alone

    def forget(self, request: Request) -> None:
        """Forgets a waiting request, none of whose rows is unread: another scheduler queues it."""
        assert not request.num_unread
        self.waiting.remove(request)
        del self._requests[request.given.request_id]
        if request.given.options.background:
            self.share.count(-1)
        request.trace.waits.add_since(self.clock.leave(), request.wait_mark)

    def count_decoding(self, steps: DecodeSteps) -> None:
        """Decode steps whose tokens have been read; told before `process` gets them, for the traces of requests."""
        self.decode_steps = self.decode_steps.plus(steps)

    # Tokens and ends

    def _process(self, batch: ScheduledBatch, read: SampledRows) -> list[NewTokens]:
        """Takes the tokens of rows from which something may follow."""
        now = time.time()
        if batch.kind == "verify":
            note_drafts(self.drafts, batch, read)
        outputs: list[NewTokens] = []
        looked_at: Iterable[tuple[int, ScheduledRow]] = enumerate(batch.chunks, start=batch.num_decodes)
        if batch.num_decodes:
            rows = batch.decodes
            taken = rows.take(read)
            if num_taken := int(np.count_nonzero(taken)):
                outputs.append(read.plain(rows.columns, rows.slots, taken, num_taken))
            others = np.flatnonzero(~taken).tolist() if num_taken < len(taken) else []
            looked_at = itertools.chain(((number, rows.row(number)) for number in others), looked_at)
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

    def _make_room(self, request: Request, count: int) -> bool:
        """Pages for known tokens that a running request is to compute in one step, if that pays: it takes a step of all
        running requests, and saves this one a step for each token but the first. States have moved on already."""
        pays = request.status is RequestStatus.RUNNING and count > len(self.running)
        return pays and not self.cache.groups.has_states and self.cache.grow(request, request.num_known_tokens + count)

    def _finish(self, request: Request, output: TokenOutput, finish: FinishReason, now: float) -> None:
        request.note_decoding(self.decode_steps)
        if request.status is RequestStatus.WAITING:
            request.trace.waits.add_since(self.clock.leave(), request.wait_mark)
        output.end(finish, request.times(now), request.trace_so_far(self.compile_seconds))
        self._end(request)

    def _suspend(self, request: Request) -> None:
        """Puts a running request back into the queue, without its pages."""
        self._leave(request)
        request.status = RequestStatus.WAITING
        request.wait_mark = self.clock.join_retracted(is_first=not len(self.waiting))
        self.waiting.put_back(request)

    def _end(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self._leave(request)
        else:  # aborted in the queue; or retracted just before its last token was read
            self.waiting.remove(request)
        request.end()
        del self._requests[request.given.request_id]
        if request.given.options.background:
            self.share.count(-1)

    def _leave(self, request: Request) -> None:
        if not request.num_unread:  # else its last step is still to be read, and to be counted
            request.note_decoding(self.decode_steps)
        self.cache.release(request)
        self.running.remove(request)
