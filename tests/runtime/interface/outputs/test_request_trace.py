"""What the engine notes about a request: why it waited, its prefill, its decode steps, its retractions."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from palladio.runtime.core.watch.explain import explain_requests
from palladio.runtime.interface.outputs.request_output import RequestTimings
from palladio.runtime.interface.outputs.request_trace import (
    MAX_CHUNKS,
    DecodeSteps,
    LostPages,
    PrefillChunk,
    RequestTimes,
    RequestTrace,
    SnapshotHit,
    WaitTimes,
)
from palladio.runtime.interface.outputs.token_output import NewTokens, TokenOutput, by_request
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling.batch.buckets import Buckets
from palladio.runtime.scheduling.policy.kv_budget import NewTokenRatio
from palladio.runtime.scheduling.policy.queue_time import QueueTime
from tests.runtime.scheduling.scheduler_sim import Simulation
from tests.runtime.tiny_engine import TinyEngine, random_prompt

TICK = 1.0


@pytest.fixture(autouse=True)
def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A clock for the queue that stands still but for this function."""
    now = [0.0]

    def tick() -> None:
        now[0] += TICK

    monkeypatch.setattr("palladio.runtime.scheduling.policy.batch_share.time.perf_counter", lambda: now[0])
    return tick


def run(sim: Simulation, tick: Callable[[], None]) -> dict[str, RequestTrace]:
    """Runs to the end, a tick between two steps; returns each request's last trace."""
    while sim.step():
        tick()
    return {name: output.trace for name, output in sim.finished.items()}


def test_a_request_that_is_admitted_at_once_waited_for_nothing(ticking) -> None:
    sim = Simulation()
    sim.add("a", [1, 2, 3], 4)
    trace = run(sim, ticking)["a"]
    assert (trace.waits.total, trace.retractions, trace.compile_seconds) == (0.0, [], 0.0)


def test_slots(ticking) -> None:
    sim = Simulation(max_running=1)
    for name in ("a", "b"):
        sim.add(name, [1, 2, 3], 4)
    waits = run(sim, ticking)["b"].waits
    assert waits.slots >= 4 * TICK
    assert waits.slots == waits.total


def test_memory(ticking) -> None:
    sim = Simulation(num_pages=8, page_size=4, max_running=4)
    sim.scheduler.kv_budget.ratio.value = sim.scheduler.kv_budget.ratio._lowest = 1.0
    for name in ("a", "b"):
        sim.add(name, [1] * 12, 10, ignore_eos=True)
    waits = run(sim, ticking)["b"].waits
    assert waits.memory >= 5 * TICK
    assert waits.memory == waits.total


def test_step(ticking) -> None:
    sim = Simulation(max_step_tokens=8)
    for name in ("a", "b"):
        sim.add(name, [1] * 8, 3)
    waits = run(sim, ticking)["b"].waits
    assert waits.step >= TICK
    assert waits.step == waits.total


def test_programs_that_are_not_compiled_yet(ticking) -> None:
    sim = Simulation(max_running=4)
    whole = sim.scheduler.buckets
    sim.scheduler.use(Buckets.create(max_running=1, max_step_tokens=16, growth=2), 0.0)
    for name in ("a", "b"):
        sim.add(name, [1, 2, 3], 20, ignore_eos=True)
    for _ in range(5):
        sim.step()
        ticking()
    (state,) = explain_requests(sim.scheduler, ["b"])
    assert (state.queue.reason, state.queue.max_running, state.queue.open_running) == ("compile", 4, 1)
    assert state.trace.waits.compile == 5 * TICK
    sim.scheduler.use(whole, 0.0)
    waits = run(sim, ticking)["b"].waits
    assert waits.compile == waits.total == 5 * TICK


def test_a_late_request_gets_its_own_part_of_an_interval(ticking) -> None:
    sim = Simulation(max_running=1)
    sim.add("runs", [1, 2, 3], 30, ignore_eos=True)
    sim.add("early", [1, 2, 3], 1)
    sim.step()
    ticking()
    sim.add("late", [1, 2, 3], 1)
    ticking()
    sim.step()
    early, late = (state.trace.waits for state in explain_requests(sim.scheduler, ["early", "late"]))
    assert (early.slots, late.slots) == (2 * TICK, TICK)


def test_retractions_are_noted_and_counted_for_those_that_wait(ticking) -> None:
    sim = Simulation(num_pages=12, page_size=4, max_running=4)
    sim.scheduler.kv_budget.ratio = NewTokenRatio(0.0)
    for i in range(6):
        sim.add(f"r{i}", [i + 1] * 6, 30, ignore_eos=True)
    traces = run(sim, ticking)
    retracted = {name for name, output in sim.finished.items() if output.num_retractions}
    assert retracted
    for name, output in sim.finished.items():
        trace = traces[name]
        assert len(trace.retractions) == output.num_retractions
        assert all(lost.tokens > 0 for lost in trace.retractions)
        if name in retracted:
            assert trace.waits.memory > 0
    assert sim.scheduler.clock.num_retracted == sum(output.num_retractions for output in sim.finished.values())
    assert any(trace.waits.num_retracted for trace in traces.values())
    assert sim.scheduler.waiting.num_retracted == 0


def test_decode_steps_of_retracted_requests_are_their_own(ticking) -> None:
    """One step ahead of the device: the last token before a retraction is read when the request waits already."""
    sim = Simulation(num_pages=12, page_size=4, max_running=4)
    sim.scheduler.kv_budget.ratio = NewTokenRatio(0.0)
    for i in range(6):
        sim.add(f"r{i}", [i + 1] * 6, 30, ignore_eos=True)
    count_steps(sim)
    traces = run(sim, ticking)
    assert any(output.num_retractions for output in sim.finished.values())
    for name, output in sim.finished.items():
        assert 30 - 1 - output.num_retractions <= traces[name].decode.steps <= 30, name


def count_steps(sim: Simulation) -> None:
    """As the engine does it: before the scheduler gets a step's tokens."""
    process = sim.scheduler.process

    def counting(batch: Any, read: Any) -> list[NewTokens]:
        if batch.num_decodes:
            sim.scheduler.count_decoding(DecodeSteps(1, batch.num_decodes, 4))
        return process(batch, read)

    sim.scheduler.process = counting


def test_who_ends_in_the_queue_has_waited_until_then(ticking) -> None:
    sim = Simulation(max_running=1)
    sim.add("runs", [1, 2, 3], 30, ignore_eos=True)
    sim.add("late", [1, 2, 3], 1, received=time.time(), options=RequestOptions(timeout=0.05))
    for _ in range(3):
        sim.step()
        ticking()
    time.sleep(0.06)
    sim.step()
    end = sim.finished["late"]
    assert (end.finish.status, end.times.scheduled) == (504, None)
    assert end.trace.waits.slots == end.trace.waits.total == 3 * TICK
    timings = RequestTimings.of(end.times, end.trace)
    assert timings.queue == timings.total
    assert timings.queue >= 0.05


def test_positions_of_many_are_counted_once(ticking) -> None:
    sim = Simulation(num_pages=8, page_size=4, max_running=1)
    names = [f"r{i}" for i in range(40)]
    for name in names:
        sim.add(name, [1] * 4, 2)
    sim.step()
    asked = []
    reserved = sim.scheduler.kv_budget.reserved_tokens
    sim.scheduler.kv_budget.reserved_tokens = lambda running: asked.append(1) or reserved(running)
    states = {state.request_id: state for state in explain_requests(sim.scheduler, reversed(names))}
    assert states["r0"].status == "running"
    assert [states[name].queue.position for name in names[1:]] == list(range(1, 40))
    assert len(asked) == 1


def test_what_waits_now(ticking) -> None:
    sim = Simulation(num_pages=8, page_size=4, max_running=3)
    sim.scheduler.kv_budget.ratio.value = sim.scheduler.kv_budget.ratio._lowest = 1.0
    for name in ("a", "b", "c"):
        sim.add(name, [1] * 12, 10, ignore_eos=True)
    sim.step()
    ticking()
    running, waiting = explain_requests(sim.scheduler, ["a", "nobody", "c"])
    assert (running.status, running.queue, running.computed_tokens) == ("running", None, 12)
    queue = waiting.queue
    assert (waiting.status, queue.reason, queue.position, queue.length) == ("waiting", "memory", 2, 2)
    assert (queue.running, queue.max_running) == (1, 3)
    assert queue.pages_needed > queue.pages_available
    assert waiting.trace.waits.memory == TICK
    sim.run()
    assert explain_requests(sim.scheduler, ["c"]) == []


def test_the_clock_stops_while_nobody_waits(ticking) -> None:
    clock = QueueTime()
    mark = clock.join("step")
    ticking()
    waits = WaitTimes()
    waits.add_since(clock.leave(), mark)
    ticking()
    assert waits == WaitTimes(step=TICK)
    again = clock.join("memory")
    ticking()
    waits.add_since(clock.leave(), again)
    assert waits == WaitTimes(step=TICK, memory=TICK)


def test_lists_are_bounded_and_copies_stay(ticking) -> None:
    trace = RequestTrace()
    for i in range(MAX_CHUNKS + 5):
        trace.add_chunk(PrefillChunk(float(i), 1, 1, 1))
        trace.add_retraction(LostPages(float(i), 1))
        trace.add_snapshot(SnapshotHit(float(i), 9, 16))
    copy = trace.copy()
    trace.chunks[0].seconds = 5.0
    trace.waits.memory = 7.0
    trace.retractions.clear()
    trace.snapshots.clear()
    assert (len(copy.chunks), copy.num_chunks, len(copy.retractions)) == (MAX_CHUNKS, MAX_CHUNKS + 5, MAX_CHUNKS)
    assert copy.snapshots == [SnapshotHit(float(i), 9, 16) for i in range(MAX_CHUNKS)]
    assert (copy.chunks[0].seconds, copy.waits.memory) == (None, 0.0)
    output = TokenOutput("r", [1], times=RequestTimes(1.0), trace=copy)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(output), type=TokenOutput) == output


def outputs_of(tiny: TinyEngine, requests: dict[str, tuple[list[int], int]], **flags: Any) -> dict[str, list[Any]]:
    """All outputs of each request, run together on real programs."""
    from palladio.runtime.interface.request.generation_request import GenerationRequest
    from palladio.runtime.interface.request.sampling_params import SamplingParams

    core = tiny.core(**flags)
    outputs: dict[str, list[Any]] = {name: [] for name in requests}
    for name, (prompt, max_tokens) in requests.items():
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0)
        core.add(GenerationRequest(name, prompt, params, (), time.time()))
    while core.has_work:
        for output in by_request(core.step()):
            outputs.get(output.request_id, []).append(output)
    outputs["stats"] = [core.stats()]
    return outputs


def test_prefill_chunks_and_decode_steps_of_real_programs(tiny: TinyEngine) -> None:
    outputs = outputs_of(tiny, {"long": (random_prompt(150), 9), "short": (random_prompt(5), 9)})
    first, last = outputs["long"][0], outputs["long"][-1]
    assert (first.times.finished, first.trace.num_chunks) == (None, 3)
    trace = last.trace
    assert [chunk.tokens for chunk in trace.chunks] == [64, 64, 22]
    assert all(chunk.step_tokens <= chunk.bucket_tokens for chunk in trace.chunks)
    assert trace.chunks[-1].step_tokens == 22 + 5, "the short prompt was in the same step"
    assert all(chunk.seconds > 0 for chunk in trace.chunks)
    assert [chunk.time for chunk in trace.chunks] == sorted(chunk.time for chunk in trace.chunks)
    decode = trace.decode
    assert (decode.steps, decode.rows, decode.bucket_rows) == (8, 16, 64), "two rows in a bucket of 8"
    assert outputs["long"][3].trace is None, "only the first and the last output carry it"


def test_steps_are_counted_by_bucket(tiny: TinyEngine) -> None:
    requests = {name: (random_prompt(20, salt), 5) for salt, name in enumerate("abc")}
    (stats,) = outputs_of(tiny, requests)["stats"]
    decode = [step for step in stats.steps if step.kind == "decode"]
    assert [(step.requests, step.tokens, step.steps) for step in decode] == [(8, 8, 4)]
    assert (decode[0].computed_tokens, decode[0].padding_tokens) == (12, 20)
    (prefill,) = [step for step in stats.steps if step.kind == "prefill"]
    assert (prefill.steps, prefill.computed_tokens, prefill.padding_tokens) == (1, 60, prefill.tokens - 60)
    assert prefill.requests > 0


def test_several_steps_in_one_program_count_as_several(three_steps: TinyEngine) -> None:
    outputs = outputs_of(three_steps, {"a": (random_prompt(8), 7)})
    assert outputs["a"][-1].trace.decode.steps == 6
