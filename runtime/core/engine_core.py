"""EngineCore: the engine at token level, in one thread. `step` is schedule, execute, process."""

import dataclasses
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Self

import jax

from palladio.runtime.core.cache_self_check import CacheSelfCheck
from palladio.runtime.core.device_idle import DeviceIdle
from palladio.runtime.core.dp_stats import num_waiting_tokens, rank_stats
from palladio.runtime.core.explain import explain_requests, num_retracted_waiting
from palladio.runtime.core.startup import build_engine_parts
from palladio.runtime.core.step_logger import StepLogger
from palladio.runtime.core.step_timer import StepTimer
from palladio.runtime.core.step_tracer import StepTracer
from palladio.runtime.execution.compile_monitor import CompileMonitor
from palladio.runtime.execution.model_runner import InFlightStep, ModelRunner
from palladio.runtime.execution.out_of_memory import is_out_of_memory, step_advice
from palladio.runtime.execution.program_cache import ProgramError
from palladio.runtime.execution.token_masks import Int32Array, build_masks
from palladio.runtime.grammar.compiler import GrammarCompiler
from palladio.runtime.interface.config import EngineConfig
from palladio.runtime.interface.errors import OverloadedError
from palladio.runtime.interface.messages import (
    AddRequest,
    CompileStats,
    EngineReady,
    EngineStats,
    LiveRequest,
    LoadProgress,
    MemoryReport,
)
from palladio.runtime.interface.outputs import FinishReason, TokenOutput
from palladio.runtime.interface.profile_options import ProfileOptions, ProfileReport
from palladio.runtime.multihost.bootstrap import lead
from palladio.runtime.multihost.coordinator import HostCoordinator
from palladio.runtime.scheduling.dp_scheduler import DataParallelScheduler
from palladio.runtime.scheduling.grammar_queue import GrammarQueue
from palladio.runtime.scheduling.request import Request, RequestStatus
from palladio.runtime.scheduling.scheduled_batch import ScheduledStep
from palladio.runtime.scheduling.token_acceptance import constraint_failure
from palladio.runtime.telemetry.profiler import Profiler
from palladio.runtime.telemetry.watchdog import Activity

MAX_STALLED = 1000  # what one plan lets go, the next one may use; more is a defect

logger = logging.getLogger("palladio.engine")


class EngineCore:
    """Schedules requests and runs the device. Not thread-safe: one thread calls it (see `engine_loop`).

    Attributes:
        ready: the limits that start-up settled on.
        activity: what the thread is at; whoever compiles during a step says so here.
    """

    def __init__(
        self,
        config: EngineConfig,
        ready: EngineReady,
        groups: DataParallelScheduler,
        runner: ModelRunner,
        monitor: CompileMonitor,
        memory: MemoryReport,
        grammars: GrammarCompiler,
        hosts: HostCoordinator | None = None,
    ) -> None:
        self.ready = ready
        self.activity = Activity()
        self._groups = groups
        self._runner = runner
        self._monitor = monitor
        self._memory = memory
        self._grammars = GrammarQueue(grammars, tuple(ready.eos_token_ids))
        self._hosts = hosts
        self._fails_on_recompile = config.execution.fail_on_recompile
        self._num_recompiles = 0
        self._num_recovery_compiles = 0
        self._num_recoveries = 0
        self._num_stalled = 0  # plans in a row that were empty, while nothing ran and requests waited
        runner.programs.built.announce = self.activity.compiling
        self._log = StepLogger(groups, config.execution.decode_log_interval)
        # Steps that run ahead of the host: 1 keeps the device busy while the host reads and plans.
        self._max_in_flight = 0 if config.scheduler.disable_overlap_schedule else 1
        self._in_flight: deque[InFlightStep] = deque()
        self._idle = DeviceIdle()
        self._clock = StepTimer()
        self._tracer = StepTracer(groups)
        self._profiler = Profiler(self.activity)
        self._self_check = CacheSelfCheck(
            config.cache.cache_self_check, groups, runner.page_difference, ready.random_seed
        )

    @classmethod
    def create(
        cls,
        config: EngineConfig,
        on_progress: Callable[[LoadProgress], None],
        on_fatal: Callable[[str], None] = lambda message: None,
    ) -> Self:
        """Loads the model, allocates the cache and compiles every program.

        Args:
            on_fatal: called in another thread when another host is lost.

        Raises:
            ConfigError: a flag, the model's config or its checkpoint (CheckpointError) is wrong.
            HostLostError: another host did not come.
        """
        hosts = None
        if config.parallel.num_hosts > 1:
            hosts, config = lead(config, on_fatal)
        try:
            parts = build_engine_parts(config, on_progress, hosts)
        except BaseException as error:
            if hosts is not None:
                hosts.close(f"host 0 could not start: {error}")
            raise
        if hosts is not None:
            parts.runner.executor.on_call = hosts.call
            parts.runner.programs.built.alongside = hosts.building
        return cls(config, parts.ready, parts.groups, parts.runner, parts.monitor, parts.memory, parts.grammars, hosts)

    @property
    def has_work(self) -> bool:
        has_requests = self._groups.has_requests or bool(self._in_flight) or self._grammars.has_requests
        return has_requests or self._self_check.has_work

    @property
    def spare_seconds(self) -> float:
        """Of a step of background requests alone most of the time: whoever comes then does not wait for another one."""
        turns = self._groups.turns
        if not self._in_flight or not turns.is_background_only:
            return 0.0
        expected = turns.share.expected_seconds(self._in_flight[-1].planned, self._groups.buckets)
        return self._clock.spare(expected)

    def add(self, request: AddRequest) -> None:
        """Queues a request.

        Raises:
            OverloadedError: the queue is full.
        """
        new = Request.from_message(request)
        if not request.resent and not new.options.background:
            self._groups.check_queue(self._grammars.num_requests)
        if self._grammars.is_ready(new):
            self._groups.add(new)
        else:
            self._grammars.add(new)

    def abort(self, request_ids: list[str]) -> None:
        """Ends requests without output and frees their pages; unknown ids are ignored."""
        for request_id in request_ids:
            if not self._groups.abort(request_id):
                self._grammars.abort(request_id)

    def step(self) -> list[TokenOutput]:
        """Dispatches one step if there is one, and returns the tokens of the step before it (and what has expired)."""
        num_compiles = self._num_unannounced_compiles()
        self._groups.use(self._runner.buckets(), self._runner.programs.built.lazy_seconds)
        outputs = self._groups.expire()
        if self._grammars.has_requests:
            outputs += self._take_from_desk()
        self._self_check.give_way()
        if not self._groups.has_requests:
            self._self_check.start()
        planned = self._groups.schedule()
        self._check_stall(planned)
        if planned is not None:
            outputs += self._execute(planned)
            self._profiler.step()
        self._groups.use(self._groups.buckets, self._runner.programs.built.lazy_seconds)
        outputs += self._process(keep=0 if planned is None else self._max_in_flight)
        if not self._groups.has_requests:
            self._idle.rest()
        if self._num_unannounced_compiles() != num_compiles:
            self._on_recompile(self._num_unannounced_compiles() - num_compiles)
        return outputs

    def close(self, failure: str = "") -> None:
        """What is compiled in the background ends with the present program, and so does a profile; other hosts end.

        Args:
            failure: why, if it is no orderly end.
        """
        self._grammars.close()
        self._runner.programs.built.cancel()
        self._profiler.close()
        if self._hosts is not None:
            self._hosts.close(f"host 0 failed: {failure}" if failure else "")

    def flush_cache(self) -> None:
        """Drops the prefix cache and the compiled grammars.

        Raises:
            OverloadedError: requests are running.
        """
        self._self_check.cancel()
        if self._groups.has_requests or self._grammars.has_requests:
            raise OverloadedError("The cache can only be flushed when no request runs")
        self._groups.flush()
        self._grammars.flush()

    def explain(self, request_ids: list[str]) -> list[LiveRequest]:
        """What these requests do and wait for, without those that have ended."""
        found = [explain_requests(scheduler, request_ids) for scheduler in self._groups.schedulers]
        return list(itertools.chain(*found, self._grammars.explain(request_ids)))

    def start_profile(self, options: ProfileOptions) -> None:
        """See Profiler.start."""
        self._profiler.start(options)

    def stop_profile(self) -> ProfileReport | None:
        """See Profiler.stop."""
        return self._profiler.stop()

    def stats(self, *, check_integrity: bool = False) -> EngineStats:
        """A snapshot. Args: check_integrity: look for pages and slots that are owned wrongly, if nothing runs."""
        groups, schedulers = self._groups, self._groups.schedulers
        is_still = not groups.num_running and not self._self_check.is_running
        return EngineStats(
            num_running=groups.num_running,
            num_waiting=groups.num_waiting + self._grammars.num_requests,
            num_used_tokens=sum(scheduler.cache.num_used_tokens for scheduler in schedulers),
            num_total_tokens=groups.num_total_tokens,
            last_gen_throughput=self._log.last_gen_throughput,
            num_compiles_after_ready=self._num_recompiles,
            integrity_error=self._integrity_error() if check_integrity and is_still else None,
            cache=dataclasses.replace(
                groups.cache_stats(),
                num_self_checks=self._self_check.num_checks,
                num_self_check_failures=self._self_check.num_failures,
            ),
            device_idle=self._idle.histogram.data(),
            new_token_ratio=max(scheduler.kv_budget.ratio.value for scheduler in schedulers),
            num_retracted_waiting=sum(map(num_retracted_waiting, schedulers)),
            num_retractions=sum(scheduler.clock.num_retracted for scheduler in schedulers),
            num_waiting_tokens=sum(map(num_waiting_tokens, schedulers)) + self._grammars.num_tokens,
            steps=self._tracer.stats(),
            groups=rank_stats(groups, self._log.group_throughputs),
            compile=self._compile_stats(),
            memory=self._memory,
            num_grammars=self._grammars.num_grammars,
            grammar_bytes=self._grammars.num_grammar_bytes,
        )

    def check_integrity(self) -> None:
        """Raises AssertionError if a page or a slot is owned twice or by nobody."""
        self._groups.check_integrity()

    def _execute(self, planned: ScheduledStep) -> list[TokenOutput]:
        """Dispatches a step; returns what comes of it at once: nothing, but for errors and constrained requests."""
        self._idle.look()
        started = time.perf_counter()
        outputs: list[TokenOutput] = []
        try:
            forward = self._runner.forward(planned)
            masks = None
            if planned.is_constrained:
                num_recoveries = self._num_recoveries
                outputs = self._process(keep=0)  # masks depend on the tokens of the step before, which has run
                if self._num_recoveries != num_recoveries:
                    return outputs  # the state that this step began with is gone
                masks = self._masks(planned, forward.host.num_sampled, outputs)
            step = self._runner.sample(forward, masks)
        except ProgramError as error:
            if self._hosts is not None:  # they may have made the call
                raise
            outputs += self._fail(planned, str(error))
            self._groups.flush()  # it counts on pages that this step should have filled
            return outputs
        except jax.errors.JaxRuntimeError as error:
            self._self_check.cancel()
            outputs += self._process(keep=0)
            return outputs + self._recover(planned, error)
        self._idle.dispatched(step, started)
        self._clock.dispatched()
        self._in_flight.append(step)
        self._self_check.note(planned)
        num_tokens = [batch.num_tokens for _, batch in planned.parts]
        self._tracer.dispatched(planned, num_tokens, step.bucket_size)
        self._log.log_step(planned, num_tokens, step.bucket_size)
        return outputs

    def _check_stall(self, planned: ScheduledStep | None) -> None:
        """An engine whose requests can never go on ends with an error; it would try for ever."""
        is_stalled = planned is None and not self._in_flight and self._groups.has_requests
        self._num_stalled = self._num_stalled + 1 if is_stalled else 0
        if self._num_stalled > MAX_STALLED:
            raise RuntimeError("Requests wait, nothing runs, and no step can be planned: a defect, please report it")

    def _masks(self, planned: ScheduledStep, num_rows: int, outputs: list[TokenOutput]) -> list[Int32Array]:
        """What each row may sample, while the device computes the logits; requests whose grammar fails end."""
        masks, failures = build_masks(planned, num_rows, self._runner.programs.mask_width, self._grammars.backend)
        outputs += [self._groups.fail(request, constraint_failure(request, why)) for request, why in failures]
        return masks

    def _take_from_desk(self) -> list[TokenOutput]:
        """Queues the requests whose grammar is compiled; returns the ends of the others."""
        outputs: list[TokenOutput] = []
        is_idle = not self._groups.has_requests and not self._in_flight
        for request, failure in self._grammars.take(wait=is_idle):
            if failure is None:
                self._groups.add(request)
            else:
                outputs.append(TokenOutput(request.request_id, [], finish=failure))
        return outputs

    def _process(self, keep: int) -> list[TokenOutput]:
        outputs: list[TokenOutput] = []
        while len(self._in_flight) > keep:
            step = self._in_flight.popleft()
            waits = not step.is_done
            try:
                read = self._runner.read(step)
                self._self_check.compare(step.planned)
            except jax.errors.JaxRuntimeError as error:
                return outputs + self._recover(step.planned, error)
            if waits:
                self._idle.waited(step)
            self._groups.turns.note(step.planned, self._clock.read(), self._groups.buckets)
            self._idle.look()
            self._tracer.read(step.planned, step.num_steps)
            outputs += self._groups.process(step.planned, read)
            self._idle.look()
        return outputs

    def _recover(self, planned: ScheduledStep, error: jax.errors.JaxRuntimeError) -> list[TokenOutput]:
        """After a step for which the device's memory did not suffice: its requests fail, all others start over.

        Raises:
            JaxRuntimeError: it is another error; there are other hosts; or there is no memory for the state either.
        """
        if self._hosts is not None or not is_out_of_memory(error):
            raise error
        advice = step_advice(self._memory, self._groups.num_total_tokens)
        message = f"The device ran out of memory in this request's step; {advice}"
        logger.error("%s. %d requests fail, the others start over. XLA says: %s", message, len(planned.rows), error)
        self._in_flight.clear()
        self._clock.forget()
        self._num_recoveries += 1
        self._tracer.forget()
        self._idle.rest()
        self._self_check.cancel()
        outputs = self._fail(planned, message)
        self._groups.start_over()
        compiles = self._monitor.count_here().compiles
        self._runner.executor.reset_state()
        self._num_recovery_compiles += self._monitor.count_here().compiles - compiles
        return outputs

    def _fail(self, planned: ScheduledStep, message: str) -> list[TokenOutput]:
        """Ends the requests of a step."""
        finish = FinishReason("abort", message=message, status=500)
        requests = [row.request for row in planned.rows if row.request.status is not RequestStatus.FINISHED]
        return [self._groups.fail(request, finish) for request in requests]

    def _num_unannounced_compiles(self) -> int:
        """What XLA has compiled in this thread, but for the programs of the set and what a recovery takes."""
        announced = self._runner.programs.built.num_lazy_compiles + self._num_recovery_compiles
        return self._monitor.count_here().compiles - announced

    def _on_recompile(self, count: int) -> None:
        self._num_recompiles += count
        message = "A step compiled something after start-up: a defect, please report it"
        if self._fails_on_recompile:
            raise RuntimeError(message)
        logger.error(message)

    def _compile_stats(self) -> CompileStats:
        built = self._runner.programs.built
        return CompileStats(len(built.declared), list(built.reports), built.lazy_seconds)

    def _integrity_error(self) -> str | None:
        try:
            self.check_integrity()
        except AssertionError as error:
            return str(error)
        return None
