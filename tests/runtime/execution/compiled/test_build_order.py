"""Which program is built next, and how much of the time while requests run."""

import dataclasses
from collections.abc import Iterator

import pytest

from palladio.runtime.execution.compiled.build_order import LATE_SHARE, LEAST_SHARE, MAX_SECONDS, BuildOrder
from palladio.runtime.execution.programs.program import ProgramKey
from tests.runtime.execution.compiled.test_program_set import BUCKETS, declare, opened_by

__all__ = ["declare"]  # a fixture


@dataclasses.dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclasses.dataclass(frozen=True)
class Step:
    """In place of a ScheduledStep."""

    kind: str
    num_rows: int
    num_tokens: int = 0
    num_sampled_rows: int = 1
    num_waiting: int = 0


class Machine:
    """Builds what an order gives; a program takes a second."""

    def __init__(self, programs) -> None:
        self.programs = programs
        self.clock = Clock()
        self.first = programs.first_keys(splits_prompts=True)
        self.opened = opened_by(programs, self.first)
        self.rest = programs.background_keys(splits_prompts=True)
        self.order = BuildOrder(programs, self.rest, self.clock)
        self.keys: Iterator[ProgramKey | None] = iter(self.order)

    def note(self, *step, tier="greedy", **more) -> bool:
        return self.order.note(Step(*step, **more), self.opened, tier)

    def build(self) -> object:
        key = next(self.keys, "over")
        self.clock.now += 1.0 if isinstance(key, ProgramKey) else 0.1
        return key

    def run(self, kind: str, rows: int, seconds: float, **more) -> list[tuple[float, object]]:
        """Steps all the time; what was built in it, and when."""
        built, start = [], self.clock.now
        while self.clock.now < start + seconds:
            self.note(kind, rows, **more)
            began = self.clock.now - start
            key = self.build()
            if key == "over":
                break
            if key is not None:
                built.append((began, key))
        return built


@pytest.fixture
def machine(declare) -> Machine:
    return Machine(declare(joined_rows=4))


def names(built) -> list[str]:
    return [str(key) for _, key in built]


def test_an_idle_engine_builds_all_without_a_pause_the_first_stream_s_programs_first(machine):
    built = [machine.build() for _ in machine.rest]
    assert [str(key) for key in built[:2]] == ["forward[bs=1]", "sample[bs=1,full]"]
    assert built[2:] == [key for key in machine.rest if key not in built[:2]]
    assert machine.build() == "over"
    assert not machine.note("decode", 1)


def test_what_one_stream_wants_comes_first(machine):
    built = machine.run("decode", 1, 6)
    assert names(built) == ["forward[bs=1]", "sample[bs=1,full]", "decode[bs=1,greedy]", "sample[bs=1,greedy]"]


def test_what_many_streams_want_comes_first_though_few_run_yet(machine):
    built = machine.run("decode", 8, 5, num_waiting=12, tier="random")
    size = BUCKETS.pick_decode(20)
    assert size > 8
    assert names(built)[:3] == [f"forward[bs={size}]", f"sample[bs={size},full]", f"sample[bs={size},random]"]


def test_what_long_prompts_want_comes_first(machine):
    built = machine.run("prefill", 1, 4, num_tokens=256)
    assert {"forward[bs=64,tok=512]", "score[tok=512]"} <= set(names(built))


def test_what_few_steps_want_is_not_built_at_once(machine):
    machine.run("decode", 1, 8)
    count = 0
    for _ in range(10):
        machine.note("prefill", 1, num_tokens=16)
        count += len(machine.run("decode", 1, 2))
    assert count <= 3
    machine.clock.now += 1  # without requests
    assert machine.build() is not None


def test_while_requests_run_the_rest_has_a_small_share_of_the_time(machine):
    machine.run("decode", 1, 10)
    before = machine.clock.now
    built = machine.run("decode", 1, 100)
    assert len(built) / (machine.clock.now - before) == pytest.approx(LEAST_SHARE, abs=0.02)


def test_what_would_be_late_has_a_larger_share(machine):
    size = 2.0  # seconds of a program

    def built_in(begin: float, end: float) -> float:
        return sum(size for moment in moments if begin <= moment < end)

    moments, start = [], machine.clock.now
    while (now := machine.clock.now) < start + MAX_SECONDS:
        machine.note("decode", 1)
        key = next(machine.keys, "over")
        if key == "over":
            break
        if key is not None:
            moments.append(now - start)
        machine.clock.now += 0.1 if key is None else size
    assert len(moments) == len(machine.rest)
    late = MAX_SECONDS - len(machine.rest) * size / LATE_SHARE
    assert late > 60
    assert built_in(30, late) / (late - 30) < 2 * LEAST_SHARE
    assert built_in(late + 30, moments[-1]) / (moments[-1] - late - 30) == pytest.approx(LATE_SHARE, abs=0.1)


def test_samplers_that_compile_quickly_are_not_expected_to_take_as_long_as_the_first_ones(machine):
    """Seconds as of Gemma 3 270M on two cores."""

    def size(key: ProgramKey) -> float:
        seconds = {"forward": 3.5, "decode": 2.0, "score": 0.7, "sample": 3.5 if key.tier == "full" else 0.5}
        return seconds.get(key.kind, 0.5)

    built, start = [], machine.clock.now
    while (key := next(machine.keys, "over")) != "over":
        if key is not None:
            built.append((machine.clock.now - start, size(key)))
        machine.clock.now += 0.1 if key is None else size(key)
        machine.note("decode", 1)
    late = MAX_SECONDS - sum(map(size, machine.rest)) / LATE_SHARE
    assert late > 100
    assert sum(seconds for moment, seconds in built if 30 <= moment < late) / (late - 30) < 2 * LEAST_SHARE
    assert machine.clock.now - start < MAX_SECONDS + 15


def test_the_rest_comes_at_once_when_requests_have_ended(machine):
    machine.run("decode", 1, 12)
    machine.clock.now += 1
    assert all(machine.build() is not None for _ in range(5))


def test_all_is_built_in_time_under_steady_load(machine):
    built = machine.run("decode", 1, 1000)
    assert len(built) == len(machine.rest)
    assert machine.clock.now - 100 < MAX_SECONDS + 10


def test_a_slow_machine_builds_all_the_time_when_there_is_none_left(machine):
    slow = 10.0
    start = machine.clock.now
    count = 0
    while machine.clock.now < start + 2 * MAX_SECONDS:
        machine.note("decode", 1)
        key = next(machine.keys, "over")
        if key == "over":
            break
        is_program = isinstance(key, ProgramKey)
        count += is_program
        machine.clock.now += slow if is_program else 0.1
        late = machine.clock.now > start + MAX_SECONDS
        assert is_program or not late
    assert count * slow > MAX_SECONDS


def test_a_step_that_has_all_it_wants_asks_for_nothing(machine):
    machine.run("decode", 1, 6)
    before = machine.build()
    while machine.build() is None:
        machine.note("decode", 1)
    assert before is None or before in machine.rest
    assert machine.order._asked.total() == 0
