"""Observers that pass each step on: to a profile, and to subscribers of KV events."""

from collections.abc import Sequence

from palladio.runtime.core.watch.step_observer import StepObserver
from palladio.runtime.execution.batch.reading import InFlightStep
from palladio.runtime.scheduling.dp_scheduler import EngineScheduler
from palladio.runtime.telemetry.profiler import Profiler


class ProfiledSteps(StepObserver):
    """Counts the steps of a profile."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler

    def after_dispatch(self, step: InFlightStep) -> None:
        if self._profiler.profile is not None:
            self._profiler.step()


class PublishedPages(StepObserver):
    """Publishes what has changed in the prefix cache, a batch a step."""

    def __init__(self, scheduler: EngineScheduler) -> None:
        self._events = scheduler.events

    def after_step(self, is_idle: bool) -> None:
        for events in self._events:
            events.send()

    def after_abort(self, request_ids: Sequence[str]) -> None:
        self.after_step(is_idle=False)
