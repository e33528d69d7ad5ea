"""EngineCore: the engine at token level, in one thread. `step` is schedule, execute, process."""

import logging
from collections import deque
from collections.abc import Callable
from typing import Self

from palladio.runtime.compilation import CompileMonitor
from palladio.runtime.config import EngineConfig
from palladio.runtime.errors import OverloadedError
from palladio.runtime.messages import AddRequest, EngineReady, EngineStats, LoadProgress
from palladio.runtime.model_runner import InFlightStep, ModelRunner
from palladio.runtime.outputs import TokenOutput
from palladio.runtime.request import Request
from palladio.runtime.scheduler import ScheduledBatch, Scheduler
from palladio.runtime.startup import build_engine_parts
from palladio.runtime.step_logger import StepLogger

logger = logging.getLogger("palladio.engine")


class EngineCore:
    """Schedules requests and runs the device. Not thread-safe: one thread calls it (see `engine_loop`).

    Attributes:
        ready: the limits that start-up settled on.
    """

    def __init__(
        self,
        config: EngineConfig,
        ready: EngineReady,
        scheduler: Scheduler,
        runner: ModelRunner,
        monitor: CompileMonitor,
    ) -> None:
        self.ready = ready
        self._scheduler = scheduler
        self._runner = runner
        self._monitor = monitor
        self._num_compiles_in_steps = 0
        self._log = StepLogger(scheduler.cache, config.execution.decode_log_interval)
        # Steps that run ahead of the host: 1 keeps the device busy while the host reads and plans.
        self._max_in_flight = 0 if config.scheduler.disable_overlap_schedule else 1
        self._in_flight: deque[InFlightStep] = deque()

    @classmethod
    def create(cls, config: EngineConfig, on_progress: Callable[[LoadProgress], None]) -> Self:
        """Loads the model, allocates the cache and compiles every program.

        Raises:
            ConfigError: a flag, the model's config or its checkpoint (CheckpointError) is wrong.
        """
        parts = build_engine_parts(config, on_progress)
        return cls(config, parts.ready, parts.scheduler, parts.runner, parts.monitor)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_requests or bool(self._in_flight)

    def add(self, request: AddRequest) -> None:
        """Queues a request.

        Raises:
            OverloadedError: the queue is full.
        """
        self._scheduler.add(Request.from_message(request))

    def abort(self, request_ids: list[str]) -> None:
        """Ends requests without output and frees their pages; unknown ids are ignored."""
        for request_id in request_ids:
            self._scheduler.abort(request_id)

    def step(self) -> list[TokenOutput]:
        """Dispatches one step if there is one, and returns the tokens of the step before it."""
        num_compiles = self._monitor.num_compiles
        batch = self._scheduler.schedule()
        if batch is not None:
            self._execute(batch)
        outputs = self._process(keep=0 if batch is None else self._max_in_flight)
        if self._monitor.num_compiles != num_compiles:
            self._num_compiles_in_steps += self._monitor.num_compiles - num_compiles
            logger.error("A step compiled something after start-up: a defect, please report it")
        return outputs

    def flush_cache(self) -> None:
        """Drops the prefix cache.

        Raises:
            OverloadedError: requests are running.
        """
        if self._scheduler.has_requests:
            raise OverloadedError("The cache can only be flushed when no request runs; wait, or pass ?timeout=SECONDS")
        self._scheduler.cache.flush()

    def stats(self) -> EngineStats:
        cache = self._scheduler.cache
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_used_tokens=cache.num_used_tokens,
            num_total_tokens=cache.num_total_tokens,
            last_gen_throughput=self._log.last_gen_throughput,
            num_compiles_after_ready=self._num_compiles_in_steps,
            integrity_error=None if self._scheduler.running else self._integrity_error(),
        )

    def check_integrity(self) -> None:
        """Raises AssertionError if a page or a slot is owned twice or by nobody."""
        self._scheduler.check_integrity()

    def _execute(self, batch: ScheduledBatch) -> None:
        step = self._runner.execute(batch)
        self._in_flight.append(step)
        self._log.log_batch(batch, len(self._scheduler.running), step.num_padding)
        if self._scheduler.retractions:
            self._log.log_retractions(self._scheduler.retractions)
            self._scheduler.retractions.clear()

    def _process(self, keep: int) -> list[TokenOutput]:
        outputs: list[TokenOutput] = []
        while len(self._in_flight) > keep:
            step = self._in_flight.popleft()
            outputs += self._scheduler.process(step.batch, self._runner.read(step))
        return outputs

    def _integrity_error(self) -> str | None:
        try:
            self.check_integrity()
        except AssertionError as error:
            return str(error)
        return None
