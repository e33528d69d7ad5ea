"""Steps of the same requests, a token each: planned and read without a look at any of them, and yet as all others."""

import numpy as np
import pytest

from palladio.runtime.interface.outputs.request_trace import DecodeSteps
from palladio.runtime.interface.request.generation_request import GenerationRequest
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.batch.scheduled_batch import DecodeRows
from palladio.runtime.scheduling.state.request import Request
from palladio.runtime.scheduling.state.running import RunningRequests, SteadyRows
from tests.counted_calls import counted_calls
from tests.runtime.scheduling.scheduler_sim import Simulation

NEVER = 10**6  # steps


def run(num_pages: int, check_interval: int, lag: int, *, mixes: bool) -> Simulation:
    """Requests of several lengths, some of them longer than columns remember, some with tokens that end them."""
    sizes = {"num_pages": num_pages, "page_size": 8, "max_running": 6}
    sim = Simulation(**sizes, check_interval=check_interval, lag=lag, mixes=mixes)
    for number in range(9):
        prompt = list(range(3 + number, 6 + 3 * number))
        sim.add(str(number), prompt, 12 + 31 * number, ignore_eos=number % 3 != 0)
    sim.run()
    return sim


@pytest.mark.parametrize(
    ("num_pages", "lag", "mixes"),
    [
        *((60, 1, True), (400, 1, False)),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in ((60, 0, False), (400, 2, True))),
    ],
)
def test_steps_are_the_same_whether_python_looks_at_each_token_or_at_none(
    num_pages: int, lag: int, mixes: bool, monkeypatch: pytest.MonkeyPatch
):
    short = run(num_pages, 1, lag, mixes=mixes)
    monkeypatch.setattr(SteadyRows, "take", lambda *_: False)
    long = run(num_pages, 1, lag, mixes=mixes)
    assert short.outputs == long.outputs
    assert [batch.decodes.ends.tolist() for batch in short.batches] == [b.decodes.ends.tolist() for b in long.batches]


@pytest.mark.parametrize("lag", [0, 1])
def test_requests_that_nobody_looks_at_have_a_row_for_each_token_and_pages_for_no_more(lag: int):
    sim = Simulation(num_pages=100, max_running=6, check_interval=NEVER, lag=lag, page_size=8, shares_prefixes=False)
    lengths = {str(number): 11 + 13 * number for number in range(6)}
    for name, length in lengths.items():
        sim.add(name, [3] * (length % 7 + 1), length, ignore_eos=True)
    sim.run()
    rows = [row.request.given.request_id for batch in sim.batches for row in batch.rows if row.samples]
    assert {name: rows.count(name) for name in lengths} == lengths
    assert {name: len(tokens) for name, tokens in sim.outputs.items()} == lengths
    num_pages = sum(len(batch.table_updates) for batch in sim.batches)
    assert num_pages == sum(-(-(length % 7 + length) // 8) for length in lengths.values())


def test_rows_of_some_of_the_requests_are_read_between_steps_of_all():
    running = RunningRequests(2, page_size=4)
    for name in "ab":
        request = Request.of(GenerationRequest(name, [1, 2], SamplingParams(max_tokens=90, seed=0), (), 0.0))
        running.add(request)
        request.decode_mark = DecodeSteps()
        request.note_taken()
    one, rows = running.slots[:1].copy(), None
    for token in (5, 6, 7):
        for _ in range(3):
            rows = DecodeRows.plan_one_each(running, running.slots, has_drafts=False)
        running.columns.take_tokens(one, np.array([[token]], np.int32), None, ())
    assert [(request.num_computed, request.num_unread) for request in running] == [(9, 6), (9, 9)]
    assert [request.token_ids for request in running] == [[1, 2, 5, 6, 7], [1, 2]]
    assert rows is not None
    assert rows.starts.tolist() == [8, 8]


def test_a_step_of_many_requests_makes_as_many_calls_as_one_of_few():
    """As long as none of them needs a page, or ends."""
    counts = []
    for num_requests in (2, 64):
        sim = Simulation(num_pages=200, max_running=64, check_interval=NEVER, page_size=64, max_step_tokens=128)
        for number in range(num_requests):
            sim.add(str(number), [3, 4], 60, ignore_eos=True)
        for _ in range(10):
            sim.step()
        steps = [_planned(sim) for _ in range(8)]
        counts.append(counted_calls(lambda steps=steps, sim=sim: [sim.scheduler.process(*step) for step in steps]))
        counts.append(counted_calls(lambda sim=sim: [sim.scheduler.schedule() for _ in range(8)]))
    assert counts[:2] == counts[2:]
    assert counts[0] < 8 * 30
    assert counts[1] < 8 * 80


def _planned(sim: Simulation):
    """The oldest step under way, read, after another one is planned."""
    batch = sim.scheduler.schedule()
    assert batch is not None
    sim.in_flight.append((batch, [[5]] * batch.num_rows))
    oldest, tokens = sim.in_flight.popleft()
    return oldest, [sim._read(oldest, tokens)]


@pytest.mark.parametrize(("num_cached", "at_once"), [(45, 4), (20, 1)])
def test_pages_that_are_needed_soon_are_taken_from_many_cached_ones_but_not_from_few(num_cached: int, at_once: int):
    """In a pool that is full of cached prefixes."""
    size = 16
    sim = Simulation(num_pages=num_cached + 2, max_running=4, page_size=size, max_step_tokens=1024)
    sim.add("cached", list(range(3, 3 + num_cached * size)), 1)
    sim.run()
    for number in range(4):
        sim.add(str(number), [7, number + 8] * 2 + [9] * number, 60, ignore_eos=True)
    given = []
    for _ in range(25):
        sim.step()
        given.append(len(sim.batches[-1].table_updates))
    assert max(given[4:]) == at_once
