"""What a request that has not ended is doing, and what it waits for."""

import itertools

from palladio.runtime.messages import LiveRequest
from palladio.runtime.request import Request
from palladio.runtime.request_trace import QueueState
from palladio.runtime.scheduler import Scheduler


def explain_request(scheduler: Scheduler, request_id: str) -> LiveRequest | None:
    """The state of the request with this engine-side id; None: it has ended, or never was."""
    request = scheduler.find(request_id)
    if request is None:
        return None
    trace = request.trace_so_far(scheduler.compile_seconds)
    waits = request in scheduler.waiting
    if waits:
        trace.waits.add_since(scheduler.clock.leave(), request.wait_mark)
    if request.decode_mark is not None:
        trace.decode = trace.decode.plus(scheduler.decode_steps.since(request.decode_mark))
    return LiveRequest(
        request_id,
        "waiting" if waits else "running",
        request.times(None),
        trace,
        prompt_tokens=request.num_prompt_tokens,
        computed_tokens=request.num_computed,
        completion_tokens=request.num_output_tokens,
        cached_tokens=request.num_cached_tokens,
        num_retractions=request.num_retractions,
        queue=_queue_state(scheduler, request) if waits else None,
    )


def num_retracted_waiting(scheduler: Scheduler) -> int:
    """Requests that lost their pages and have not got them back; they stand at the head of the queue."""
    return sum(1 for _ in itertools.takewhile(lambda request: request.num_retractions, scheduler.waiting))


def _queue_state(scheduler: Scheduler, request: Request) -> QueueState:
    position = next(number for number, other in enumerate(scheduler.waiting, start=1) if other is request)
    size, max_running = scheduler.cache.page_size, scheduler.limits.max_running
    return QueueState(
        scheduler.clock.reason,
        position=position,
        length=len(scheduler.waiting),
        running=len(scheduler.running),
        max_running=max_running,
        open_running=min(max_running, scheduler.buckets.max_requests),
        pages_needed=-(-scheduler.needed_tokens(request) // size),
        pages_available=scheduler.cache.num_available_pages,
    )
