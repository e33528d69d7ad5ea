"""Who takes part in steps: the requests that run, how background requests share steps with the others, and for what
those wait that do not run."""

import enum
import functools
import itertools
import operator
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from palladio.runtime.interface.outputs.request_trace import WaitReason, WaitTimes
from palladio.runtime.scheduling.batch.scheduled_batch import (
    Buckets,
    PrefillBucket,
    ScheduledBatch,
    ScheduledStep,
    SchedulerLimits,
)
from palladio.runtime.scheduling.state.page_headroom import Slots
from palladio.runtime.scheduling.state.request import Request
from palladio.runtime.scheduling.state.slot_columns import SlotColumns


class RunningRequests:
    """In the order of their admission. The scheduler adds and removes; others look.

    Args:
        num_slots: that requests may hold; slot 0 is nobody's.
        page_size: tokens a page.

    Attributes:
        columns: what changes of them at each step.
        slots: theirs, in order; another array after each change.
    """

    def __init__(self, num_slots: int, page_size: int) -> None:
        self._num_slots = num_slots
        self._requests: list[Request] = []
        self._free_slots = list(range(num_slots, 0, -1))
        self.columns = SlotColumns(num_slots, page_size)
        self.slots: Slots = np.zeros(0, np.intp)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """Gives the request a slot."""
        request.run_in(self.columns, self._free_slots.pop())
        self._requests.append(request)
        self.slots = np.append(self.slots, request.slot)

    def remove(self, request: Request) -> None:
        """Takes the request's slot."""
        place = self._requests.index(request)
        del self._requests[place]
        self.slots = np.delete(self.slots, place)
        self._free_slots.append(request.slot)
        request.leave_slot()

    def check_integrity(self) -> None:
        """
        Raises:
            AssertionError: a slot is held twice, or lost; or its columns say something else than its request.
        """
        slots = sorted(self._free_slots + [request.slot for request in self._requests])
        assert slots == list(range(1, self._num_slots + 1)), "a slot is lost or used twice"
        assert [request.slot for request in self._requests] == self.slots.tolist(), "the order of slots is another"
        for request in self._requests:
            name, columns, slot = request.given.request_id, self.columns, request.slot
            assert columns.requests[slot] is request, f"{name}: its slot is another request's"
            assert columns.free_until[slot] == request.free_until, f"{name}: its pages reach to another token"
            assert columns.plain_until[slot] <= request.plain_until, f"{name}: its tokens have to be looked at"
            assert len(request.token_ids) == request.num_known_tokens, f"{name}: tokens are lost"


ScheduleTurn = Literal["all", "foreground", "background"]

MAX_PREFILL_SECONDS = 0.05  # of a step with only background requests: whoever comes meanwhile waits for its end
_WEIGHT = 0.2  # of the latest step in the mean of its bucket
_NUM_RECENT = 16  # turns whose longest is expected of the next


class _Needs(enum.Flag):
    """What makes a whole step more expensive as soon as one of its rows asks for it."""

    RANDOM = enum.auto()
    FULL = enum.auto()
    MASK = enum.auto()


class _Foreground(NamedTuple):
    """Rows of others that a decode step has. num_rows: of the rank with most. needs: of all."""

    num_rows: int
    needs: _Needs


class BatchShare:
    """Attributes:
    slowdown: how much longer others may take, as a share of their time.
    num_background, num_foreground: requests in the engine, of all its data-parallel ranks: they share its steps.
    foreground: of the step that is planned, in all ranks; None: there is one, which looks for itself.
    """

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self.num_background = 0
        self.num_foreground = 0
        self._seconds: dict[int | PrefillBucket, float] = {}  # of a forward pass, by bucket: of decode steps its rows
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)
        self._credit = 0.0
        self.foreground: _Foreground | None = None

    def count(self, change: int, *, background: bool) -> None:
        """Requests have come, or have ended."""
        if background:
            self.num_background += change
        else:
            self.num_foreground += change

    def expect(self, foreground: _Foreground) -> None:
        """What the step that is planned next has of others, in all ranks."""
        self.foreground = foreground

    def may_take_turn(self) -> bool:
        """Whether a step of background requests alone is paid for."""
        return self._credit > 0 and self._credit >= max(self._recent, default=0.0)

    def rest(self) -> None:
        """The others are gone: what they have paid is gone with them."""
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
        """Of a step of background requests alone; a bucket that has not been used yet may be tried."""
        sizes = reversed(buckets.prefill)
        fitting = (bucket for bucket in sizes if self._seconds.get(bucket, 0.0) <= MAX_PREFILL_SECONDS)
        return next(fitting, buckets.prefill[0]).num_tokens

    def expected_seconds(self, batch: ScheduledBatch | ScheduledStep, buckets: Buckets) -> float:
        """Of a step; 0: none of its size has been seen."""
        return self._seconds.get(_bucket(batch, buckets), 0.0) * batch.num_passes

    def note(self, batch: ScheduledBatch | ScheduledStep, seconds: float, buckets: Buckets, *, is_shared: bool) -> None:
        """Args: seconds: that the step took. is_shared: whether there are requests of both kinds."""
        bucket = _bucket(batch, buckets)
        pass_seconds = seconds / batch.num_passes
        old = self._seconds.get(bucket, pass_seconds)
        self._seconds[bucket] = old + _WEIGHT * (pass_seconds - old)
        if not self.num_background or not all(request.given.options.background for request in batch.requests):
            self._credit += seconds * self.slowdown / 2
            return
        self._recent.append(seconds)
        if is_shared:
            self._credit -= seconds

    def _is_known(self, size: int, limit: float) -> bool:
        seconds = self._seconds.get(size)
        return seconds is not None and seconds <= limit


def _bucket(batch: ScheduledBatch | ScheduledStep, buckets: Buckets) -> int | PrefillBucket:
    if batch.kind == "decode" and buckets.decode:
        return buckets.pick_decode(batch.num_rows)
    if batch.kind == "verify" and (verify := buckets.pick_verify(batch.num_rows)) is not None:
        return verify.forward
    return buckets.pick_prefill(batch.num_tokens, batch.num_rows)


def _needs(request: Request) -> _Needs:
    """What it asks of the steps that sample for it."""
    params, needs = request.given.params, _Needs(0)
    if not params.is_greedy:
        needs |= _Needs.RANDOM
    if params.logprobs is not None or params.has_history:
        needs |= _Needs.FULL
    if request.constraint is not None:
        needs |= _Needs.MASK  # the host has to know each token before the next one is sampled
    return needs


def _is_ready(request: Request) -> bool:
    return not request.is_prefilling and request.wants_token


def _slots_of(requests: Sequence[Request]) -> Slots:
    return np.array([request.slot for request in requests], np.intp)


class ScheduleTurns:
    """Whose step the next one is, and who takes part in it.

    Args:
        share: what background requests may take; where there are several data-parallel ranks, one for all.
        running: the scheduler's requests.
    """

    def __init__(self, share: BatchShare, running: RunningRequests) -> None:
        self.share = share
        self._running = running

    @property
    def is_shared(self) -> bool:
        """Whether there are background requests and others."""
        return self.share.num_background > 0 and self.share.num_foreground > 0

    @property
    def is_background_only(self) -> bool:
        return self.share.num_background > 0 and not self.share.num_foreground

    def max_tokens(self, slots: Slots, num_waiting: int, buckets: Buckets, limits: SchedulerLimits) -> int:
        """How many tokens a decode step may give each of these requests, if they have no drafts."""
        # Who prefills, waits, or is a background request beside others, is not held up by several tokens.
        is_alone = len(slots) == len(self._running) and not num_waiting
        if not is_alone or not buckets.several or buckets.pick_decode(len(slots)) not in buckets.several:
            return limits.num_decode_steps
        # Others need the host between two tokens, or a program that samples alone.
        is_plain = all(_needs(request) in _Needs.RANDOM for request in self._running.columns.requests[slots])
        return limits.joined_passes if is_plain else limits.num_decode_steps

    def join(self, request: Request) -> None:
        """A request has come."""
        self.share.count(1, background=request.given.options.background)

    def leave(self, request: Request) -> None:
        """It has ended."""
        self.share.count(-1, background=request.given.options.background)

    def order(self, num_waiting: int) -> tuple[ScheduleTurn, ...]:
        """Whose step the next one is; then whose, if those cannot run, or have nothing left to do.

        Args:
            num_waiting: foreground requests that wait.
        """
        if not self.share.num_background:
            return ("all",)
        if not self.share.num_foreground:
            self.share.rest()
            return ("background",)
        if self.share.may_take_turn() and not num_waiting:
            return "background", "foreground"
        return "foreground", "background"

    def members(self, turn: ScheduleTurn) -> list[Request]:
        """The running requests whose step it is."""
        if turn == "all" or not self.is_shared:
            return list(self._running)
        return [request for request in self._running if request.given.options.background == (turn == "background")]

    def slots(self, turn: ScheduleTurn) -> Slots:
        """Those of `members`."""
        if turn == "all" or not self.is_shared:
            return self._running.slots
        return _slots_of(self.members(turn))

    def prefilling(self, turn: ScheduleTurn) -> list[Request]:
        """Those of them that prefill."""
        slots, columns = self.slots(turn), self._running.columns
        if columns.are_roomy(slots):
            return []
        unfree = columns.free_until[slots] == 0
        return [r for r in columns.requests[slots[unfree]] if r.is_prefilling] if np.count_nonzero(unfree) else []

    def decoders(self, turn: ScheduleTurn, buckets: Buckets) -> Slots:
        """Slots of those that may decode in it: background requests beside others as far as that hardly costs."""
        if turn != "foreground" or not self.is_shared:
            return self.slots(turn)
        own = self._foreground()
        step = self.share.foreground or own
        num_free = self.share.num_fitting(step.num_rows, buckets) - own.num_rows
        ready = (r for r in self.members("background") if _is_ready(r) and _needs(r) in step.needs)
        return _slots_of([*self.members(turn), *itertools.islice(ready, num_free)])

    @staticmethod
    def look_at_foreground(ranks: Sequence["ScheduleTurns"]) -> None:
        """Before a step of several ranks, which share `share`, is planned: a rank with fewer rows than another, or
        none, has as many in the step's bucket as that one."""
        found = [turns._foreground() for turns in ranks]
        needs = functools.reduce(operator.or_, (each.needs for each in found))
        ranks[0].share.expect(_Foreground(max(each.num_rows for each in found), needs))

    def note(self, batch: ScheduledBatch | ScheduledStep, seconds: float, buckets: Buckets) -> None:
        """A step has been read. Args: seconds: that it took."""
        self.share.note(batch, seconds, buckets, is_shared=self.is_shared)

    def _foreground(self) -> _Foreground:
        rows = [request for request in self.members("foreground") if _is_ready(request)]
        return _Foreground(len(rows), functools.reduce(operator.or_, map(_needs, rows), _Needs(0)))


class QueueTime:
    """Runs while somebody waits, and puts the time down to one reason: the one that the last planned step met.

    A request that joins or leaves the queue stops the time, so that it gets its own part of an interval. A moment
    costs the same however many wait.
    """

    def __init__(self) -> None:
        self.reason: WaitReason = "step"
        self.num_retracted = 0
        self._totals = WaitTimes()
        self._since = time.perf_counter()

    def advance(self) -> None:
        """Puts down the time since the last call; somebody waited."""
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        self._totals.add(self.reason, seconds)

    def join(self, reason: WaitReason | None) -> WaitTimes:
        """Somebody joins the queue; returns the totals at this moment.

        Args:
            reason: the queue was empty, and until the next step is planned this is what it waits for; None: it was not.
        """
        if reason is None:
            self.advance()
        else:
            self.reason = reason
            self._since = time.perf_counter()
        return self._now()

    def join_retracted(self, *, is_first: bool) -> WaitTimes:
        """A request that has lost its pages joins the queue: what holds it up is memory. Returns as `join` does.

        Args:
            is_first: the queue was empty.
        """
        self.num_retracted += 1
        mark = self.join("memory" if is_first else None)
        self.reason = "memory"
        return mark

    def put_down_to(self, reason: WaitReason) -> None:
        """What the step met that has just been planned."""
        self.reason = reason

    def leave(self) -> WaitTimes:
        """Somebody leaves the queue; returns the totals at this moment."""
        self.advance()
        return self._now()

    def _now(self) -> WaitTimes:
        return self._totals.copy(self.num_retracted)
