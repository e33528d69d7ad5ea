"""EngineCore: the engine at token level, in one thread. `step` is schedule, execute, process."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

import jax

from palladio.runtime.core.start.startup import EngineParts, build_engine_parts
from palladio.runtime.core.watch.cache_self_check import CacheSelfCheck
from palladio.runtime.core.watch.engine_report import EngineReport
from palladio.runtime.core.watch.prefill_reporter import PrefillReporter
from palladio.runtime.core.watch.step_forwarders import ProfiledSteps
from palladio.runtime.core.watch.step_logger import usual_observers
from palladio.runtime.core.watch.step_observer import StepHooks, StepObserver
from palladio.runtime.core.weights.model_control import PAUSE_POLL, ModelControl
from palladio.runtime.execution.batch.reading import InFlightStep
from palladio.runtime.execution.batch.token_masks import Int32Array, build_masks
from palladio.runtime.execution.compiled.out_of_memory import is_out_of_memory, step_advice
from palladio.runtime.execution.compiled.program_cache import ProgramError
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import InvalidRequestError, OverloadedError
from palladio.runtime.interface.messages.calls import ControlReply
from palladio.runtime.interface.messages.engine_state import LoadProgress
from palladio.runtime.interface.messages.engine_stats import EngineStats, LiveRequest
from palladio.runtime.interface.messages.model_messages import ModelMessage
from palladio.runtime.interface.messages.profile_options import ProfileOptions, ProfileReport
from palladio.runtime.interface.outputs.token_output import FinishReason, NewTokens, TokenOutput, one_by_one
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.multihost.bootstrap import lead
from palladio.runtime.multihost.coordinator import HostCoordinator
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledStep
from palladio.runtime.scheduling.policy.grammar_queue import GrammarQueue
from palladio.runtime.scheduling.state.new_tokens import constraint_failure
from palladio.runtime.scheduling.state.request import Request, RequestStatus
from palladio.runtime.telemetry.profiler import ProfileLimits, Profiler

MAX_STALLED = 1000  # what one plan lets go, the next one may use; more is a defect

logger = logging.getLogger("palladio.engine")


class EngineCore:
    """Schedules requests and runs the device. Not thread-safe: one thread calls it (see `engine_loop`).

    Attributes:
        ready: the limits that start-up chose.
        activity: what the thread is at; a compilation during a step is noted here.

    Args:
        profiler: what `start_profile` and `stop_profile` ask; hosts: the others, if there are several.
        observers: watch the steps; see `with_observers` for the usual ones.
    """

    def __init__(
        self,
        config: EngineConfig,
        parts: EngineParts,
        profiler: Profiler,
        observers: Sequence[StepObserver],
        hosts: HostCoordinator | None = None,
    ) -> None:
        ready, scheduler, runner = parts.ready, parts.scheduler, parts.runner
        self.ready, self.activity = ready, parts.activity
        self._scheduler, self._share = scheduler, scheduler.share
        self._tells_one_by_one = scheduler.schedulers[0].limits.joined_passes > 1
        self._runner = runner
        self._built = runner.programs.built
        self._known_programs = -1, 0.0  # how many the scheduler knows to be built, and how long steps waited for them
        self._memory = parts.memory
        self._control = ModelControl(parts.model_memory, scheduler, parts.activity, parts.tell)
        self._mask_width = runner.shape.mask_width
        self._grammars = GrammarQueue(parts.grammars, tuple(ready.eos_token_ids))
        self._profiler, self._profiled_steps, self._prefills = profiler, ProfiledSteps(profiler), PrefillReporter()
        self._observers = tuple(observers)
        self._hooks = StepHooks.of(self._observers)
        self._hosts = hosts
        self._num_recoveries = 0
        self._num_stalled = 0  # plans in a row that were empty, while nothing ran and requests waited
        # Steps that run ahead of the host: 1 keeps the device busy while the host reads and plans.
        self._max_in_flight = 0 if config.scheduler.disable_overlap_schedule else 1
        self._in_flight: deque[InFlightStep] = deque()
        rate = config.cache.cache_self_check
        self._self_check = CacheSelfCheck(rate, scheduler, runner.page_difference, ready.random_seed)
        self._checks_cache = rate > 0.0
        self._report = EngineReport(scheduler, runner, self._grammars, self._self_check, parts.memory, self._observers)

    @classmethod
    def create(
        cls,
        config: EngineConfig,
        on_progress: Callable[[LoadProgress], None],
        on_fatal: Callable[[str], None] = lambda message: None,
    ) -> Self:
        """Loads the model, allocates the cache and compiles every program.

        Args:
            on_fatal: called in another thread when another host is lost, or the trial of a kernel hangs.

        Raises:
            ConfigError: a flag, the model's config or its checkpoint (CheckpointError) is wrong.
            DeviceTakenError: another process has the device.
            HostLostError: another host did not come.
        """
        hosts = None
        if config.parallel.num_hosts > 1:
            hosts, config = lead(config, on_fatal, on_progress)
        try:
            parts = build_engine_parts(config, on_progress, hosts, on_fatal)
        except BaseException as error:
            if hosts is not None:
                hosts.close(f"host 0 could not start: {error}")
            raise
        return cls.with_observers(config, parts, hosts)

    @classmethod
    def with_observers(
        cls,
        config: EngineConfig,
        parts: EngineParts,
        hosts: HostCoordinator | None = None,
        profile_limits: ProfileLimits | None = None,
    ) -> Self:
        """An engine that counts, logs and profiles its steps."""
        profiler = Profiler(parts.activity, profile_limits or ProfileLimits())
        return cls(config, parts, profiler, usual_observers(config, parts), hosts)

    @property
    def has_work(self) -> bool:
        has_requests = self._scheduler.has_requests or bool(self._in_flight) or bool(self._grammars.waiting)
        return has_requests or (self._checks_cache and self._self_check.has_work)

    @property
    def spare_seconds(self) -> float:
        """How long the next step may wait: a pause, or most of a step of background requests alone, so that a request
        which comes meanwhile does not wait for another one of these."""
        if self._control.is_stopped:
            return PAUSE_POLL
        if not self._share.num_background or not self._in_flight:
            return 0.0
        newest = self._in_flight[-1]
        return self._share.spare_seconds(newest.planned, newest.dispatched, self._scheduler.buckets)

    def add(self, request: GenerationRequest) -> None:
        """Queues a request.

        Raises:
            InvalidRequestError: a part of its prompt is gone, or fits no step; or a request of its id has not ended.
            OverloadedError: the queue is full.
        """
        params, name = request.params, request.request_id
        if self._scheduler.find(name) is not None or name in self._grammars.waiting:
            raise InvalidRequestError(f"a request with id {name!r} is already running", param="rid")
        new = Request.of(request)
        self._scheduler.check(new, len(self._grammars.waiting))
        is_free = (params.grammar, params.thinking, params.allowed_token_ids) == (None, None, None)
        if is_free or self._grammars.is_ready(new):
            self._scheduler.add(new)
        else:
            self._grammars.add(new)
        if request.options.progress:
            self._hooks.include(self._prefills)
        for added in self._hooks.after_add:
            added(new)

    def abort(self, request_ids: list[str]) -> None:
        """Ends requests without output and frees their pages; unknown ids are ignored."""
        for request_id in request_ids:
            if not self._scheduler.abort(request_id):
                self._grammars.abort(request_id)
        for aborted in self._hooks.after_abort:
            aborted(request_ids)

    def step(self) -> list[NewTokens]:
        """Dispatches one step if there is one, and returns the tokens of the step before it (and what has expired)."""
        if self._control.is_stopped:
            return self._notify([*self._scheduler.expire()])
        for before in self._hooks.before_step:
            before()
        planned, outputs = self._schedule()
        if planned is not None:
            outputs += self._execute(planned)
        outputs += self._process(keep=0 if planned is None else self._max_in_flight)
        for after in self._hooks.after_step:
            after(not self._scheduler.has_requests)
        return self._notify(outputs)

    def steer(self, message: ModelMessage) -> tuple[list[NewTokens], ControlReply]:
        """Apply a control message; return the tokens of steps that were under way, and the reply."""
        outputs = self._process(keep=0)
        self._self_check.cancel()
        return self._notify(outputs), self._control.answer(message)

    def close(self, failure: str = "") -> None:
        """What is compiled in the background ends with the present program, and so does a profile; other hosts end.

        Args:
            failure: why, if it is no orderly end.
        """
        self._grammars.close()
        self._runner.programs.built.cancel()
        self._profiler.close()
        for events in self._scheduler.events:
            events.close()
        if self._hosts is not None:
            self._hosts.close(f"host 0 failed: {failure}" if failure else "")

    def flush_cache(self) -> None:
        """Drops the prefix cache and the compiled grammars.

        Raises:
            OverloadedError: requests are running.
        """
        self._self_check.cancel()
        if self._scheduler.has_requests or self._grammars.waiting:
            raise OverloadedError("The cache can only be flushed while no request is running")
        self._scheduler.flush()
        self._grammars.flush()

    def explain(self, request_ids: list[str]) -> list[LiveRequest]:
        """Returns what these requests do and wait for, without those that have ended."""
        return self._report.explain(request_ids)

    def start_profile(self, options: ProfileOptions) -> None:
        """Start a profile of the device."""
        self._profiler.start(options)
        self._hooks.include(self._profiled_steps)

    def stop_profile(self) -> ProfileReport | None:
        """End the trace and report it; None: it is being written, ask again. Raises as `Profiler.stop`."""
        return self._profiler.stop()

    def stats(self, *, check_integrity: bool = False, pages: bool = False) -> EngineStats:
        """Return statistics. `check_integrity`: check pages and slots, if nothing runs. `pages`: add maps of pages."""
        return self._report.stats(check_integrity=check_integrity, pages=pages)

    def _notify(self, outputs: list[NewTokens]) -> list[NewTokens]:
        """Passes outputs to the observers, then to the front."""
        for after in self._hooks.after_outputs:
            after(outputs)
        # Only who asked for several tokens a step has them in one event.
        return one_by_one(outputs) if self._tells_one_by_one else outputs

    def _schedule(self) -> tuple[ScheduledStep | None, list[NewTokens]]:
        """What the device is to run next, and what has ended without it."""
        self._use_programs()
        outputs: list[NewTokens] = [*self._scheduler.expire()]
        if self._grammars.waiting:
            outputs += self._admit_compiled()
        if self._checks_cache:
            self._self_check.give_way()
            if not self._scheduler.has_requests:
                self._self_check.start()
        planned = self._scheduler.schedule()
        is_stalled = planned is None and not self._in_flight and self._scheduler.has_requests
        self._num_stalled = self._num_stalled + 1 if is_stalled else 0
        if self._num_stalled > MAX_STALLED:  # a defect: without an end, the engine would try for ever
            raise RuntimeError(
                "Requests are waiting, none is running, and no step can be scheduled. Please report this bug"
            )
        return planned, outputs

    def _use_programs(self) -> None:
        """Tells the scheduler of programs that have been built since the last step, and how long steps waited."""
        built = len(self._built), self._built.lazy_seconds
        if built != self._known_programs:
            self._known_programs = built
            self._scheduler.use(self._runner.buckets(), self._built.lazy_seconds)

    def _execute(self, planned: ScheduledStep) -> list[NewTokens]:
        """Dispatches a step; returns what comes of it at once: nothing, but for errors and constrained requests."""
        for before in self._hooks.before_dispatch:
            before()
        outputs: list[NewTokens] = []
        try:
            forward = self._runner.forward(planned)
            masks = None
            if planned.is_constrained:
                num_recoveries = self._num_recoveries
                outputs = self._process(keep=0)  # masks depend on the tokens of the step before, which has run
                if self._num_recoveries != num_recoveries:
                    return outputs  # the state that this step began with is gone
                masks = self._masks(planned, forward.form.num_sampled, outputs)
            step = self._runner.sample(forward, masks)
        except ProgramError as error:
            if self._hosts is not None:  # they may have made the call
                raise
            outputs += self._fail(planned, str(error))
            self._scheduler.flush()  # it counts on pages that this step should have filled
            return outputs
        except jax.errors.JaxRuntimeError as error:
            self._self_check.cancel()
            outputs += self._process(keep=0)
            return outputs + self._recover(planned, error)
        self._in_flight.append(step)
        if self._checks_cache:
            self._self_check.note(planned)
        for after in self._hooks.after_dispatch:
            after(step)
        return outputs

    def _masks(self, planned: ScheduledStep, num_rows: int, outputs: list[NewTokens]) -> list[Int32Array]:
        """What each row may sample, while the device computes the logits; requests whose grammar fails end."""
        masks, failures = build_masks(planned, num_rows, self._mask_width, self._grammars.backend)
        outputs += [self._scheduler.fail(request, constraint_failure(request, why)) for request, why in failures]
        return masks

    def _admit_compiled(self) -> list[NewTokens]:
        """Queues the requests whose grammar is compiled; returns the ends of the others."""
        outputs: list[NewTokens] = []
        is_idle = not self._scheduler.has_requests and not self._in_flight
        for request, failure in self._grammars.take(wait=is_idle):
            if failure is None:
                self._scheduler.add(request)
            else:
                outputs.append(TokenOutput(request.given.request_id, [], finish=failure))
        return outputs

    def _process(self, keep: int) -> list[NewTokens]:
        outputs: list[NewTokens] = []
        self._use_programs()  # the last dispatch may have built one
        while len(self._in_flight) > keep:
            step = self._in_flight.popleft()
            waits = not step.is_done
            try:
                read = self._runner.read(step)
                if self._checks_cache:
                    self._self_check.compare(step.planned)
            except jax.errors.JaxRuntimeError as error:
                return outputs + self._recover(step.planned, error)
            if self._share.num_background:
                self._share.measure(step.planned, step.dispatched, self._scheduler.buckets)
            for before in self._hooks.before_process:
                before(step, waits)
            outputs += self._scheduler.process(step.planned, read)
            for after in self._hooks.after_process:
                after(step.planned)
        return outputs

    def _recover(self, planned: ScheduledStep, error: jax.errors.JaxRuntimeError) -> list[NewTokens]:
        """After a step for which the device's memory did not suffice: its requests fail, all others start over.

        Raises:
            JaxRuntimeError: it is another error; there are other hosts; or there is no memory for the state either.
            HostLostError: it failed because another host is lost.
        """
        if self._hosts is not None and not is_out_of_memory(error):
            self._hosts.check_loss()
        if self._hosts is not None or not is_out_of_memory(error):
            raise error
        advice = step_advice(self._memory, self._scheduler.num_total_tokens)
        message = f"Out of memory: the device had too little memory for this request's step; {advice}"
        num_failed = sum(batch.num_rows for _, batch in planned.parts)
        logger.error("%s. %d requests failed, the others are computed again. XLA error: %s", message, num_failed, error)
        self._in_flight.clear()
        self._num_recoveries += 1
        for after in self._hooks.after_loss:
            after()
        self._self_check.cancel()
        outputs = self._fail(planned, message)
        self._scheduler.start_over()
        with self._runner.programs.built.expecting_compiles():
            self._runner.executor.reset_state()
        return outputs

    def _fail(self, planned: ScheduledStep, message: str) -> list[NewTokens]:
        """Ends the requests of a step."""
        finish = FinishReason("abort", message=message, status=500)
        return [self._scheduler.fail(r, finish) for r in planned.requests if r.status is not RequestStatus.FINISHED]
