"""Observers that count: for how long the device waits for the host, and programs that steps compile by a defect."""

import dataclasses
import logging
import time

from palladio.runtime.core.watch.step_observer import StepObserver
from palladio.runtime.execution.batch.reading import InFlightStep
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.messages.engine_stats import EngineStats
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledStep
from palladio.runtime.telemetry.histogram import Histogram

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

    def after_dispatch(self, step: InFlightStep) -> None:
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
