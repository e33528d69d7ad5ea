"""The way to an engine: its loop, how a front in the same process reaches it, and whether it answers."""

import asyncio
import contextlib
import dataclasses
import logging
import pkgutil
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, HostLostError, InvalidRequestError, OverloadedError
from palladio.runtime.interface.messages.calls import (
    AbortRequests,
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
from palladio.runtime.interface.outputs.step_tokens import NewTokens
from palladio.runtime.interface.outputs.token_output import FinishReason, TokenOutput
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.process.busy_reports import BusyReports
from palladio.runtime.process.engine_child import ENGINE_CORE
from palladio.runtime.telemetry.logs import Activity
from palladio.runtime.telemetry.watchdog import Watchdog

TICK: Final = 1.0  # seconds between two looks, or less with a short timeout


class Liveness:
    """Asks an engine that has been quiet, and counts the time until it says anything.

    It counts the time that it sees pass, so time in which this process stood still does not count. An engine that says
    that it is busy is not asked for more.

    Args:
        ask: sends a question that the engine's loop answers between two steps.
        timeout: seconds without an answer after which there is a `stall`; 0: never.

    Attributes:
        interval: seconds between two calls of `tick`.
        busy: what the engine said last that it is at; "": it has answered since.
    """

    def __init__(self, ask: Callable[[], None], timeout: float) -> None:
        self._ask = ask
        self._timeout = timeout
        self.interval = min(TICK, timeout / 4) or TICK
        self.reset()

    def reset(self) -> None:
        """The engine is a new one."""
        self.busy = ""
        self._silent = 0.0
        self._is_asked = False
        self._is_heard = False

    def heard(self) -> None:
        """The engine's loop has sent something."""
        self.busy = ""
        self._silent = 0.0
        self._is_asked = False
        self._is_heard = True

    def heard_busy(self, what: str) -> None:
        self.busy = what
        self._silent = 0.0

    def tick(self) -> None:
        if self._is_asked:
            self._silent += self.interval
        elif not self._is_heard and self._timeout > 0:
            self._is_asked = True
            self._ask()
        self._is_heard = False

    @property
    def stall(self) -> str | None:
        """Why the engine counts as one that does not answer; None: it does not."""
        if self._timeout == 0 or self._silent < self._timeout:
            return None
        return (
            f"the engine has not responded for {self._silent:.0f} s (--health-timeout {self._timeout:g}): it hangs, or "
            "its steps are very slow"
        )


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
        """How long the next step need not be begun; whoever comes meanwhile takes part in it."""

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
    except (ConfigError, HostLostError) as error:
        emit(EngineFailed(str(error), config=isinstance(error, ConfigError)))
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
) -> contextlib.AbstractContextManager[None]:
    survival = config.survival
    if survival.watchdog_timeout == 0:
        return contextlib.nullcontext()
    folder = None if survival.crash_dump_folder is None else Path(survival.crash_dump_folder)
    return Watchdog(activity, survival.watchdog_timeout, folder, end_hung)


_Handled = (
    GenerationRequest | AbortRequests | FlushCache | GetStats | Explain | StartProfile | StopProfile | ModelMessage
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


Receive = Callable[[FromEngine], None]


class EngineTransport(Protocol):
    """Carries messages to an engine and back. Used from one event loop only.

    Attributes:
        shares_interpreter: the engine runs in this process.
    """

    shares_interpreter: bool

    def start(self, config: EngineConfig, receive: Receive) -> None:
        """Starts the engine and returns at once. Called within a running event loop.

        Args:
            config: `source.model_path` is a local directory.
            receive: called in the event loop with each message, in order; EngineFailed is the last one, and comes
                whenever the engine ends without having been asked to.
        """

    def send(self, message: ToEngine) -> None:
        """Never blocks; to an engine that ended, it does nothing."""

    async def stop(self, timeout: float) -> None:
        """Ends the engine: asks it to, and after `timeout` seconds forces it if that is possible. Idempotent."""


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


class QueueInbox:
    """An Inbox fed by another thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self.put = self._queue.put

    def get(self, seconds: float = 0.0) -> ToEngine | None:
        try:
            return self._queue.get(seconds > 0, seconds or None)
        except queue.Empty:
            return None

    def wait(self) -> ToEngine:
        return self._queue.get()


class ThreadTransport:
    """The engine in a thread of this process. What the core emits must not change afterwards: it is not copied."""

    shares_interpreter = True

    def __init__(self, core_factory: str | CoreFactory = ENGINE_CORE) -> None:
        self._core_factory = core_factory
        self._inbox = QueueInbox()
        self._thread: threading.Thread | None = None

    def start(self, config: EngineConfig, receive: Receive) -> None:
        loop = asyncio.get_running_loop()

        def emit(message: FromEngine) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody listens any more
                loop.call_soon_threadsafe(receive, message)

        self._thread = threading.Thread(target=self._run, args=(config, emit), name="palladio-engine", daemon=True)
        self._thread.start()

    def send(self, message: ToEngine) -> None:
        self._inbox.put(message)

    async def stop(self, timeout: float) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._inbox.put(Shutdown())
        deadline = time.monotonic() + timeout
        while thread.is_alive() and time.monotonic() < deadline:  # no join in a thread: at exit none can be started
            await asyncio.sleep(0.005)
        if thread.is_alive():
            logger.warning("The engine thread is still running after %g s; it stops when the process exits", timeout)

    def _run(self, config: EngineConfig, emit: Receive) -> None:
        run_engine(resolve_factory(self._core_factory), config, self._inbox, emit)
