"""The engine's life in its thread: load, say what it is, serve messages between steps, end."""

import contextlib
import dataclasses
import logging
import pkgutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import (
    ConfigError,
    DeviceTakenError,
    HostLostError,
    InvalidRequestError,
    OverloadedError,
    ReadBackError,
)
from palladio.runtime.interface.messages.calls import (
    AbortRequests,
    ConfigureProcess,
    ControlReply,
    Explain,
    FlushCache,
    FromEngine,
    GetStats,
    Shutdown,
    StartProfile,
    StepOutputs,
    StopProfile,
    ToEngine,
)
from palladio.runtime.interface.messages.engine_state import EngineFailed, EngineReady, LoadProgress
from palladio.runtime.interface.messages.engine_stats import EngineStats, LiveRequest
from palladio.runtime.interface.messages.model_messages import ModelMessage, SetPause, SetReleased, UpdateWeights
from palladio.runtime.interface.messages.profile_options import ProfileOptions, ProfileReport
from palladio.runtime.interface.outputs.token_output import FinishReason, NewTokens, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.process.busy_reports import BusyReports
from palladio.runtime.telemetry.activity import Activity
from palladio.runtime.telemetry.process_settings import configure_process
from palladio.runtime.telemetry.watchdog import Watchdog

Emit = Callable[[FromEngine], None]

logger = logging.getLogger(__name__)


class TokenEngine(Protocol):
    """What the loop drives: EngineCore, or the tests' fake.

    Attributes:
        ready: the limits that start-up chose.
        activity: the loop says here what it is at, and the core what it compiles.
    """

    ready: EngineReady
    activity: Activity

    def add(self, request: GenerationRequest) -> None: ...
    def abort(self, request_ids: list[str]) -> None: ...
    def flush_cache(self) -> None: ...
    def stats(self, *, check_integrity: bool = False, pages: bool = False) -> EngineStats: ...
    def explain(self, request_ids: list[str]) -> list[LiveRequest]: ...
    def start_profile(self, options: ProfileOptions) -> None: ...
    def stop_profile(self) -> ProfileReport | None: ...
    def steer(self, message: ModelMessage) -> tuple[Sequence[NewTokens], ControlReply]:
        """Does what a message says; returns the tokens that were under way, and the answer."""

    @property
    def has_work(self) -> bool: ...
    @property
    def spare_seconds(self) -> float:
        """How long the next step may wait; requests that arrive meanwhile take part in it."""

    def step(self) -> Sequence[NewTokens]: ...
    def close(self, failure: str = "") -> None:
        """Nothing is asked of it any more: threads that work for it end soon, and emit nothing.

        Args:
            failure: why, if it is no orderly end.
        """


CoreFactory = Callable[[EngineConfig, Callable[[LoadProgress], None], Callable[[str], None]], TokenEngine]
"""Takes the config, what to call with progress, and what to call, in any thread, when the engine is beyond help."""


class Inbox(Protocol):
    """Messages from the front, in order."""

    def get(self, seconds: float = 0.0) -> ToEngine | None:
        """Waits at most so long; None: nothing has come."""

    def wait(self) -> ToEngine:
        """Blocks until there is one."""


def run_engine(
    create_core: CoreFactory,
    config: EngineConfig,
    inbox: Inbox,
    emit: Emit,
    end_hung: Callable[[str], None] | None = None,
) -> None:
    """An engine's whole life: load, say EngineReady, loop. A failure anywhere is emitted as EngineFailed.

    Args:
        end_hung: ends the engine's process when a step hangs or another host is lost; called in another thread.
    """
    started = time.perf_counter()

    def end_lost(message: str) -> None:
        if end_hung is None:
            emit(EngineFailed(message, config=False))
        else:
            end_hung(message)

    try:
        core = create_core(config, emit, end_lost)
    except (ConfigError, DeviceTakenError, HostLostError, ReadBackError) as error:
        emit(EngineFailed.of(error))
        return
    except Exception as error:
        logger.exception("The engine could not start")
        emit(EngineFailed(f"the engine could not start: {type(error).__name__}: {error}", config=False))
        return
    emit(dataclasses.replace(core.ready, startup_seconds=time.perf_counter() - started))
    failure = "interrupted"
    with _watchdog(core.activity, config, end_hung), BusyReports(core.activity, emit):
        try:
            failure = run_engine_loop(core, inbox, emit)
        finally:
            core.close(failure)


def run_engine_loop(core: TokenEngine, inbox: Inbox, emit: Emit) -> str:
    """Serves until Shutdown; an exception of the core ends it with EngineFailed. Returns the failure; "": none."""
    activity = core.activity
    try:
        while True:
            if core.has_work:
                message = inbox.get(core.spare_seconds)
            else:
                activity.rest()
                message = inbox.wait()
            has_handled = message is not None
            if has_handled:
                activity.handle_messages()
            while message is not None:
                if isinstance(message, Shutdown):
                    return ""
                _handle(core, message, emit)
                message = inbox.get()
            if core.has_work and not (has_handled and core.spare_seconds > 0):
                activity.begin_step()
                outputs = core.step()
                if outputs:
                    emit(_step_outputs(outputs))
    except Exception as error:
        logger.exception("The engine failed")
        failure = f"{type(error).__name__}: {error}"
        emit(EngineFailed(f"the engine failed: {failure}", config=False))
        return failure


def _watchdog(
    activity: Activity, config: EngineConfig, end_hung: Callable[[str], None] | None
) -> contextlib.AbstractContextManager[object]:
    survival = config.survival
    folder = None if survival.crash_dump_folder is None else Path(survival.crash_dump_folder)
    watching = contextlib.ExitStack()
    if survival.soft_watchdog_timeout is not None:
        soft = Watchdog(activity, survival.soft_watchdog_timeout, folder, flag="--soft-watchdog-timeout")
        watching.enter_context(soft)
    if survival.watchdog_timeout > 0:
        watching.enter_context(Watchdog(activity, survival.watchdog_timeout, folder, end_hung))
    return watching


_Handled = (
    GenerationRequest
    | AbortRequests
    | FlushCache
    | GetStats
    | Explain
    | StartProfile
    | StopProfile
    | ConfigureProcess
    | ModelMessage
)


def _handle(core: TokenEngine, message: _Handled, emit: Emit) -> None:
    match message:
        case GenerationRequest():
            try:
                core.add(message)
            except InvalidRequestError as error:
                emit(_rejection(message, FinishReason.refusal(error)))
            except OverloadedError as error:
                emit(_rejection(message, FinishReason("abort", message=str(error), status=503)))
        case AbortRequests():
            core.abort(message.request_ids)
        case FlushCache():
            try:
                core.flush_cache()
            except OverloadedError as error:
                emit(ControlReply(message.call_id, ok=False, message=str(error)))
            else:
                emit(ControlReply(message.call_id, ok=True))
        case GetStats():
            stats = core.stats(check_integrity=message.check_integrity, pages=message.pages)
            emit(ControlReply(message.call_id, ok=True, stats=stats))
        case Explain():
            emit(ControlReply(message.call_id, ok=True, requests=core.explain(message.request_ids)))
        case ConfigureProcess():
            configure_process(message.log_level, freeze_gc=message.freeze_gc)
            emit(ControlReply(message.call_id, ok=True))
        case StartProfile() | StopProfile():
            emit(_profile(core, message))
        case SetPause() | UpdateWeights() | SetReleased():
            outputs, reply = core.steer(message)
            if outputs:
                emit(_step_outputs(outputs))
            emit(reply)


def _profile(core: TokenEngine, message: StartProfile | StopProfile) -> ControlReply:
    try:
        if isinstance(message, StartProfile):
            core.start_profile(message.options)
            return ControlReply(message.call_id, ok=True, message=message.options.output_dir)
        return ControlReply(message.call_id, ok=True, profile=core.stop_profile())
    except InvalidRequestError as error:
        return ControlReply(message.call_id, ok=False, message=str(error), param=error.param)


def _step_outputs(outputs: Sequence[NewTokens]) -> StepOutputs:
    message = StepOutputs([])
    for output in outputs:
        if isinstance(output, TokenOutput):
            message.outputs.append(output)
        else:
            message.plain.append(dataclasses.replace(output, place=len(message.outputs)))
    return message


def _rejection(request: GenerationRequest, finish: FinishReason) -> StepOutputs:
    return StepOutputs([TokenOutput(request.request_id, [], finish=finish)])


def resolve_factory(factory: str | CoreFactory) -> CoreFactory:
    """A factory that imports the one named `module:attribute.path` when it is called (within the engine's border)."""
    if not isinstance(factory, str):
        return factory
    name = factory

    def create(
        config: EngineConfig, on_progress: Callable[[LoadProgress], None], on_fatal: Callable[[str], None]
    ) -> TokenEngine:
        return cast("CoreFactory", pkgutil.resolve_name(name))(config, on_progress, on_fatal)

    return create
