"""Snapshots of the engine for those who ask often, one question at a time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.interface.errors import EngineDeadError, EngineNotReadyError
from palladio.runtime.interface.messages.engine_stats import EngineStats

STATS_TIMEOUT = 2.0  # seconds; an engine that needs longer counts as one that does not answer
T = TypeVar("T")


class EngineStatsReader:
    """Reads the engine's statistics; calls at the same time share one question to the engine."""

    def __init__(self, engine: EngineClient) -> None:
        self._call = SharedCall(lambda: engine.stats(STATS_TIMEOUT))

    async def read(self) -> EngineStats | None:
        """None: the engine does not answer now."""
        try:
            return await self._call.get()
        except (EngineDeadError, EngineNotReadyError):
            return None


class SharedCall(Generic[T]):
    """A call whose answer, or error, all callers that wait at the same time share.

    Args:
        ask: makes the call.
    """

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Raises what `ask` raises."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(_seen)
        return await asyncio.shield(self._asking)  # one asker that goes away does not end it for the others


def _seen(task: "asyncio.Task[T]") -> None:
    """An error is no news to the event loop when all askers have gone away."""
    if not task.cancelled():
        task.exception()
