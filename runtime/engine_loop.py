"""The engine's main loop: takes messages in, steps the core, sends outputs. One thread; no asyncio, no jax."""

import logging
from collections.abc import Callable
from typing import Protocol

from palladio.runtime.config import EngineConfig
from palladio.runtime.errors import ConfigError, InvalidRequestError, OverloadedError
from palladio.runtime.messages import (
    AbortRequests,
    AddRequest,
    ControlReply,
    EngineFailed,
    EngineReady,
    EngineStats,
    FlushCache,
    FromEngine,
    GetStats,
    LoadProgress,
    Shutdown,
    StepOutputs,
    ToEngine,
)
from palladio.runtime.outputs import FinishReason, TokenOutput

Emit = Callable[[FromEngine], None]

logger = logging.getLogger(__name__)


class TokenEngine(Protocol):
    """What the loop drives: EngineCore, or the tests' fake."""

    ready: EngineReady

    def add(self, request: AddRequest) -> None: ...
    def abort(self, request_ids: list[str]) -> None: ...
    def flush_cache(self) -> None: ...
    def stats(self) -> EngineStats: ...
    @property
    def has_work(self) -> bool: ...
    def step(self) -> list[TokenOutput]: ...


CoreFactory = Callable[[EngineConfig, Callable[[LoadProgress], None]], TokenEngine]


class Inbox(Protocol):
    """Messages from the front, in order."""

    def get_nowait(self) -> ToEngine | None: ...

    def wait(self) -> ToEngine:
        """Blocks until there is one."""
        ...


def run_engine(create_core: CoreFactory, config: EngineConfig, inbox: Inbox, emit: Emit) -> None:
    """An engine's whole life: load, say EngineReady, loop. A failure anywhere is emitted as EngineFailed."""
    try:
        core = create_core(config, emit)
    except ConfigError as error:
        emit(EngineFailed(str(error), config=True))
        return
    except Exception as error:
        logger.exception("the engine could not start")
        emit(EngineFailed(f"the engine could not start: {type(error).__name__}: {error}", config=False))
        return
    emit(core.ready)
    run_engine_loop(core, inbox, emit)


def run_engine_loop(core: TokenEngine, inbox: Inbox, emit: Emit) -> None:
    """Serves until Shutdown; an exception of the core ends it with EngineFailed."""
    try:
        while True:
            message = inbox.get_nowait() if core.has_work else inbox.wait()
            while message is not None:
                if isinstance(message, Shutdown):
                    return
                _handle(core, message, emit)
                message = inbox.get_nowait()
            if core.has_work:
                outputs = core.step()
                if outputs:
                    emit(StepOutputs(outputs))
    except Exception as error:
        logger.exception("the engine failed")
        emit(EngineFailed(f"the engine failed: {type(error).__name__}: {error}", config=False))


def _handle(core: TokenEngine, message: AddRequest | AbortRequests | FlushCache | GetStats, emit: Emit) -> None:
    match message:
        case AddRequest():
            try:
                core.add(message)
            except InvalidRequestError as error:
                emit(_rejection(message, str(error), 400))
            except OverloadedError as error:
                emit(_rejection(message, str(error), 503))
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
            emit(ControlReply(message.call_id, ok=True, stats=core.stats()))


def _rejection(request: AddRequest, message: str, status: int) -> StepOutputs:
    finish = FinishReason("abort", message=message, status=status)
    return StepOutputs([TokenOutput(request.request_id, [], finish=finish)])
