"""FrontEngine: an AsyncEngine before an engine that another process owns, together with other fronts.

The owner starts, restarts and ends the engine, and tells its fronts of it (SharedState). Requests, and what the engine
says of them, go between front and engine directly.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import msgspec
import zmq

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.front.control_calls import Ask
from palladio.runtime.front.model_switch import ModelSwitch
from palladio.runtime.front.supervisor import RestartBudget, Supervisor
from palladio.runtime.interface.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError, EngineDeadError
from palladio.runtime.interface.messages import AbortRequests, EngineFailed, EngineReady, FromEngine, ToEngine
from palladio.runtime.interface.weight_update import UpdateOptions
from palladio.runtime.process.engine_sockets import EngineSockets
from palladio.runtime.process.front_desk import front_socket
from palladio.runtime.process.shared_state import ModelCall, ModelState, SharedState
from palladio.runtime.process.transport import Receive
from palladio.runtime.text.hub import read_sampling_defaults

MODEL_CALL = "model"  # kind of the question to the owner

Order = Callable[[ModelCall], Awaitable[bytes]]
"""Has the owner do it, and raises what the owner raises."""


class FrontEngine(AsyncEngine):
    """Told of each state by `follow`. `start` and `shutdown` concern this front alone.

    Args:
        order: to the running model, which the owner carries out.
        loaded: is called when this front has all that it needs; it is ready when the owner says that all fronts are.
        number: of this front.
    """

    def __init__(self, config: EngineConfig, order: Order, loaded: Callable[[], None], number: int) -> None:
        self._link = _Link(number)
        self._say_loaded = loaded
        super().__init__(config, self._link, number)
        self._supervisor = _Follower(self._link)
        self._owners_model = _OwnersModel(self, order)
        self.model = self._owners_model

    @property
    def num_restarts(self) -> int:
        return self._link.state.num_restarts

    async def start(self) -> None:
        """See AsyncEngine.start. A second call does nothing."""
        if self._launch_task is None:
            await super().start()

    async def catch_up(self) -> None:
        """Begins, and returns when this front is as far as the others, or they have no engine either."""
        await self.start()
        settled = asyncio.create_task(self._settled.wait())
        while not settled.done() and self._link.state.phase == "ready":
            changed = asyncio.create_task(self._link.wait())
            await asyncio.wait((settled, changed), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        settled.cancel()

    def follow(self, state: SharedState) -> None:
        """The engine's state is this now."""
        self._owners_model.show(state.model)
        self._progress = state.progress
        self._link.follow(state, self._on_message)
        if state.phase == "ready" and self._phase == "starting":
            assert state.info is not None
            self._info = state.info
            self._become_ready()
        elif state.phase == "restarting" and self._phase == "starting":
            self._info = None  # this front was not ready yet: it waits for the next engine
        elif state.phase in ("restarting", "dead") and self._phase in ("starting", "ready"):
            self._on_message(state.failure or EngineFailed("the engine has stopped", config=False))

    def end_front(self, number: int) -> None:
        """Another front has ended: its requests are aborted, before any that this one sends from now on."""
        self._transport.send(AbortRequests([], number))

    def _become_ready(self) -> None:
        if self._link.state.is_open:
            super()._become_ready()
        elif self._info is not None and self._tokenizer_loaded:
            self._say_loaded()

    async def _resolve(self) -> EngineConfig:
        """As the owner has resolved it.

        Raises:
            ConfigError, EngineDeadError: it could not.
        """
        while (config := self._link.state.config) is None:
            state = self._link.state
            if state.phase == "dead" and state.failure is not None:
                raise (ConfigError if state.failure.config else EngineDeadError)(state.failure.message)
            await self._link.wait()
        self.sampling_defaults = read_sampling_defaults(Path(config.source.model_path))
        self._resolved = config
        return config


class _Link:
    """The transport: sockets to the engine while it is ready.

    Attributes:
        state: the last one.
    """

    shares_interpreter = False

    def __init__(self, number: int) -> None:
        self._name = front_socket(number)
        self._changed = asyncio.Event()
        self._sockets: EngineSockets | None = None
        self._directory = ""
        self.state = SharedState()

    def follow(self, state: SharedState, receive: Callable[[FromEngine], None]) -> None:
        self.state = state
        if state.phase != "ready" or state.directory != self._directory:
            self._disconnect()
        if state.phase == "ready" and self._sockets is None:
            with contextlib.suppress(zmq.ZMQError):  # the engine has just ended: the next state says so
                self._sockets = EngineSockets(Path(state.directory), self._name, receive)
                self._directory = state.directory
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(self) -> None:
        """For the next state."""
        await self._changed.wait()

    def start(self, config: EngineConfig, receive: Receive) -> None:
        """The owner does it."""

    def send(self, message: ToEngine) -> None:
        if self._sockets is not None:
            self._sockets.send(message)

    async def stop(self, timeout: float) -> None:
        """Ends the connection, and not the engine."""
        self._disconnect()

    def _disconnect(self) -> None:
        sockets, self._sockets, self._directory = self._sockets, None, ""
        if sockets is not None:
            sockets.close()


class _Follower(Supervisor):
    """Waits for what the owner makes of a failure."""

    def __init__(self, link: _Link) -> None:
        super().__init__(link, RestartBudget(0))
        self._link = link

    def may_restart(self, failure: str) -> None:
        """See Supervisor.may_restart."""
        if self._link.state.phase == "dead":
            raise EngineDeadError(failure)

    async def restart(self, config: EngineConfig, receive: Receive) -> EngineReady:
        """See Supervisor.restart. It returns in the state that it found, without a pause between."""
        while self._link.state.phase == "restarting":
            await self._link.wait()
        state = self._link.state
        if state.phase == "ready" and state.info is not None:
            return state.info
        raise EngineDeadError("the engine has stopped" if state.failure is None else state.failure.message)


class _OwnersModel(ModelSwitch):
    """The owner's, which all fronts share: what one of them orders, all see."""

    def __init__(self, engine: FrontEngine, order: Order) -> None:
        super().__init__(engine._call, engine.abort, engine.config.source.weight_version)
        self._order = order

    def show(self, state: ModelState) -> None:
        """It is so now."""
        self.version, self.path, self.paused = state.version, state.path, state.paused
        self.released = frozenset(state.released)

    async def pause(self, mode: str = "abort") -> None:
        """See ModelSwitch.pause."""
        await self._order(ModelCall("pause", mode=mode))

    async def go_on(self) -> None:
        """See ModelSwitch.go_on."""
        await self._order(ModelCall("go_on"))

    async def update(self, folder: Path, options: UpdateOptions) -> int:
        """See ModelSwitch.update."""
        return _count(await self._order(ModelCall("update", path=str(folder), options=dataclasses.asdict(options))))

    async def update_sent(self, content: bytes, options: UpdateOptions) -> int:
        """See ModelSwitch.update_sent."""
        call = ModelCall("update_sent", content=content, options=dataclasses.asdict(options))
        return _count(await self._order(call))

    async def release(self, tags: Collection[str] | None = None) -> None:
        """See ModelSwitch.release."""
        await self._order(ModelCall("release", tags=None if tags is None else list(tags)))

    async def resume(self, tags: Collection[str] | None = None) -> None:
        """See ModelSwitch.resume."""
        await self._order(ModelCall("resume", tags=None if tags is None else list(tags)))

    async def restore(self, ask: Ask) -> None:
        """The owner has done it."""


def _count(answer: bytes) -> int:
    return msgspec.msgpack.decode(answer, type=int)
