"""Background requests: they fill what others leave, and others hardly notice."""

from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies as st

from palladio.runtime.interface.errors import OverloadedError
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling.batch.buckets import Buckets
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch
from palladio.runtime.scheduling.policy.batch_share import BatchShare
from tests.properties import examples
from tests.runtime.scheduling.scheduler_sim import Simulation
from tests.runtime.scheduling.simulated_model import EOS, expected_output

BACKGROUND = RequestOptions(background=True)
PROMPT = [11, 12, 13]


def add_background(sim: Simulation, count: int, max_tokens: int = 20) -> None:
    for number in range(count):
        sim.add(f"b{number}", [40 + number, 12, 13], max_tokens, ignore_eos=True, options=BACKGROUND)


def num_background(batch: ScheduledBatch) -> int:
    return sum(row.request.given.options.background for row in batch.rows)


def flat(batch: ScheduledBatch) -> float:
    """An accelerator: decode steps of all sizes take the same."""
    return 0.01 if batch.kind == "decode" else 0.002 * batch.num_tokens


def linear(batch: ScheduledBatch) -> float:
    """A CPU."""
    return 0.01 * batch.num_tokens


def test_alone_they_run_as_all_do() -> None:
    plain, background = Simulation(num_pages=60), Simulation(num_pages=60)
    for number in range(6):
        plain.add(f"b{number}", [40 + number, 12, 13], 20, ignore_eos=True)
    add_background(background, 6)
    plain.run()
    background.run()
    assert background.outputs == plain.outputs
    assert len(background.batches) == len(plain.batches)


def test_whoever_comes_is_next() -> None:
    sim = Simulation(num_pages=60, max_running=4)
    add_background(sim, 8)
    for _ in range(6):
        sim.step()
    assert len(sim.scheduler.running) == 4
    sim.add("a", PROMPT, 5, ignore_eos=True)
    sim.step()
    assert [row.request.given.request_id for row in sim.batches[-1].rows] == ["a"]
    sim.run()
    assert sim.outputs["a"] == expected_output(PROMPT, 5, frozenset())
    assert len(sim.finished) == 9


def test_whoever_comes_gets_pages() -> None:
    sim = Simulation(num_pages=9, page_size=4, max_running=4, max_step_tokens=32)
    add_background(sim, 4, max_tokens=8)
    for _ in range(4):
        sim.step()
    long = list(range(20, 40))
    sim.add("a", long, 8, ignore_eos=True)
    sim.step()
    assert [row.request.given.request_id for row in sim.batches[-1].rows] == ["a"]
    sim.run()
    assert sim.outputs["a"] == expected_output(long, 8, frozenset())
    assert all(sim.outputs[f"b{i}"] == expected_output([40 + i, 12, 13], 8, frozenset()) for i in range(4))


def steps_beside(sim: Simulation, seconds_of: Callable[[ScheduledBatch], float]) -> list[ScheduledBatch]:
    """The steps while one other request decodes."""
    sim.seconds_of = seconds_of
    for size in (1, 2, 3, 4):
        for number in range(size):
            sim.add(f"warm{size}.{number}", PROMPT, 6, ignore_eos=True)
        sim.run()
    add_background(sim, 4, max_tokens=400)
    for _ in range(8):
        sim.step()
    begin = len(sim.batches)
    sim.add("a", PROMPT, 300, ignore_eos=True)
    while "a" not in sim.finished:
        sim.step()
    steps = sim.batches[begin:]
    while num_background(steps[-1]) == len(steps[-1].rows):
        steps.pop()  # the other one's last token had been planned
    return steps


def test_rows_that_cost_nothing_are_theirs() -> None:
    steps = steps_beside(Simulation(num_pages=600), flat)
    decode = [batch for batch in steps if batch.kind == "decode" and num_background(batch) < len(batch.rows)]
    assert len(decode) > 250
    assert all(num_background(batch) == 3 for batch in decode[2:-2]), "four rows take no longer than one"


@pytest.mark.parametrize(
    ("own", "theirs", "is_welcome"),
    [
        ({}, {"is_constrained": True}, False),
        ({"is_constrained": True}, {"is_constrained": True}, True),
        ({"temperature": 0.0}, {"temperature": 1.0}, False),
        ({"temperature": 1.0}, {"temperature": 0.0}, True),
        ({}, {"logprobs": 1}, False),
        ({}, {"presence_penalty": 0.5}, False),
        ({"logprobs": 1}, {"presence_penalty": 0.5}, True),
    ],
)
def test_rows_that_ask_for_more_than_the_others_do_not_fill_up(own: dict, theirs: dict, is_welcome: bool) -> None:
    sim = Simulation(num_pages=200, background_slowdown=0.0)
    for number in range(2):
        sim.add(f"b{number}", [40 + number, 12, 13], 60, ignore_eos=True, options=BACKGROUND, **theirs)
    for _ in range(4):
        sim.step()
    for name in "abc":  # of four rows that the bucket has
        sim.add(name, [ord(name), 5], 12, ignore_eos=True, **own)
    begin = len(sim.batches)
    while len(sim.finished) < 3:
        sim.step()
    full = [batch for batch in sim.batches[begin:] if len(batch.rows) - num_background(batch) == 3]
    assert len(full) > 3
    assert any(num_background(batch) for batch in full) == is_welcome


@pytest.mark.parametrize("slowdown", [0.0, 0.15, 0.5])
def test_others_pay_no_more_than_was_said(slowdown: float) -> None:
    steps = steps_beside(Simulation(num_pages=600, background_slowdown=slowdown), linear)
    own = sum(linear(batch) for batch in steps if num_background(batch) == 0)
    shared = sum(linear(batch) for batch in steps if 0 < num_background(batch) < len(batch.rows))
    turns = [linear(batch) for batch in steps if num_background(batch) == len(batch.rows)]
    assert shared == 0, "a second row doubles a step here"
    assert sum(turns) <= own * slowdown / 2 + max(turns, default=0.0)
    assert bool(turns) == (slowdown > 0), "and it is used"


def test_what_others_paid_before_does_not_count() -> None:
    share, requests = BatchShare(0.2), ["foreground", "background"]
    share.watch(requests)
    sim = Simulation(num_pages=60)
    sim.add("a", PROMPT, 50, ignore_eos=True)
    for _ in range(10):
        sim.step()
    share.count(1)
    for batch in sim.batches:
        share.note(batch, 1.0, BUCKETS)
    assert share.order(0) == ("background", "foreground")
    for change in (1, 0):  # what ends, and what comes again, is the background request, then the other one
        requests.pop()
        share.count(-change)
        share.order(0)
        requests.append("again")
        share.count(change)
        assert share.order(0) == ("foreground", "background")
        for batch in sim.batches:
            share.note(batch, 1.0, BUCKETS)
        assert share.order(0) == ("background", "foreground")


def test_others_pay_nothing_before_there_are_background_requests() -> None:
    """However long they have run."""
    sim = Simulation(num_pages=600)
    sim.seconds_of = lambda batch: 0.01 if num_background(batch) else 1.0
    sim.add("a", PROMPT, 300, ignore_eos=True)
    for _ in range(100):
        sim.step()
    add_background(sim, 3, max_tokens=300)
    begin = len(sim.batches)
    for _ in range(40):
        sim.step()
    own = [batch for batch in sim.batches[begin:] if num_background(batch) < len(batch.rows)]
    assert len(own) > 3
    assert own[0] is sim.batches[begin]


def test_prefill_steps_that_take_long_become_smaller() -> None:
    sim = Simulation(num_pages=600, max_step_tokens=64, max_running=8)
    sim.seconds_of = lambda batch: 0.002 * batch.num_tokens
    for number in range(8):
        sim.add(f"b{number}", list(range(100 * number, 100 * number + 80)), 2, options=BACKGROUND)
    sim.run()
    sizes = [batch.num_tokens for batch in sim.batches if batch.kind == "prefill"]
    assert max(sizes[:2]) == 64, "the largest is tried"
    assert max(sizes[8:]) == 16, "and those that keep others waiting for more than 50 ms are not used again"
    assert sum(sizes) == 640


def test_they_do_not_fill_the_queue_of_others() -> None:
    sim = Simulation(max_queued=2)
    add_background(sim, 5)
    sim.add("a", PROMPT, 4)
    sim.add("b", PROMPT, 4)
    with pytest.raises(OverloadedError):
        sim.add("c", PROMPT, 4)
    sim.run()


BUCKETS = Buckets.create(max_running=4, max_step_tokens=16, growth=2)


def test_each_step_lasts_from_the_end_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now, share, step, seconds = [0.0], BatchShare(0.0), background_step(), []
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(share, "note", lambda step, lasted, buckets: seconds.append(lasted))
    share.count(1)
    for dispatched, read in ((0.5, 1.5), (1.0, 2.0), (2.0, 5.0), (2.5, 6.5), (9.0, 9.25)):
        now[0] = read
        share.measure(step, dispatched, BUCKETS)
    assert seconds == [0.5, 3.0, 1.5, 0.25], "of the first one, when it began to run is not known"
    for background_comes in (-1, 1):
        share.count(background_comes)
    now[0] = 20.0
    share.measure(step, 10.0, BUCKETS)
    assert len(seconds) == 4


def test_spare_time_ends_before_the_step_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now, share, step, requests = [10.0], BatchShare(0.0), background_step(), ["background"]
    share.watch(requests)
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    share.note(step, 1.0, BUCKETS)
    assert share.spare_seconds(step, 10.0, BUCKETS) == 0.0, "no step may wait"
    share.count(1)
    assert share.spare_seconds(step, 10.0, BUCKETS) == pytest.approx(0.8)
    now[0] = 10.5
    assert share.spare_seconds(step, 10.0, BUCKETS) == pytest.approx(0.3)
    now[0] = 11.0
    share.measure(step, 10.0, BUCKETS)  # the next one, which was dispatched at 10.5, begins now
    assert share.spare_seconds(step, 10.5, BUCKETS) == pytest.approx(0.8)
    now[0] = 12.0
    assert share.spare_seconds(step, 10.5, BUCKETS) == 0.0
    now[0] = 11.0
    requests.append("foreground")
    assert share.spare_seconds(step, 10.5, BUCKETS) == 0.0, "others do not wait"


def background_step() -> ScheduledBatch:
    sim = Simulation()
    add_background(sim, 1)
    sim.step()
    return sim.batches[0]


@hypothesis.given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 20), st.integers(1, 20), st.integers(0, 5)), max_size=25),
    st.sampled_from([flat, linear]),
    st.booleans(),
    st.sampled_from([11, 16, 60]),
)
@examples(50)
def test_nobody_is_lost(
    arrivals: list[tuple[bool, int, int, int]], seconds_of: Callable[[ScheduledBatch], float], mixes: bool, pages: int
) -> None:
    sim = Simulation(num_pages=pages, max_running=3, max_step_tokens=16, mixes=mixes, seconds_of=seconds_of)
    expected = {}
    for number, (background, length, max_tokens, num_steps) in enumerate(arrivals):
        prompt = [(number * 5 + i) % 90 for i in range(length)]
        expected[f"r{number}"] = expected_output(prompt, max_tokens, frozenset({EOS}))
        sim.add(f"r{number}", prompt, max_tokens, options=RequestOptions(background=background))
        for _ in range(num_steps):
            sim.step()
    sim.run()
    assert sim.outputs == expected
    assert sim.finished.keys() == expected.keys()
    assert sim.cache.num_used_tokens == 0
