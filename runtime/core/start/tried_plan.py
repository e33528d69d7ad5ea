"""An engine's plan, with kernels that work on this device: those that fail their trial are replaced."""

import contextlib
import logging
import threading
from collections.abc import Callable, Collection

from palladio.runtime.core.plan.engine_plan import ChosenKernels, EnginePlan, KernelFailureError
from palladio.runtime.core.trials.kernel_trials import KernelTrials, TrialPlace
from palladio.runtime.core.trials.kernels_in_use import ModelOnDevice
from palladio.runtime.core.trials.verdicts import Verdict
from palladio.runtime.execution.compiled.program_cache import AroundBuild
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.config.execution_config import ExecutionConfig
from palladio.runtime.interface.messages.engine_state import LoadProgress

_ADVICE = (
    "Another implementation takes its place, which is slower; please report this line, with the file that `palladio "
    "doctor --kernels` writes"
)

logger = logging.getLogger("palladio.engine")


class TriedPlan:
    """Plans an engine again, without a kernel that fails, until all that it uses work.

    Args:
        config: of the engine.
        agree: gives the smallest of all hosts' values, so that all use the same kernels.
        around_late_build: see ProgramCache.
        on_progress: hears of a wait for the device.
        on_hung: ends the process when a trial hangs; called in another thread.
        skipped: kernels that are known not to work.

    Attributes:
        design: the plan so far: without kernels that failed at earlier starts, and, after `settle`, at this one.

    Raises:
        ConfigError: as EnginePlan.of; or the named --attention-backend failed its trial.
    """

    def __init__(
        self,
        config: EngineConfig,
        agree: Callable[[int], int] = lambda value: value,
        around_late_build: AroundBuild[ProgramKey] = lambda key: contextlib.nullcontext(),
        on_progress: Callable[[LoadProgress], None] = lambda progress: None,
        on_hung: Callable[[str], None] = lambda message: None,
        skipped: Collection[str] = (),
    ) -> None:
        self._config = config
        self._agree = agree
        self._around_late_build = around_late_build
        self._on_progress, self._on_hung = on_progress, on_hung
        self._stopped = threading.Event()
        self._skipped = set(skipped)
        self._done: dict[str, Verdict] = {}
        self.design = self._plan()
        self._trials = self._trials_of(self.design.chosen)
        while self._replace():
            pass

    def settle(self) -> EnginePlan:
        """Try the kernels that no earlier start has tried, and return the plan with those that work.

        Raises:
            ConfigError: the named --attention-backend fails.
        """
        while True:
            self._trials.run(stopped=self._stopped)
            if self._stopped.is_set() or not self._replace():
                return self.design

    def stop(self) -> None:
        """End with the trial that is under way: `settle` returns after it."""
        self._stopped.set()

    def _plan(self, instead_of: EnginePlan | None = None) -> EnginePlan:
        how = self._config, self._agree, self._around_late_build, self._on_progress
        while True:
            try:
                return EnginePlan.of(*how, self._skipped, instead_of=instead_of, before_compiling=self._all_work)
            except KernelFailureError as failure:
                self._trials = self._trials_of(failure.chosen)
                self._skip_failed()

    def _all_work(self, chosen: ChosenKernels) -> bool:
        """Try the kernels of a plan that compiles programs; return whether none has failed."""
        trials = self._trials_of(chosen)
        trials.run(stopped=self._stopped)
        self._done.update(trials.by_key)
        return not trials.failed

    def _trials_of(self, chosen: ChosenKernels) -> KernelTrials:
        execution = self._config.execution
        place = TrialPlace(
            device=chosen.device,
            target=chosen.kernels.target,
            folder=execution.trials_path(),
            on_hung=self._on_hung,
            repeats=execution.kernel_check == "always",
        )
        if not checks_kernels(execution, chosen.device.platform):
            return KernelTrials([], place)
        return KernelTrials(model_on_device(chosen).kernels_in_use(), place, self._done)

    def _replace(self) -> bool:
        """Plan again if a kernel has failed on any host; return whether that was so."""
        if not self._skip_failed():
            return False
        self.design = self._plan(self.design)
        self._trials = self._trials_of(self.design.chosen)
        return True

    def _skip_failed(self) -> bool:
        """Use kernels that have failed on any host no more; return whether there are some."""
        own = {verdict.kernel: verdict for verdict in self._trials.failed}
        failed = [name for name in self._trials.names if not self._agree(int(name not in own))]
        for name in failed:
            reason = own[name].reason if name in own else "it failed its trial on another host"
            logger.warning("Kernel %s is not used: %s. %s", name, reason, _ADVICE)
        self._skipped.update(failed)
        self._done.update(self._trials.by_key)
        return bool(failed)


def checks_kernels(execution: ExecutionConfig, platform: str) -> bool:
    """Return whether --kernel-check asks for trials on a platform."""
    if execution.kernel_check == "auto":
        return platform in ("tpu", "gpu")
    return execution.kernel_check == "always"


def model_on_device(chosen: ChosenKernels, *, for_speed: bool = False) -> ModelOnDevice:
    """Return what the cases of a plan's kernels follow from.

    Args:
        for_speed: see ModelOnDevice.
    """
    return ModelOnDevice(
        kernels=chosen.kernels,
        model=chosen.model,
        shape=chosen.shape,
        structure=chosen.structure,
        weights=chosen.weights,
        for_speed=for_speed,
    )
