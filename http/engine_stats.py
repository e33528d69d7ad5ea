"""EngineStatsReader: snapshots of the engine for those who ask often, one question at a time."""

import asyncio

from palladio.runtime.engine_client import EngineClient
from palladio.runtime.errors import EngineDeadError, EngineNotReadyError
from palladio.runtime.messages import EngineStats

STATS_TIMEOUT = 2.0  # seconds; an engine that needs longer counts as one that does not answer


class EngineStatsReader:
    """Whoever asks while a question is under way gets its answer: however many scrape, the engine is asked once."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._asking: asyncio.Task[EngineStats | None] | None = None

    async def read(self) -> EngineStats | None:
        """None: the engine does not answer now."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)  # one asker that goes away does not end it for the others

    async def _ask(self) -> EngineStats | None:
        try:
            return await self._engine.stats(STATS_TIMEOUT)
        except (EngineDeadError, EngineNotReadyError):
            return None
