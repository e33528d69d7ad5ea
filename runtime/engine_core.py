"""EngineCore: the engine at token level, in one thread. `step` is schedule, execute, process."""

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from palladio.runtime.cache_self_check import CacheSelfCheck
from palladio.runtime.compilation import CompileMonitor
from palladio.runtime.config import EngineConfig
from palladio.runtime.device_idle import DeviceIdle
from palladio.runtime.errors import OverloadedError
from palladio.runtime.messages import AddRequest, EngineReady, EngineStats, LoadProgress
from palladio.runtime.model_runner import InFlightStep, ModelRunner
from palladio.runtime.outputs import TokenOutput
from palladio.runtime.request import Request
from palladio.runtime.scheduled_batch import ScheduledBatch
from palladio.runtime.scheduler import Scheduler
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
        self._idle = DeviceIdle()
        self._self_check = CacheSelfCheck(
            config.cache.cache_self_check, scheduler, runner.page_difference, ready.random_seed
        )

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
        return self._scheduler.has_requests or bool(self._in_flight) or self._self_check.has_work

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
        """Dispatches one step if there is one, and returns the tokens of the step before it (and what has expired)."""
        num_compiles = self._monitor.num_compiles
        outputs = self._scheduler.expire()
        self._self_check.give_way()
        if not self._scheduler.has_requests:
            self._self_check.start()
        batch = self._scheduler.schedule()
        if batch is not None:
            self._execute(batch)
        outputs += self._process(keep=0 if batch is None else self._max_in_flight)
        if not self._scheduler.has_requests:
            self._idle.rest()
        if self._monitor.num_compiles != num_compiles:
            self._num_compiles_in_steps += self._monitor.num_compiles - num_compiles
            logger.error("A step compiled something after start-up: a defect, please report it")
        return outputs

    def flush_cache(self) -> None:
        """Drops the prefix cache.

        Raises:
            OverloadedError: requests are running.
        """
        self._self_check.cancel()
        if self._scheduler.has_requests:
            raise OverloadedError("The cache can only be flushed when no request runs")
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
            integrity_error=None if self._scheduler.running or self._self_check.is_running else self._integrity_error(),
            cache=dataclasses.replace(
                cache.stats(),
                num_self_checks=self._self_check.num_checks,
                num_self_check_failures=self._self_check.num_failures,
            ),
            device_idle=self._idle.histogram.data(),
        )

    def check_integrity(self) -> None:
        """Raises AssertionError if a page or a slot is owned twice or by nobody."""
        self._scheduler.check_integrity()

    def _execute(self, batch: ScheduledBatch) -> None:
        self._idle.look()
        started = time.perf_counter()
        step = self._runner.execute(batch)
        self._idle.dispatched(step, started)
        self._in_flight.append(step)
        self._self_check.note(batch)
        self._log.log_batch(batch, len(self._scheduler.running), step.num_padding)
        if self._scheduler.retractions:
            self._log.log_retractions(self._scheduler.retractions)
            self._scheduler.retractions.clear()

    def _process(self, keep: int) -> list[TokenOutput]:
        outputs: list[TokenOutput] = []
        while len(self._in_flight) > keep:
            step = self._in_flight.popleft()
            waits = not step.is_done
            read = self._runner.read(step)
            if waits:
                self._idle.waited(step)
            self._idle.look()
            self._self_check.compare(step.batch)
            for number, tokens in enumerate(read):
                outputs += self._scheduler.process(step.batch, tokens, number)
            self._idle.look()
        return outputs

    def _integrity_error(self) -> str | None:
        try:
            self.check_integrity()
        except AssertionError as error:
            return str(error)
        return None
