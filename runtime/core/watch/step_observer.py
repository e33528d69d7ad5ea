"""Observers of steps: they only watch, so that tokens and page ownership are the same without them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Self

from palladio.runtime.execution.batch.reading import InFlightStep
from palladio.runtime.interface.messages.engine_stats import EngineStats, LiveRequest
from palladio.runtime.interface.outputs.token_output import NewTokens
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledStep
from palladio.runtime.scheduling.state.request import Request


class StepObserver:
    """Watches what `EngineCore.step` does, in the engine's thread. A class overrides the hooks that it needs.

    Not here, but called by name in `EngineCore`: whatever acts on the requests in an order that matters.
    """

    def before_step(self) -> None:
        """Nothing is scheduled yet."""

    def before_dispatch(self) -> None:
        """A step is scheduled, and nothing of it dispatched."""

    def after_dispatch(self, step: InFlightStep) -> None:
        """The device has all of a step."""

    def before_process(self, step: InFlightStep, waited: bool) -> None:
        """A step's tokens are there.

        Args:
            waited: the host waited for them.
        """

    def after_process(self, planned: ScheduledStep) -> None:
        """The scheduler has a step's tokens."""

    def after_outputs(self, outputs: Sequence[NewTokens]) -> None:
        """What the core gives back, whatever it comes of."""

    def after_add(self, request: Request) -> None:
        """A request has come."""

    def after_abort(self, request_ids: Sequence[str]) -> None:
        """These requests have ended without output, or do not exist."""

    def after_loss(self) -> None:
        """The steps under way will never be read: the device has lost its state."""

    def after_step(self, is_idle: bool) -> None:
        """A step has ended.

        Args:
            is_idle: no request is left that could run.
        """

    def add_to(self, stats: EngineStats) -> EngineStats:
        """The snapshot with what this observer knows."""
        return stats

    def add_to_request(self, request: LiveRequest) -> None:
        """Adds what this observer knows of a request that has not ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepHooks:
    """The hooks of several observers, those alone that one of them overrides: they run at every step."""

    before_step: list[Callable[[], None]]
    before_dispatch: list[Callable[[], None]]
    after_dispatch: list[Callable[[InFlightStep], None]]
    before_process: list[Callable[[InFlightStep, bool], None]]
    after_process: list[Callable[[ScheduledStep], None]]
    after_outputs: list[Callable[[Sequence[NewTokens]], None]]
    after_add: list[Callable[[Request], None]]
    after_abort: list[Callable[[Sequence[str]], None]]
    after_loss: list[Callable[[], None]]
    after_step: list[Callable[[bool], None]]

    @classmethod
    def of(cls, observers: Sequence[StepObserver]) -> Self:
        none, every = StepObserver, [(observer, type(observer)) for observer in observers]
        return cls(
            [one.before_step for one, kind in every if kind.before_step is not none.before_step],
            [one.before_dispatch for one, kind in every if kind.before_dispatch is not none.before_dispatch],
            [one.after_dispatch for one, kind in every if kind.after_dispatch is not none.after_dispatch],
            [one.before_process for one, kind in every if kind.before_process is not none.before_process],
            [one.after_process for one, kind in every if kind.after_process is not none.after_process],
            [one.after_outputs for one, kind in every if kind.after_outputs is not none.after_outputs],
            [one.after_add for one, kind in every if kind.after_add is not none.after_add],
            [one.after_abort for one, kind in every if kind.after_abort is not none.after_abort],
            [one.after_loss for one, kind in every if kind.after_loss is not none.after_loss],
            [one.after_step for one, kind in every if kind.after_step is not none.after_step],
        )
