"""BuildOrder: which program is built next behind the requests that are served, and when."""

import collections
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from palladio.runtime.execution.compiled.program_set import StepPrograms
from palladio.runtime.execution.programs.program import ProgramKey
from palladio.runtime.execution.sampling.sampler import SampleTier
from palladio.runtime.scheduling.batch.buckets import Buckets
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledStep

MAX_SECONDS: Final = 270.0  # that all of it takes while requests run, if the machine can do it in that time
LEAST_SHARE: Final = 0.1  # of the time, for programs that no step has asked for, while requests run
LATE_SHARE: Final = 0.75  # of it, when they would not be complete in time otherwise
_IDLE_SECONDS: Final = 0.5  # without a step
_URGENT_SHARE: Final = 0.25  # of the steps since the last program
_ENOUGH_STEPS: Final = 8  # to know that share

_Alike = tuple[str, SampleTier | None]  # kind and tier of programs that take about as long to compile
_Asked = tuple[str, int, int, int, SampleTier]  # a step's kind, rows, tokens, sampled rows and tier


class BuildOrder:
    """Gives the programs that are to be built, one at a time.

    Programs that the last steps would have used come first. While the engine idles, or where many of these steps would
    have used it, a program comes at once. Else, while requests run, a long pause follows each: compilation and steps
    take the same cores and Python's lock, and most engines soon idle. What is left takes a larger share of the time
    when it would not be complete in time otherwise.

    Args:
        programs: the set. keys: those to build, in the order in which they are built if no step asks for one; what one
            stream of text takes comes before them.
        clock: seconds.
    """

    def __init__(
        self, programs: StepPrograms, keys: Sequence[ProgramKey], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._programs = programs
        left = dict.fromkeys(keys)
        usual = programs.taken_by("decode", 1, 1, 1, "full") if programs.design.generates else []  # one stream
        self._left: dict[ProgramKey, None] = {key: None for key in usual if key in left} | left
        self._clock = clock
        self._asked: collections.Counter[ProgramKey] = collections.Counter()
        self._took: dict[_Alike, list[float]] = {}  # seconds
        self._num_steps = 0  # since the last program was taken, as `_asked`
        self._satisfied: set[_Asked] = set()
        self._last_step = -_IDLE_SECONDS

    def note(self, step: ScheduledStep, opened: Buckets, tier: SampleTier) -> bool:
        """The engine's thread runs a step. Returns whether programs are still built.

        Args:
            opened: the buckets that it could choose from.
        """
        if not self._left:
            return False
        self._last_step = self._clock()
        self._num_steps += 1
        asked = self._size(step, opened)
        if (key := (step.kind, *asked, tier)) in self._satisfied:
            return True
        wanted = [each for each in self._programs.taken_by(step.kind, *asked, tier) if each in self._left]
        self._asked.update(wanted)
        if not wanted:
            self._satisfied.add(key)
        return True

    def __iter__(self) -> Iterator[ProgramKey | None]:
        """The next program; None: not yet, ask again soon. Ends when all are there."""
        start, pause_end = self._clock(), 0.0
        while self._left:
            while self._clock() < pause_end and self._is_busy() and not self._is_urgent():
                yield None
            before = self._clock()
            key = self._take()
            del self._left[key]
            yield key
            now = self._clock()
            self._took.setdefault((key.kind, key.tier), []).append(now - before)
            pause_end = now + self._pause(start + MAX_SECONDS - now)

    def _take(self) -> ProgramKey:
        """The one that most steps have asked for since the last one; else the next."""
        asked, self._asked, self._num_steps = self._asked, collections.Counter(), 0
        for key, _ in asked.most_common():
            if key in self._left:
                return key
        return next(iter(self._left))

    def _is_urgent(self) -> bool:
        """Whether many of the last steps would have taken a program that is not there."""
        most = max(self._asked.values(), default=0)
        return self._num_steps >= _ENOUGH_STEPS and most >= _URGENT_SHARE * self._num_steps

    def _pause(self, left: float) -> float:
        """Seconds until the next program.

        Args:
            left: seconds until all should be built.
        """
        expected = self._expected()
        needed = sum(expected)
        if not needed:
            return 0.0
        spare = left - needed / LATE_SHARE  # seconds until they need the larger share
        if spare > 0:
            return min(spare, expected[0] * (1 / LEAST_SHARE - 1))
        share = min(1.0, max(LATE_SHARE, needed / left)) if left > 0 else 1.0
        return expected[0] * (1 / share - 1)

    def _expected(self) -> list[float]:
        """Seconds for each that is not built, as programs of their kind and tier took. Where there was none, as the
        quickest of their kind took: the samplers of the full tier come early and take longest. Else, as all took."""
        times = [seconds for group in self._took.values() for seconds in group]
        usual = {alike: sum(group) / len(group) for alike, group in self._took.items()}
        least: dict[str, float] = {}
        for (kind, _), seconds in usual.items():
            least[kind] = min(seconds, least.get(kind, seconds))
        average = sum(times) / len(times)
        return [usual.get((key.kind, key.tier), least.get(key.kind, average)) for key in self._left]

    def _is_busy(self) -> bool:
        return self._clock() - self._last_step < _IDLE_SECONDS

    def _size(self, step: ScheduledStep, opened: Buckets) -> tuple[int, int, int]:
        """Rows, tokens and sampled rows that the step would have if all buckets were open: more of both, where it fills
        the largest that is."""
        buckets = self._programs.buckets
        rows, tokens, sampled = step.num_rows, step.num_tokens, step.num_sampled_rows
        if rows >= opened.max_requests and step.num_waiting:
            rows = sampled = rows + step.num_waiting
        if step.kind == "prefill" and tokens >= opened.max_prefill_tokens:
            tokens += 1
        return (
            min(rows, buckets.max_requests),
            min(tokens, buckets.max_prefill_tokens),
            min(sampled, buckets.max_requests),
        )
