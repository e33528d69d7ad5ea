"""Starts a failed engine again, so often within an hour, and ever later while it does not come up."""

import asyncio
import collections
import dataclasses
import logging
import time
from collections.abc import Callable

from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import EngineDeadError
from palladio.runtime.interface.messages.engine_state import EngineFailed, EngineReady
from palladio.runtime.process.transport import EngineTransport, Receive

WINDOW = 3600.0  # seconds
MAX_TRIAL_RESTARTS = 2  # after trials that end the process, before no kernel is used at all
_FIRST_PAUSE, _MAX_PAUSE = 0.5, 30.0  # seconds before a start that follows a failed start
_STOP_TIMEOUT = 2.0  # seconds for the failed engine's own end

logger = logging.getLogger(__name__)


class RestartBudget:
    """Counts restarts within the last hour.

    Args:
        limit: restarts within an hour; 0: none.
        clock: seconds, monotonic.

    Attributes:
        num_taken: restarts in all.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._times: collections.deque[float] = collections.deque()
        self.num_taken = 0

    @property
    def num_used(self) -> int:
        """Restarts that still count."""
        while self._times and self._times[0] <= self._clock() - WINDOW:
            self._times.popleft()
        return len(self._times)

    def take(self) -> bool:
        """Takes one restart, if one is left."""
        if self.num_used >= self.limit:
            return False
        self._times.append(self._clock())
        self.num_taken += 1
        return True

    def spent(self, failure: str) -> str:
        """Why there is no further restart, and what failed last."""
        if self.limit == 0:
            return failure
        return (
            f"the engine failed {self.limit + 1} times within an hour and is not restarted again "
            f"(--max-engine-restarts {self.limit}); last failure: {failure}"
        )


class TrialRestarts:
    """Starts an engine again whose start ended in the trial of a kernel: each start leaves out the kernel of the one
    before, and the last one leaves out all."""

    def __init__(self, transport: EngineTransport) -> None:
        self._transport = transport
        self._num_taken = 0

    def next_config(self, config: EngineConfig, failure: EngineFailed) -> EngineConfig | None:
        """Return the config to start with; None: the start has failed for good.

        Args:
            config: that the engine started with.
            failure: how it ended.
        """
        self._num_taken += 1
        if not failure.trial or config.parallel.num_hosts > 1 or self._num_taken > MAX_TRIAL_RESTARTS + 1:
            return None
        if self._num_taken <= MAX_TRIAL_RESTARTS:
            logger.warning("Starting the engine again without kernel %s: %s", failure.trial, failure.message)
            return config
        logger.warning(
            "Starting the engine again with --attention-backend xla, since %d starts ended in trials of kernels, the "
            "last one in that of %s: %s",
            self._num_taken,
            failure.trial,
            failure.message,
        )
        execution = dataclasses.replace(config.execution, attention_backend="xla")
        return dataclasses.replace(config, execution=execution)

    async def start(self, config: EngineConfig, receive: Receive) -> EngineFailed | None:
        """Start the engine in a new process; return why that cannot be."""
        await self._transport.stop(_STOP_TIMEOUT)
        try:
            self._transport.start(config, receive)
        except OSError as error:
            return EngineFailed(f"the engine could not start: {type(error).__name__}: {error}", config=False)
        return None


class Supervisor:
    """Restarts the engine behind a transport, one restart at a time."""

    def __init__(self, transport: EngineTransport, budget: RestartBudget) -> None:
        self._transport = transport
        self._budget = budget
        self._retired = False
        self._starts = False
        self._outcome: EngineReady | EngineFailed | None = None  # of the start under way
        self._has_outcome = asyncio.Event()

    @property
    def num_restarts(self) -> int:
        """Since the server started."""
        return self._budget.num_taken

    def may_restart(self, failure: str) -> None:
        """Takes one restart from the budget, for `restart` to use.

        Raises:
            EngineDeadError: none is left; the message says what failed, and how often.
        """
        if self._retired:
            raise EngineDeadError(failure)
        if not self._budget.take():
            raise EngineDeadError(self._budget.spent(failure))

    def retire(self) -> None:
        """The engine is about to be ended: whatever it says from now on, it is not started again."""
        self._retired = True

    def take(self, message: EngineReady | EngineFailed) -> bool:
        """Take a message; return whether it ends a start under way, and so has no other receiver."""
        if self._starts:
            self._outcome = message  # the last one counts: it may fail before `restart` has seen it ready
            self._has_outcome.set()
        return self._starts

    async def restart(self, config: EngineConfig, receive: Receive) -> EngineReady:
        """Starts the engine until it is ready.

        Raises:
            EngineDeadError: it failed too often.
        """
        pause = 0.0
        while isinstance(outcome := await self._start(config, receive, pause), EngineFailed):
            logger.error("The engine could not be restarted: %s", outcome.message)
            self.may_restart(outcome.message)
            pause = min(2.0 * pause, _MAX_PAUSE) or _FIRST_PAUSE
        return outcome

    async def _start(self, config: EngineConfig, receive: Receive, pause: float) -> EngineReady | EngineFailed:
        await self._transport.stop(_STOP_TIMEOUT)
        await asyncio.sleep(pause)
        logger.warning(
            "Restarting the engine (%d of %d restarts within an hour)", self._budget.num_used, self._budget.limit
        )
        self._expect_outcome()
        try:
            self._transport.start(config, receive)
            await self._has_outcome.wait()
            assert self._outcome is not None
            return self._outcome
        except Exception as error:
            logger.exception("The engine could not start")
            return EngineFailed(f"the engine could not start: {type(error).__name__}: {error}", config=False)
        finally:
            self._starts = False

    def _expect_outcome(self) -> None:
        self._outcome, self._starts = None, True
        self._has_outcome.clear()
