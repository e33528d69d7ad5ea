"""Sampler: asks the engine about once a second how it is, for the history; and for maps of its pages, while somebody
looks."""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence

from palladio.http.observability.dashboard.history import History
from palladio.http.observability.dashboard.series import make_history, take_row
from palladio.http.observability.metrics.engine_stats import STATS_TIMEOUT, SharedCall
from palladio.http.observability.observer import Observer
from palladio.runtime.front.requests.engine_protocol import EngineClient
from palladio.runtime.interface.errors import EngineDeadError, EngineNotReadyError
from palladio.runtime.interface.messages.engine_stats import EngineStats
from palladio.runtime.interface.messages.page_map import PageMap

INTERVAL = 1.0  # seconds between two rows
MAP_INTERVAL = 2.0  # seconds between two maps, at least
MAP_SHARE = 1 / 500  # of the engine's time that maps may take


class Sampler:
    """One for an app; `start` begins it, in the event loop that then has it, and `stop` ends it.

    Attributes:
        history: the rows.
        latest: the engine's last snapshot; None: it did not answer.
    """

    def __init__(self, engine: EngineClient, observer: Observer, interval: float = INTERVAL) -> None:
        self._engine = engine
        self._observer = observer
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._epoch = time.time() - time.monotonic()  # the wall clock at the start: later changes of it do not count
        self._seen = 0, ""  # restarts, and the failure that was noted last
        self.history: History = make_history(observer.metrics)
        self.latest: EngineStats | None = None
        self.maps = PageMaps(engine)

    async def start(self) -> None:
        """Takes a first row, and goes on in the background. A second call waits for the first row, too."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await self._begun.wait()

    async def stop(self) -> None:
        """The history stays; `start` goes on with it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _take(self) -> None:
        self._note_failure()
        self.latest = await self._ask()
        self.history.append(take_row(self._epoch + time.monotonic(), self._observer.metrics, self.latest))

    async def _run(self) -> None:
        due = time.monotonic()
        while True:
            await self._take()
            self._begun.set()
            due = max(due + self._interval, time.monotonic() + self._interval / 2)  # rows never lie on each other
            await asyncio.sleep(due - time.monotonic())

    async def _ask(self) -> EngineStats | None:
        try:
            return await self._engine.stats(STATS_TIMEOUT)
        except (EngineDeadError, EngineNotReadyError):
            return None

    def _note_failure(self) -> None:
        restarts, failure = self._engine.num_restarts, self._engine.failure or ""
        if failure and failure != self._seen[1]:
            self._observer.errors.note_engine(failure)
        elif restarts > self._seen[0] and not self._seen[1]:
            self._observer.errors.note_engine("the engine failed, and was started again; the log says why")
        self._seen = restarts, failure


@dataclasses.dataclass(frozen=True, slots=True)
class MapsAt:
    """Maps of the KV pages at one time.

    Attributes:
        time: seconds since the epoch.
        maps: one for each rank; none: the engine does not answer.
    """

    time: float
    maps: Sequence[PageMap]


class PageMaps:
    """Maps for any number of those who look, asked for as rarely as they are costly.

    Args:
        clock: seconds.
    """

    def __init__(self, engine: EngineClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._call = SharedCall(self._ask)
        self._last = MapsAt(0.0, ())
        self._next = 0.0  # on the clock

    async def get(self) -> MapsAt:
        """The last ones, or new ones if it is time."""
        return await self._call.get() if self._clock() >= self._next else self._last

    async def _ask(self) -> MapsAt:
        try:
            stats = await self._engine.stats(STATS_TIMEOUT, pages=True)
        except (EngineDeadError, EngineNotReadyError):
            maps: Sequence[PageMap] = ()
        else:
            maps = stats.pages
        cost = sum(one.seconds for one in maps)
        self._next = self._clock() + max(MAP_INTERVAL, cost / MAP_SHARE)
        self._last = MapsAt(time.time(), maps)
        return self._last
