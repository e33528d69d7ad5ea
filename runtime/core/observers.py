"""What watches the engine's steps, and changes nothing in them: the engine with none of it gives the same tokens."""

from collections.abc import Sequence

from palladio.runtime.execution.model_runner import InFlightStep
from palladio.runtime.interface.messages import EngineStats
from palladio.runtime.scheduling.scheduled_batch import ScheduledStep
from palladio.runtime.telemetry.profiler import Profiler


class StepObserver:
    """Told of what `EngineCore.step` does, in the engine's thread. A class overrides the hooks that it needs.

    Not here, but called by name in `EngineCore`: whatever acts on the requests in an order that matters.
    """

    def before_step(self) -> None:
        """Nothing is scheduled yet."""

    def before_dispatch(self) -> None:
        """A step is scheduled, and nothing of it dispatched."""

    def after_dispatch(self, step: InFlightStep, num_tokens: Sequence[int]) -> None:
        """The device has all of a step. Args: num_tokens: of each of its batches (`ScheduledStep.parts`)."""

    def before_process(self, step: InFlightStep, *, waited: bool) -> None:
        """A step's tokens are there. Args: waited: the host waited for them."""

    def after_process(self, planned: ScheduledStep) -> None:
        """The scheduler has a step's tokens."""

    def after_loss(self) -> None:
        """The steps under way will never be read: the device has lost its state."""

    def after_step(self, *, is_idle: bool) -> None:
        """Args: is_idle: no request is left that could run."""

    def add_to(self, stats: EngineStats) -> EngineStats:
        """The snapshot with what this observer knows."""
        return stats


class ProfiledSteps(StepObserver):
    """Counts the steps of a profile."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler

    def after_dispatch(self, step: InFlightStep, num_tokens: Sequence[int]) -> None:
        self._profiler.step()
