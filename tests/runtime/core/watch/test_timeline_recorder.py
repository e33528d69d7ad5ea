"""Timelines that the engine records: each step of a request that asks, in order, with all of its tokens."""

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.watch.timeline_recorder import LEAST_IDLE, Moment, WatchedRequest
from palladio.runtime.interface.messages.model_messages import SetPause
from palladio.runtime.interface.outputs.timeline import Timeline, TimelineRecord
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling.state.request import RequestStatus
from tests.runtime.tiny_engine import Collector, TinyEngine, random_prompt

ASKS = RequestOptions(timeline=True)


def check(collector: Collector, name: str) -> list[TimelineRecord]:
    """Times are in order and do not overlap, from its arrival to its end; its tokens are those of the answer."""
    records = list(collector.timelines[name])
    assert (records[0].kind, records[0].start) == ("handover", 0.0)
    assert all(record.seconds >= 0 for record in records)
    for one, later in itertools.pairwise(records):
        assert -1e-9 < later.start - one.end < LEAST_IDLE, (one, later)
    assert sum(record.new_tokens for record in records) == len(collector.tokens[name])
    assert all(record.steps <= 1 or record.kind == "decode" for record in records)
    return records


def kinds(records: list[TimelineRecord]) -> list[str]:
    return [kind for kind, _ in itertools.groupby(record.kind for record in records)]


def test_a_long_prompt_beside_a_short_one(tiny: TinyEngine) -> None:
    collector, begun = Collector(tiny.core()), time.time()
    collector.add("long", random_prompt(150), max_tokens=9, options=ASKS, received=begun - 2.0)
    collector.add("short", random_prompt(5), max_tokens=9)
    collector.run()
    assert set(collector.timelines) == {"long"}
    records = check(collector, "long")
    assert kinds(records) == ["handover", "queued", "prefill", "decode"]
    assert 2.0 <= records[0].seconds < 2.0 + time.time() - begun
    assert records[-1].end < 2.0 + time.time() - begun + 0.1  # two clocks, read one after the other
    chunks, decodes = records[2:5], records[5:]
    assert [(chunk.tokens, chunk.rows, chunk.bucket) for chunk in chunks] == [(64, 64, 64), (64, 64, 64), (22, 27, 64)]
    assert [chunk.new_tokens for chunk in chunks] == [0, 0, 1]
    assert [(step.new_tokens, step.rows, step.bucket, step.steps) for step in decodes] == [(1, 2, 8, 1)] * 8


def test_a_prefix_that_is_cached(tiny: TinyEngine) -> None:
    collector, prompt = Collector(tiny.core(cache_self_check=0.0)), random_prompt(50)
    for name in ("first", "again"):
        collector.add(name, prompt, max_tokens=3, options=ASKS, received=time.time())
        collector.run()
    assert "prefix" not in kinds(check(collector, "first"))
    records = check(collector, "again")
    assert kinds(records) == ["handover", "queued", "prefix", "prefill", "decode"]
    found, computed = records[2].tokens, records[3].tokens
    assert found == collector.cached_tokens["again"] == 48
    assert found + computed == len(prompt)


def test_retraction_and_what_is_waited_for(tiny: TinyEngine) -> None:
    collector = Collector(tiny.core(max_total_tokens=160, schedule_conservativeness=0.0))
    for i in range(9):
        collector.add(f"r{i}", random_prompt(12, i), max_tokens=40, options=ASKS, received=time.time())
    collector.run()
    assert any(collector.num_retractions.values())
    reasons = set()
    for i in range(9):
        records = check(collector, f"r{i}")
        retracted = [number for number, record in enumerate(records) if record.kind == "retracted"]
        assert len(retracted) == collector.num_retractions[f"r{i}"]
        assert [records[n].tokens for n in retracted] == [lost.tokens for lost in collector.traces[f"r{i}"].retractions]
        for number in retracted:
            assert records[number].tokens > 0
            assert records[number + 1].kind == "queued"
            assert kinds(records[number + 1 :])[1] in ("prefix", "prefill"), "it is computed again"
        reasons |= {record.reason for record in records if record.kind == "queued"}
        told = sum(record.seconds for record in records if record.kind == "queued" and record.reason == "memory")
        assert told == pytest.approx(collector.traces[f"r{i}"].waits.memory, abs=0.05)
    assert {"memory", "slots"} <= reasons


@pytest.mark.parametrize(("gap", "kinds_of_both"), [(5.0, ["idle", "retracted"]), (LEAST_IDLE / 2, ["retracted"])])
def test_a_gap_before_a_retraction_is_idle_time(gap: float, kinds_of_both: list[str]) -> None:
    trace = SimpleNamespace(retractions=[SimpleNamespace(tokens=7)])
    request: Any = SimpleNamespace(num_retractions=1, trace=trace, status=RequestStatus.WAITING)
    watched = WatchedRequest(request, received=100.0, done=103.0, compiled=0.0, reason="", is_queued=False)
    watched.retract(Moment(103.0 + gap, 0.0), "memory")
    records = list(watched.news)
    assert kinds(records) == kinds_of_both
    assert (records[-1].tokens, records[-1].seconds) == (7, 0.0)
    assert records[-1].start == pytest.approx(3.0 + gap)
    assert sum(record.seconds for record in records) == pytest.approx(gap if len(records) == 2 else 0.0)


def test_drafts(drafting: TinyEngine) -> None:
    collector = Collector(drafting.core())
    collector.add("copies", random_prompt(9) * 4, max_tokens=60, options=ASKS, received=time.time())
    collector.run()
    records, drafts = check(collector, "copies"), collector.traces["copies"].drafts
    assert sum(record.drafts for record in records) == drafts.num_draft_tokens > 0
    assert sum(record.accepted for record in records) == drafts.num_accepted_drafts > 0
    steps = [record for record in records if record.drafts]
    assert all(record.new_tokens <= 1 + record.accepted for record in steps)
    assert max(record.new_tokens for record in steps) == 4


def test_several_steps_in_one_program(three_steps: TinyEngine) -> None:
    collector = Collector(three_steps.core())
    collector.add("a", random_prompt(8), max_tokens=7, options=ASKS, received=time.time())
    collector.run()
    decodes = [record for record in check(collector, "a") if record.kind == "decode"]
    assert [(step.steps, step.new_tokens, step.rows) for step in decodes] == [(3, 3, 3)] * 2


def test_stalls_by_compilation(tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    core = tiny.core()
    collector = Collector(core)
    collector.add("early", random_prompt(5), max_tokens=30, options=ASKS, received=time.time())
    for _ in range(3):
        collector.step()
    built, forward = core._runner.programs.built, core._runner.forward

    def slow(planned: Any) -> Any:
        monkeypatch.setattr(core._runner, "forward", forward)
        time.sleep(0.05)
        monkeypatch.setattr(built, "lazy_seconds", built.lazy_seconds + 0.05)
        return forward(planned)

    monkeypatch.setattr(core._runner, "forward", slow)
    collector.add("late", random_prompt(5, 1), max_tokens=2, options=ASKS, received=time.time())
    collector.run()
    for name in ("early", "late"):
        records = check(collector, name)
        stalled = [record for record in records if record.compile_seconds]
        assert sum(record.compile_seconds for record in stalled) == pytest.approx(0.05)
        assert all(record.seconds >= record.compile_seconds - 1e-4 for record in stalled), "the stall is in its time"


def test_prompts_of_others_are_idle_time(tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where decode steps and chunks take turns, a step that waits for another one's chunk does not last as long."""
    core = tiny.core()
    collector, read = Collector(core), core._runner.read
    collector.add("early", random_prompt(5), max_tokens=60, options=ASKS, received=time.time())
    for _ in range(4):
        collector.step()

    def slow(step: Any) -> Any:
        time.sleep(0.2 * (step.planned.kind == "prefill"))
        return read(step)

    monkeypatch.setattr(core._runner, "read", slow)
    collector.add("late", random_prompt(150, 1), max_tokens=1)
    collector.run()
    records = check(collector, "early")
    assert sum(record.seconds for record in records if record.kind == "idle") >= 3 * 0.2
    assert sum(record.seconds for record in records if record.kind == "decode") < 3 * 0.2


@pytest.mark.parametrize("how", ["deadline", "abort", "pause"])
def test_other_ends(tiny: TinyEngine, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core = tiny.core(max_running_requests=1)
    collector, now = Collector(core), time.time()
    collector.add("runs", random_prompt(5), max_tokens=30, options=ASKS, received=now)
    options = RequestOptions(timeline=True, timeout=1000.0)
    collector.add("waits", random_prompt(5, 1), max_tokens=2, options=options, received=now)
    for _ in range(3):
        collector.step()
    (live,) = core.explain(["waits"])
    assert live.trace.timeline is not None
    assert [(record.kind, record.reason) for record in live.trace.timeline][-1] == ("queued", "slots")
    match how:
        case "deadline":
            with monkeypatch.context() as later:
                later.setattr("palladio.runtime.scheduling.scheduler.time", SimpleNamespace(time=lambda: now + 2000.0))
                collector.step()
            records = check(collector, "waits")
            assert (records[-1].kind, records[-1].reason) == ("queued", "slots")
        case "abort":
            core.abort(["waits", "runs"])
            assert core.explain(["waits"]) == []
        case "pause":
            outputs, _ = core.steer(SetPause(1, "in_place"))
            collector.take(outputs)
            assert sum(r.new_tokens for r in collector.timelines["runs"]) == len(collector.tokens["runs"])
            collector.take(core.steer(SetPause(2, None))[0])
    collector.run()
    assert not recorder(core)._watched
    assert not recorder(core)._unread
    if how != "abort":
        check(collector, "runs")


def recorder(core: EngineCore) -> Any:
    return next(observer for observer in core._observers if type(observer).__name__ == "TimelineRecorder")


def test_a_request_of_a_million_steps_is_bounded_while_it_runs(tiny: TinyEngine) -> None:
    """Nothing heaps up in the engine: each output takes along what is new."""
    core = tiny.core()
    collector = Collector(core)
    collector.add("a", random_prompt(5), max_tokens=200, options=ASKS, received=time.time())
    for _ in range(24):  # of up to eight tokens each
        collector.step()
        assert len(recorder(core)._watched["a"].news) <= 2
    collector.run()
    assert isinstance(collector.timelines["a"], Timeline)
    check(collector, "a")
