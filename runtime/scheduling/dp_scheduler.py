"""The schedulers of several data-parallel ranks as one. A step serves every rank at once, in one shape.

Each rank has its own requests, pages and slots; a request stays in the rank that the router chose when it came. Only
while it waits it may move, unless its caller chose the rank: one with an empty queue takes requests that another has
no room for.

The batches of a step are of one kind. Where one rank prefills and another decodes, the latter's requests take part in
the prefill step as rows of one token, as they do in a step that holds both kinds of work.
"""

import dataclasses
import itertools
from collections.abc import Hashable, Sequence

from palladio.runtime.interface.messages.engine_stats import RankStats
from palladio.runtime.interface.messages.page_map import PageMap
from palladio.runtime.interface.outputs.request_trace import WaitReason
from palladio.runtime.interface.outputs.token_output import FinishReason, NewTokens, TokenOutput
from palladio.runtime.scheduling.batch.buckets import Buckets
from palladio.runtime.scheduling.batch.scheduled_batch import JointStep, ScheduledBatch, ScheduledStep
from palladio.runtime.scheduling.cache.tree_events import TreeEvents
from palladio.runtime.scheduling.dp_router import DataParallelRouter
from palladio.runtime.scheduling.policy.batch_share import BatchShare, StepClass, expect_foreground
from palladio.runtime.scheduling.policy.waiting_queue import WINDOW
from palladio.runtime.scheduling.scheduler import Scheduler
from palladio.runtime.scheduling.state.new_tokens import SampledRows
from palladio.runtime.scheduling.state.request import Request


class DataParallelScheduler:
    """What the engine has in the place of a Scheduler where there are several ranks.

    Attributes:
        schedulers: one a rank, all of the same limits, and of one BatchShare.
    """

    def __init__(self, schedulers: Sequence[Scheduler], router: DataParallelRouter) -> None:
        self.schedulers = schedulers
        self._router = router
        self._loads: list[int] | None = None  # as of the last step, and what has come since; None: not counted yet

    @property
    def has_requests(self) -> bool:
        return any(scheduler.has_requests for scheduler in self.schedulers)

    @property
    def num_running(self) -> int:
        return sum(len(scheduler.running) for scheduler in self.schedulers)

    @property
    def num_total_tokens(self) -> int:
        """That the KV caches of all ranks hold."""
        return sum(scheduler.cache.num_total_tokens for scheduler in self.schedulers)

    @property
    def share(self) -> BatchShare:
        """The share of background requests."""
        return self.schedulers[0].share

    @property
    def buckets(self) -> Buckets:
        """The buckets that steps are padded to."""
        return self.schedulers[0].buckets

    def use(self, buckets: Buckets, compile_seconds: float) -> None:
        """Sets what schedulers know of the programs, see Scheduler."""
        for scheduler in self.schedulers:
            scheduler.use(buckets, compile_seconds)

    def check(self, request: Request, num_elsewhere: int = 0) -> None:
        """Checks whether a new request may be queued: as many wait as may, in all ranks together. See Scheduler."""
        first, *others = self.schedulers
        first.check(request, num_elsewhere + sum(scheduler.waiting.num_foreground for scheduler in others))

    def add(self, request: Request) -> None:
        """Queues a request in the rank that is to run it; even if the queue is full."""
        rank = request.given.options.dp_rank
        if rank is None:
            rank = self._router.choose(
                self._count_loads, lambda: self._count_cached(request), lambda: _prompt_of(request)
            )
        if self._loads is not None:
            self._loads[rank] += len(request.token_ids)
        self.schedulers[rank].add(request)

    def rank_of(self, request_id: str) -> int | None:
        """The rank of a request that has not ended."""
        found = (rank for rank, scheduler in enumerate(self.schedulers) if scheduler.find(request_id) is not None)
        return next(found, None)

    def find(self, request_id: str) -> Request | None:
        """A request that has not ended."""
        found = (scheduler.find(request_id) for scheduler in self.schedulers)
        return next((request for request in found if request is not None), None)

    def wait_reason(self, request_id: str) -> WaitReason | None:
        """What a waiting request waits for; None: it is not here."""
        rank = self.rank_of(request_id)
        return None if rank is None else self.schedulers[rank].wait_reason(request_id)

    def abort(self, request_id: str) -> bool:
        """Ends a request without output; False if it is not here (any more)."""
        return any(scheduler.abort(request_id) for scheduler in self.schedulers)

    def expire(self) -> list[TokenOutput]:
        """Ends the requests whose time is up."""
        return [output for scheduler in self.schedulers for output in scheduler.expire()]

    def fail(self, request: Request, finish: FinishReason) -> TokenOutput:
        """Ends a request, which has not ended, for a reason of the engine's."""
        rank = self.rank_of(request.given.request_id)
        assert rank is not None, f"{request.given.request_id} has ended"
        return self.schedulers[rank].fail(request, finish)

    def start_over(self) -> None:
        """Forget what was planned, on every rank."""
        for scheduler in self.schedulers:
            scheduler.start_over()

    def retract_all(self) -> None:
        """Every running request gives up its pages and waits. No row of theirs is unread."""
        for scheduler in self.schedulers:
            scheduler.retract_all()

    def flush(self) -> None:
        """Drops cached prefixes that no request uses."""
        for scheduler in self.schedulers:
            scheduler.flush()

    @property
    def events(self) -> list[TreeEvents]:
        """Events of each rank's prefix cache, if its pages are published."""
        return [events for scheduler in self.schedulers for events in scheduler.events]

    def schedule(self) -> JointStep | None:
        """Plans the next step; None when nothing can run (yet)."""
        self._loads = None
        for scheduler in self.schedulers:
            scheduler.planner.prepare()
        num_waiting = sum(scheduler.waiting.num_foreground for scheduler in self.schedulers)
        steps = map(self._plan, self.share.order(num_waiting))
        step = next((step for step in steps if step is not None), None)
        self._move_waiting()
        return step

    def process(self, step: ScheduledStep, read: Sequence[SampledRows]) -> list[NewTokens]:
        """Take a step's tokens into the requests of its ranks.

        Args:
            read: sampled rows of each of the step's parts.
        """
        outputs: list[NewTokens] = []
        for (rank, batch), of_rank in zip(step.parts, read, strict=True):
            outputs += self.schedulers[rank].process(batch, [of_rank])
        return outputs

    def check_integrity(self) -> None:
        """Check the page and cache invariants of each rank."""
        for scheduler in self.schedulers:
            scheduler.check_integrity()

    def stats(self) -> list[RankStats]:
        """Counters of each rank."""
        return [stats for scheduler in self.schedulers for stats in scheduler.stats()]

    def page_maps(self) -> list[PageMap]:
        """The page map of each rank."""
        return [page_map for scheduler in self.schedulers for page_map in scheduler.page_maps()]

    def _plan(self, step_class: StepClass) -> JointStep | None:
        if step_class == "foreground":
            expect_foreground(self.share, [scheduler.running for scheduler in self.schedulers])
        planners = [scheduler.planner for scheduler in self.schedulers]
        batches = [planner.plan(step_class) for planner in planners]
        kinds = {batch.kind for batch in batches if batch is not None}
        if not kinds:
            return None
        if "prefill" in kinds and len(kinds) > 1:
            max_rows = min(self.buckets.max_prefill_requests, planners[0].max_step_tokens)
            batches = [_as_prefill(batch, max_rows) for batch in batches]
        elif len(kinds) > 1:
            num_rows = max(batch.num_rows for batch in batches if batch is not None)
            can_verify = self.buckets.pick_verify(num_rows) is not None
            batches = [_as_verify(batch) if can_verify else _without_drafts(batch) for batch in batches]
        # Where a step is either prefill or decode, the ranks take these turns together.
        prefilled = any(planner.prefilled_last for planner in planners)
        for planner in planners:
            planner.take_turn(prefilled=prefilled)
        caches = [scheduler.cache for scheduler in self.schedulers]
        final = (one if one is None else cache.with_copies(one) for cache, one in zip(caches, batches, strict=True))
        return JointStep(tuple(final))

    def _move_waiting(self) -> None:
        """Moves one request into each rank whose queue is empty and which has room for it, from the longest
        of the queues that stand still: their rank is full."""
        for idle in self.schedulers:
            if len(idle.waiting):
                continue
            full = max(self.schedulers, key=lambda scheduler: len(scheduler.waiting))
            request = None if full.clock.reason == "step" else _first_free(full)
            if request is None or request.num_unread or not request.shares_prefix or not _has_room(idle, request):
                continue  # what shares no prefix computes what its own rank has cached again, see CacheSelfCheck
            full.forget(request)
            idle.add(request)

    def _count_loads(self) -> list[int]:
        if self._loads is None:
            members = (itertools.chain(scheduler.running, scheduler.waiting) for scheduler in self.schedulers)
            self._loads = [sum(request.num_known_tokens for request in requests) for requests in members]
        return self._loads

    def _count_cached(self, request: Request) -> list[int]:
        return [scheduler.cache.num_cached_tokens(request) for scheduler in self.schedulers]


EngineScheduler = Scheduler | DataParallelScheduler
"""The scheduler of an engine: of its only rank, or of several."""


def _has_room(idle: Scheduler, request: Request) -> bool:
    """Whether the scheduler could admit a request at once, if it waited there."""
    return idle.kv_budget.room(request, idle.buckets).suffices()


def _first_free(full: Scheduler) -> Request | None:
    """Who is next; if their caller chose the rank, the first of those who came behind and are free to leave it."""
    first = full.waiting.peek()
    if first is None or first.given.options.dp_rank is None:
        return first
    return next((r for r in itertools.islice(full.waiting, WINDOW) if r.given.options.dp_rank is None), None)


def _as_verify(batch: ScheduledBatch | None) -> ScheduledBatch | None:
    """A batch of decode rows as part of a step in which other ranks have drafts."""
    return None if batch is None else dataclasses.replace(batch, kind="verify")


def _without_drafts(batch: ScheduledBatch | None) -> ScheduledBatch | None:
    """A batch as part of a decode step: another rank has too many requests for drafts."""
    if batch is None or batch.kind == "decode":
        return batch
    return dataclasses.replace(batch, kind="decode", decodes=batch.decodes.cut(batch.num_rows))


def _prompt_of(request: Request) -> Hashable:
    given = request.given
    return given.options.cache_salt, hash((*given.prompt_ids, *(part.digest for part in given.media)))


def _as_prefill(batch: ScheduledBatch | None, max_rows: int) -> ScheduledBatch | None:
    """A batch as part of a prefill step. Decode rows have one token there, and those for which there is no room, with
    the longest outputs, wait for the next step."""
    if batch is None or batch.kind == "prefill":
        return batch
    return dataclasses.replace(batch, kind="prefill", decodes=batch.decodes.cut(max_rows))
