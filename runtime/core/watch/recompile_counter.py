"""Counts programs that steps compile although all should be built: a defect."""

import dataclasses
import logging

from palladio.runtime.core.watch.step_observer import StepObserver
from palladio.runtime.execution.compiled.program_cache import ProgramCache
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.messages.engine_stats import EngineStats

logger = logging.getLogger("palladio.engine")


class RecompileCounter(StepObserver):
    """
    Args:
        fails: see --fail-on-recompile.
    """

    def __init__(self, built: ProgramCache[ProgramKey], *, fails: bool) -> None:
        self._built = built
        self._fails = fails
        self._num_before = 0
        self._num_recompiles = 0

    def before_step(self) -> None:
        self._num_before = self._built.num_unexpected_compiles

    def after_step(self, is_idle: bool) -> None:
        """
        Raises:
            RuntimeError: the step compiled something, and this is to end the engine.
        """
        count = self._built.num_unexpected_compiles - self._num_before
        if not count:
            return
        self._num_recompiles += count
        message = "A step compiled something after start-up: a defect, please report it"
        if self._fails:
            raise RuntimeError(message)
        logger.error(message)

    def add_to(self, stats: EngineStats) -> EngineStats:
        return dataclasses.replace(stats, num_compiles_after_ready=self._num_recompiles)
