"""EngineOwner: the engine as the parent of several fronts has it. It serves no requests; its fronts do.

It starts the engine, starts it again after a failure, ends it, and carries out what fronts order of the running model.
Whatever changes, all fronts are told.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from palladio.runtime.front.async_engine import AsyncEngine
from palladio.runtime.interface.config import EngineConfig, ModelSource
from palladio.runtime.interface.messages import AbortRequests, FromEngine
from palladio.runtime.interface.weight_update import UpdateOptions
from palladio.runtime.process.process_transport import ProcessTransport
from palladio.runtime.process.shared_state import ModelCall, ModelState, SharedState
from palladio.runtime.text.tokenizer import Tokenizer


class EngineOwner(AsyncEngine):
    """
    Args:
        transport: with `has_fronts`.
        abort_all: aborts what runs in all fronts; returns how much that was.
        tell: is called after each change of `shared`.
    """

    def __init__(
        self,
        config: EngineConfig,
        transport: ProcessTransport,
        abort_all: Callable[[], Awaitable[int]],
        tell: Callable[[], None],
    ) -> None:
        super().__init__(config, transport)
        self._process = transport
        self._abort_all = abort_all
        self._tell = tell
        self._dumper = None  # fronts know the requests
        self._told: SharedState | None = None

    @property
    def shared(self) -> SharedState:
        """What fronts are to know of the engine."""
        model = self.model
        released = sorted(model.released)
        return SharedState(
            phase=self._phase,
            directory=self._process.directory,
            config=self._resolved,
            info=self._info,
            failure=self._failure,
            progress=self.progress,
            num_restarts=self.num_restarts,
            model=ModelState(model.version, model.path, model.paused, released),
        )

    def end_front(self, number: int) -> None:
        """A front has ended: its requests are aborted."""
        self._transport.send(AbortRequests([], number))

    async def abort(self, request_id: str | None) -> int:
        """All requests, wherever they are."""
        assert request_id is None, "requests have names in their fronts alone"
        return await self._abort_all()

    async def steer(self, call: ModelCall) -> bytes:
        """Does what a front orders; fronts know of the change before it is answered.

        Raises:
            PalladioError: as ModelSwitch does.
        """
        doing = asyncio.create_task(self._steer(call))
        await asyncio.sleep(0)
        self._changed()  # what holds from the beginning, such as that memory is not to be used any more
        try:
            return msgspec.msgpack.encode(await doing)
        finally:
            self._changed()

    async def _steer(self, call: ModelCall) -> int:
        model = self.model
        match call.method:
            case "pause":
                await model.pause(call.mode)
            case "go_on":
                await model.go_on()
            case "update":
                return await model.update(Path(call.path), msgspec.convert(call.options, UpdateOptions))
            case "update_sent":
                return await model.update_sent(call.content, msgspec.convert(call.options, UpdateOptions))
            case "release":
                await model.release(call.tags)
            case "resume":
                await model.resume(call.tags)
        return 0

    async def _load_tokenizer(self, source: ModelSource) -> Tokenizer | None:
        """Fronts do."""
        self._changed()  # the configuration is resolved
        return None

    def _on_message(self, message: FromEngine) -> None:
        super()._on_message(message)
        asyncio.get_running_loop().call_soon(self._changed)  # a task may have to act on it first

    async def _restart(self, failure: str) -> None:
        try:
            await super()._restart(failure)
        finally:
            self._changed()

    def _settle(self) -> None:
        super()._settle()
        asyncio.get_running_loop().call_soon(self._changed)

    def _changed(self) -> None:
        shared = self.shared
        if shared != self._told:
            self._told = shared
            self._tell()
