"""What a request that has not ended is doing, and what it waits for."""

import dataclasses
from collections.abc import Iterable
from typing import Self

from palladio.runtime.interface.messages.engine_stats import LiveRequest, QueueState
from palladio.runtime.scheduling.scheduler import Scheduler
from palladio.runtime.scheduling.state.request import Request, RequestStatus


def explain_requests(scheduler: Scheduler, request_ids: Iterable[str]) -> list[LiveRequest]:
    """The states of the requests with these engine-side ids. Ids of ended, unknown or other schedulers' requests are
    left out."""
    found = [request for name in request_ids if (request := scheduler.find(name)) is not None]
    queue = _Queue.of(scheduler) if any(request.status is RequestStatus.WAITING for request in found) else None
    return [_explain(scheduler, request, queue) for request in found]


@dataclasses.dataclass(frozen=True, slots=True)
class _Queue:
    """What all that wait have in common.

    Attributes:
        positions: by engine-side id, from 1 on.
        reserved: tokens of cache that running requests are expected to take still.
    """

    positions: dict[str, int]
    reserved: int

    @classmethod
    def of(cls, scheduler: Scheduler) -> Self:
        positions = {request.given.request_id: number for number, request in enumerate(scheduler.waiting, start=1)}
        return cls(positions, scheduler.kv_budget.reserved_tokens(scheduler.running))


def _explain(scheduler: Scheduler, request: Request, queue: _Queue | None) -> LiveRequest:
    trace = request.trace_so_far(scheduler.compile_seconds)
    waits = request.status is RequestStatus.WAITING
    if waits:
        trace.waits.add_since(scheduler.clock.leave(), request.wait_mark)
    if request.decode_mark is not None:
        trace.add_decoding(scheduler.decode_steps.since(request.decode_mark))
    return LiveRequest(
        request.given.request_id,
        "waiting" if waits else "running",
        request.times(None),
        trace,
        prompt_tokens=request.num_prompt_tokens,
        computed_tokens=request.num_computed,
        completion_tokens=request.num_output_tokens,
        cached_tokens=request.num_cached_tokens,
        num_retractions=request.num_retractions,
        queue=_queue_state(scheduler, request, queue) if waits and queue is not None else None,
    )


def _queue_state(scheduler: Scheduler, request: Request, queue: _Queue) -> QueueState:
    size, max_running = scheduler.cache.page_size, scheduler.limits.max_running
    needed = scheduler.kv_budget.needed_tokens(request, scheduler.cache.find_prefix(request), queue.reserved)
    return QueueState(
        scheduler.clock.reason,
        position=queue.positions[request.given.request_id],
        length=len(queue.positions),
        running=len(scheduler.running),
        max_running=max_running,
        open_running=min(max_running, scheduler.buckets.max_requests),
        pages_needed=-(-needed // size),
        pages_available=scheduler.cache.num_available_pages,
    )
