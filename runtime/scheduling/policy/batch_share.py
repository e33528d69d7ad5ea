"""How background requests share steps with all others (--background-slowdown): what they may take, and who takes part
in a step. A scheduler asks only while there are background requests."""

import functools
import itertools
import operator
import time
from collections import deque
from collections.abc import Sequence, Sized
from typing import Literal, NamedTuple

import numpy as np

from palladio.runtime.scheduling.batch.buckets import Buckets, PrefillBucket
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledStep
from palladio.runtime.scheduling.state.request import Request, StepNeeds
from palladio.runtime.scheduling.state.running import RunningRequests
from palladio.runtime.scheduling.state.slot_columns import Slots

StepClass = Literal["all", "foreground", "background"]
"""Which requests a step is for. "all": there are no background requests."""

MAX_PREFILL_SECONDS = 0.05  # of a step with only background requests: a new foreground request waits for its end
_WEIGHT = 0.2  # of the latest step in the mean of its bucket
_NUM_RECENT = 16  # background steps whose longest is expected of the next
_SPARED = 0.8  # of a step's expected time: the rest is for the host, and for steps that end early


class _Foreground(NamedTuple):
    """Foreground rows of a decode step. num_rows: of the rank with most. needs: of all ranks."""

    num_rows: int
    needs: StepNeeds


class BatchShare:
    """What background requests may take of the engine's steps. All data-parallel ranks have the same: they share steps.

    A background row rides along in a step of foreground requests if that hardly costs these more, by the mean seconds
    of each bucket. And foreground steps earn credit, `slowdown` of their time, for steps of background requests alone.
    Half of the slowdown is for the one, half for the other.

    Attributes:
        slowdown: how much longer foreground requests may take, as a share of their time.
        num_background: background requests in the engine, of all its data-parallel ranks.
        foreground: foreground rows of the planned step, in all ranks; None: a single rank counts its own.
    """

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self.num_background = 0
        self._requests: list[Sized] = []  # of each rank, background or not
        self._seconds: dict[int | PrefillBucket, float] = {}  # of a forward pass, by bucket: of decode steps its rows
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)
        self._credit = 0.0
        self._last_read: float | None = None  # when the last step was read; None: before there were background requests
        self.foreground: _Foreground | None = None

    @property
    def num_foreground(self) -> int:
        """The other requests in the engine."""
        return sum(map(len, self._requests)) - self.num_background

    @property
    def is_shared(self) -> bool:
        """Whether there are background requests and others."""
        return self.num_background > 0 and self.num_foreground > 0

    @property
    def is_background_only(self) -> bool:
        return self.num_background > 0 and not self.num_foreground

    def watch(self, requests: Sized) -> None:
        """Count a rank's requests.

        Args:
            requests: the live collection of all that have not ended.
        """
        self._requests.append(requests)

    def count(self, change: int) -> None:
        """Background requests have come, or have ended."""
        if not self.num_background:
            self.reset_credit()
            self._last_read = None
        self.num_background += change

    def order(self, num_waiting: int) -> tuple[StepClass, ...]:
        """Whose step the next one is; then whose, if those cannot run, or have nothing left to do.

        Args:
            num_waiting: foreground requests that wait.
        """
        if not self.num_background:
            return ("all",)
        if not self.num_foreground:
            self.reset_credit()
            return ("background",)
        if self.can_pay() and not num_waiting:
            return "background", "foreground"
        return "foreground", "background"

    def expect(self, foreground: _Foreground) -> None:
        """Sets what the step that is planned next has of foreground rows, in all ranks."""
        self.foreground = foreground

    def can_pay(self) -> bool:
        """Whether the credit is enough for a step of background requests alone."""
        return self._credit > 0 and self._credit >= max(self._recent, default=0.0)

    def reset_credit(self) -> None:
        """Drops the credit: it is for sharing steps with those who earned it."""
        self._credit = 0.0

    def num_fitting(self, num_rows: int, buckets: Buckets) -> int:
        """How many rows, these included, a decode step may have for (nearly) the price of these."""
        if num_rows == 0:
            return 0
        if not buckets.decode:  # one shape for all steps
            return buckets.max_prefill_requests
        own = buckets.pick_decode(num_rows)
        seconds = self._seconds.get(own)
        if seconds is None:
            return own
        limit = seconds * (1 + self.slowdown / 2)
        return next(size for size in reversed(buckets.decode) if size <= own or self._is_known(size, limit))

    def max_prefill_tokens(self, buckets: Buckets) -> int:
        """Most prefill tokens of a step of background requests alone; an unused bucket may be tried."""
        sizes = reversed(buckets.prefill)
        fitting = (bucket for bucket in sizes if self._seconds.get(bucket, 0.0) <= MAX_PREFILL_SECONDS)
        return next(fitting, buckets.prefill[0]).num_tokens

    def spare_seconds(self, newest: ScheduledStep, dispatched: float, buckets: Buckets) -> float:
        """How long the next step may wait without the device waiting for it. 0, unless there are background requests
        alone: a request that comes meanwhile takes part in the next step.

        Args:
            newest: the last step that was dispatched. dispatched: when, by time.perf_counter.
        """
        if not self.is_background_only:
            return 0.0
        expected = self._seconds.get(_bucket(newest, buckets), 0.0) * newest.num_passes  # 0: not seen yet
        begun = max(dispatched, self._last_read or 0.0)
        return max(0.0, begun + expected * _SPARED - time.perf_counter())

    def measure(self, step: ScheduledStep, dispatched: float, buckets: Buckets) -> None:
        """Measures a step that has just been read, while there are background requests. It lasts as its requests feel
        it: from the end of the one before, as the host has read it, or from its own dispatch if that was later.

        Args:
            dispatched: when it was dispatched, by time.perf_counter.
        """
        before, self._last_read = self._last_read, time.perf_counter()
        if before is not None:  # else it may have waited for a step that was not measured
            self.note(step, self._last_read - max(dispatched, before), buckets)

    def note(self, step: ScheduledStep, seconds: float, buckets: Buckets) -> None:
        """Takes how long a step has lasted."""
        bucket = _bucket(step, buckets)
        pass_seconds = seconds / step.num_passes
        old = self._seconds.get(bucket, pass_seconds)
        self._seconds[bucket] = old + _WEIGHT * (pass_seconds - old)
        if not all(request.given.options.background for request in step.requests):
            self._credit += seconds * self.slowdown / 2
            return
        self._recent.append(seconds)
        if self.is_shared:
            self._credit -= seconds

    def _is_known(self, size: int, limit: float) -> bool:
        seconds = self._seconds.get(size)
        return seconds is not None and seconds <= limit


class StepMix(NamedTuple):
    """Which of a rank's running requests take part in a step, while there are background requests.

    Attributes:
        share: what background requests may take.
        running: the rank's requests.
    """

    share: BatchShare
    running: RunningRequests

    def members(self, step_class: StepClass) -> list[Request]:
        """The running requests whose step it is."""
        if step_class == "all" or not self.share.is_shared:
            return list(self.running)
        return [one for one in self.running if one.given.options.background == (step_class == "background")]

    def slots(self, step_class: StepClass) -> Slots:
        """Those of `members`."""
        if step_class == "all" or not self.share.is_shared:
            return self.running.slots
        return _slots_of(self.members(step_class))

    def decoders(self, step_class: StepClass, buckets: Buckets) -> Slots:
        """Slots of those that may decode in it: background requests beside others as far as that hardly costs."""
        if step_class != "foreground" or not self.share.is_shared:
            return self.slots(step_class)
        own = self.foreground()
        step = self.share.foreground or own
        num_free = self.share.num_fitting(step.num_rows, buckets) - own.num_rows
        ready = (r for r in self.members("background") if _is_ready(r) and r.needs in step.needs)
        return _slots_of([*self.members(step_class), *itertools.islice(ready, num_free)])

    def foreground(self) -> _Foreground:
        """The rank's foreground rows of a decode step."""
        rows = [request for request in self.members("foreground") if _is_ready(request)]
        needs = functools.reduce(operator.or_, (request.needs for request in rows), StepNeeds.NONE)
        return _Foreground(len(rows), needs)


def expect_foreground(share: BatchShare, ranks: Sequence[RunningRequests]) -> None:
    """Count the foreground rows of several ranks before their joint step is planned.

    A rank with fewer rows than another, or none, has as many in the step's bucket as that one.

    Args:
        share: the one share of all ranks.
    """
    found = [StepMix(share, running).foreground() for running in ranks]
    needs = functools.reduce(operator.or_, (each.needs for each in found))
    share.expect(_Foreground(max(each.num_rows for each in found), needs))


def _bucket(step: ScheduledStep, buckets: Buckets) -> int | PrefillBucket:
    if step.kind == "decode" and buckets.decode:
        return buckets.pick_decode(step.num_rows)
    if step.kind == "verify" and (verify := buckets.pick_verify(step.num_rows)) is not None:
        return verify.forward
    return buckets.pick_prefill(step.num_tokens, step.num_rows)


def _is_ready(request: Request) -> bool:
    return not request.is_prefilling and request.wants_token


def _slots_of(requests: Sequence[Request]) -> Slots:
    return np.array([request.slot for request in requests], np.intp)
