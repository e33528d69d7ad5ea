"""Ever more load, until a promise about times breaks; then closer to where it did."""

import dataclasses
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from palladio.load.figures import PERCENTS, TIMES
from palladio.load.runner import Pace
from palladio.runtime.interface.errors import ConfigError

Measure = Callable[[Pace], Awaitable[dict[str, Any]]]

_FORM = re.compile(r"(\w+):p(\d+)<=?(\d+(?:\.\d+)?)(ms|s)")
_MOST_LEVELS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Slo:
    """A promise: that a percentile of a time stays within a limit.

    Attributes:
        limit: seconds.
    """

    time: str
    percent: int
    limit: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Such as ttft:p99<500ms. Raises ConfigError: it is no promise."""
        found = _FORM.fullmatch(text.replace(" ", "").lower())
        if found is None or found[1] not in TIMES or int(found[2]) not in PERCENTS:
            times, percents = ", ".join(TIMES), ", ".join(f"p{percent}" for percent in PERCENTS)
            raise ConfigError(
                f"--slo {text}: give a time ({times}), a percentile ({percents}) and a limit: ttft:p99<500ms"
            )
        return cls(found[1], int(found[2]), float(found[3]) / (1000 if found[4] == "ms" else 1))

    @property
    def key(self) -> str:
        """The key in the figures."""
        return f"{self.time}_p{self.percent}"

    @property
    def name(self) -> str:
        return f"{self.time}:p{self.percent}<{self.limit * 1000:g}ms"

    def holds(self, figures: dict[str, Any]) -> bool:
        value = figures[self.key]
        return value is not None and value < self.limit


def broken(slos: Sequence[Slo], figures: dict[str, Any]) -> list[str]:
    """What breaks at a level of load: promises, or requests that failed."""
    names = [slo.name for slo in slos if not slo.holds(figures)]
    return [*names, *([f"{figures['failures']} requests failed"] if figures["failures"] else [])]


async def sweep(measure: Measure, start: Pace, slos: Sequence[Slo], refinements: int) -> None:
    """Double the load until an SLO breaks, then bisect between the loads that held and broke.

    Args:
        measure: keeps what it measures.
        refinements: steps of the bisection.
    """
    held, pace = 0.0, start.value
    for _ in range(_MOST_LEVELS):
        if broken(slos, await measure(_at(start, pace))):
            break
        held, pace = pace, 2 * pace
    else:
        return
    failed = pace
    for _ in range(refinements):
        middle = (held + failed) / 2
        if start.concurrency is not None and int(middle) in (int(held), int(failed)):
            return
        if broken(slos, await measure(_at(start, middle))):
            failed = middle
        else:
            held = middle


def _at(start: Pace, value: float) -> Pace:
    return Pace(concurrency=max(1, int(value))) if start.rate is None else Pace(rate=round(value, 3))
