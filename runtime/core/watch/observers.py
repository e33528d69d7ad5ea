"""Observers of steps: what only watches, so that without it tokens and page ownership are the same."""

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

from palladio.runtime.core.watch.watched_request import Moment, WatchedRequest, WatchedRow
from palladio.runtime.execution.batch.step_results import InFlightStep
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.messages.engine_stats import EngineStats, LiveRequest
from palladio.runtime.interface.outputs.step_tokens import NewTokens
from palladio.runtime.interface.outputs.timeline import QueueReason
from palladio.runtime.interface.outputs.token_output import TokenOutput
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledStep
from palladio.runtime.scheduling.dp_scheduler import DataParallelScheduler
from palladio.runtime.scheduling.state.request import Request, RequestStatus
from palladio.runtime.telemetry.logs import Histogram
from palladio.runtime.telemetry.profiler import Profiler


class StepObserver:
    """Told of what `EngineCore.step` does, in the engine's thread. A class overrides the hooks that it needs.

    Not here, but called by name in `EngineCore`: whatever acts on the requests in an order that matters.
    """

    def before_step(self) -> None:
        """Nothing is scheduled yet."""

    def before_dispatch(self) -> None:
        """A step is scheduled, and nothing of it dispatched."""

    def after_dispatch(self, step: InFlightStep, num_tokens: Sequence[int]) -> None:
        """The device has all of a step. Args: num_tokens: of each of its batches (`ScheduledStep.parts`)."""

    def before_process(self, step: InFlightStep, waited: bool) -> None:
        """A step's tokens are there. Args: waited: the host waited for them."""

    def after_process(self, planned: ScheduledStep) -> None:
        """The scheduler has a step's tokens."""

    def after_outputs(self, outputs: Sequence[NewTokens]) -> None:
        """What the core gives back, whatever it comes of."""

    def after_add(self, request: Request) -> None:
        """A request has come."""

    def after_abort(self, request_ids: Sequence[str]) -> None:
        """These have ended without output, or are not there."""

    def after_loss(self) -> None:
        """The steps under way will never be read: the device has lost its state."""

    def after_step(self, is_idle: bool) -> None:
        """Args: is_idle: no request is left that could run."""

    def add_to(self, stats: EngineStats) -> EngineStats:
        """The snapshot with what this observer knows."""
        return stats

    def add_to_request(self, request: LiveRequest) -> None:
        """Adds what this observer knows of a request that has not ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepHooks:
    """The hooks of several observers, those alone that one of them overrides: they run at every step."""

    before_step: list[Callable[[], None]]
    before_dispatch: list[Callable[[], None]]
    after_dispatch: list[Callable[[InFlightStep, Sequence[int]], None]]
    before_process: list[Callable[[InFlightStep, bool], None]]
    after_process: list[Callable[[ScheduledStep], None]]
    after_outputs: list[Callable[[Sequence[NewTokens]], None]]
    after_add: list[Callable[[Request], None]]
    after_abort: list[Callable[[Sequence[str]], None]]
    after_loss: list[Callable[[], None]]
    after_step: list[Callable[[bool], None]]

    @classmethod
    def of(cls, observers: Sequence[StepObserver]) -> Self:
        none, every = StepObserver, [(observer, type(observer)) for observer in observers]
        return cls(
            [one.before_step for one, kind in every if kind.before_step is not none.before_step],
            [one.before_dispatch for one, kind in every if kind.before_dispatch is not none.before_dispatch],
            [one.after_dispatch for one, kind in every if kind.after_dispatch is not none.after_dispatch],
            [one.before_process for one, kind in every if kind.before_process is not none.before_process],
            [one.after_process for one, kind in every if kind.after_process is not none.after_process],
            [one.after_outputs for one, kind in every if kind.after_outputs is not none.after_outputs],
            [one.after_add for one, kind in every if kind.after_add is not none.after_add],
            [one.after_abort for one, kind in every if kind.after_abort is not none.after_abort],
            [one.after_loss for one, kind in every if kind.after_loss is not none.after_loss],
            [one.after_step for one, kind in every if kind.after_step is not none.after_step],
        )


class ProfiledSteps(StepObserver):
    """Counts the steps of a profile."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler

    def after_dispatch(self, step: InFlightStep, num_tokens: Sequence[int]) -> None:
        if self._profiler.profile is not None:
            self._profiler.step()


class PublishedPages(StepObserver):
    """Publishes what has changed in the prefix cache, a batch a step."""

    def __init__(self, scheduler: DataParallelScheduler) -> None:
        self._events = scheduler.events

    def after_step(self, is_idle: bool) -> None:
        for events in self._events:
            events.send()

    def after_abort(self, request_ids: Sequence[str]) -> None:
        self.after_step(is_idle=False)


# Seconds. The finest are what a well-fed device needs between two programs, the coarsest what a person notices.
BOUNDS = (0.0, 1e-5, 2e-5, 4e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 1.0)


class DeviceIdle(StepObserver):
    """A histogram of the device's idle time before each step, never underestimated by more than a thread's wake-up.

    The newest step was last known to run at some moment; the next one was dispatched at a later one. In between the
    device may have been idle. If the newest step still runs when the next one has been dispatched, there is no gap.

    Attributes:
        histogram: seconds; steps after which there was no work do not count.
    """

    def __init__(self) -> None:
        self.histogram = Histogram(BOUNDS)
        self._newest: InFlightStep | None = None
        self._seen_running = 0.0
        self._started = 0.0  # when the latest dispatch began: its step cannot have ended earlier

    def before_dispatch(self) -> None:
        self._look()
        self._started = time.perf_counter()

    def after_dispatch(self, step: InFlightStep, num_tokens: Sequence[int]) -> None:
        if self._newest is not None:
            idle = time.perf_counter() - self._seen_running if self._newest.is_done else 0.0
            self.histogram.observe(idle)
        self._newest, self._seen_running = step, self._started

    def before_process(self, step: InFlightStep, waited: bool) -> None:
        if waited and step is not self._newest:  # if another one follows, that has only begun
            self._seen_running = time.perf_counter()
        self._look()

    def after_process(self, planned: ScheduledStep) -> None:
        self._look()

    def after_loss(self) -> None:
        self._newest = None

    def after_step(self, is_idle: bool) -> None:
        if is_idle:  # what comes now is not idleness
            self._newest = None

    def add_to(self, stats: EngineStats) -> EngineStats:
        return dataclasses.replace(stats, device_idle=self.histogram.data())

    def _look(self) -> None:
        """Called between the host's tasks: the more often, the tighter the bound."""
        if self._newest is not None and not self._newest.is_done:
            self._seen_running = time.perf_counter()


logger = logging.getLogger("palladio.engine")


class RecompileCounter(StepObserver):
    """
    Args:
        fails: see --fail-on-recompile.
    """

    def __init__(self, built: ProgramCache[ProgramKey], *, fails: bool) -> None:
        self._built = built
        self._fails = fails
        self._num_before = 0
        self._num_recompiles = 0

    def before_step(self) -> None:
        self._num_before = self._built.num_unexpected_compiles

    def after_step(self, is_idle: bool) -> None:
        """
        Raises:
            RuntimeError: the step compiled something, and this is to end the engine.
        """
        count = self._built.num_unexpected_compiles - self._num_before
        if not count:
            return
        self._num_recompiles += count
        message = "A step compiled something after start-up: a defect, please report it"
        if self._fails:
            raise RuntimeError(message)
        logger.error(message)

    def add_to(self, stats: EngineStats) -> EngineStats:
        return dataclasses.replace(stats, num_compiles_after_ready=self._num_recompiles)


class TimelineRecorder(StepObserver):
    """Told of every step; does nothing but look at an empty dictionary while nobody asks.

    A step lasts as its requests feel it: from the end of the one before, as the host has read it, or from its own
    dispatch if that was later. So the parts of a timeline do not overlap.
    """

    def __init__(self, scheduler: DataParallelScheduler) -> None:
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

    def after_dispatch(self, step: InFlightStep, num_tokens: Sequence[int]) -> None:
        if not self._watched:
            return
        found: list[WatchedRow] = []
        for (_, batch), count in zip(step.planned.parts, num_tokens, strict=True):
            for row in batch.rows:
                watched = self._watched.get(row.request.given.request_id)
                if watched is not None:
                    found.append(watched.plan(row, step, batch, count, self._began))
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
        found = self._scheduler.find(request.given.request_id)
        return "grammar" if found is None else self._scheduler.schedulers[found[0]].clock.reason


_SPARED = 0.8  # of a step's expected time: the rest is for the host, and for steps that end early


class StepTimer:
    """How long each step takes, as the requests feel it: from the end of the one before, as the host has read it, or
    from its own dispatch if that was later."""

    def __init__(self) -> None:
        self._dispatched: deque[float] = deque()
        self._last_read = 0.0

    def dispatched(self) -> None:
        self._dispatched.append(time.perf_counter())

    def read(self) -> float:
        """Seconds of the step that was dispatched longest ago."""
        begun = max(self._dispatched.popleft(), self._last_read)
        self._last_read = time.perf_counter()
        return self._last_read - begun

    def spare(self, expected: float) -> float:
        """How much of the newest step, which is expected to take so long, is left until the next one has to be
        dispatched, so that the device does not wait for it."""
        begun = max(self._dispatched[-1], self._last_read)
        return max(0.0, begun + expected * _SPARED - time.perf_counter())

    def forget(self) -> None:
        """The dispatched steps will not be read."""
        self._dispatched.clear()
