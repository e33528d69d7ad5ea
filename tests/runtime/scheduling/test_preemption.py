"""Who takes whose place, and that it helps: whoever preempts runs, and no step goes round in circles."""

import pytest

from palladio.runtime.core import engine_core
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling.policy.kv_budget import NewTokenRatio
from palladio.runtime.scheduling.policy.retractor import MAX_FRUITLESS, Retractor
from palladio.runtime.scheduling.state.request import Request
from tests.runtime.scheduling.scheduler_progress import PREEMPTION_THRESHOLD
from tests.runtime.scheduling.scheduler_sim import Simulation, check
from tests.runtime.tiny_engine import Collector, TinyEngine, generate, random_prompt


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("num_steps_before", [0, 1, 2])
def test_background_requests_of_two_priorities_both_end(mixes: bool, lag: int, num_steps_before: int) -> None:
    """The first one's prompt takes two steps, and its logprobs keep it from going on where it was. The second one fits
    only in its place: if the first were admitted again before the second, neither would ever have a token."""
    sim = Simulation(
        num_pages=19, page_size=1, max_running=3, max_step_tokens=8, policy="priority", mixes=mixes, lag=lag
    )
    prompts = {"low": (list(range(10, 19)), 9), "high": (list(range(10, 13)), 1)}
    sim.add("low", *prompts["low"], prompt_logprobs=0, options=RequestOptions(background=True))
    for _ in range(num_steps_before):
        sim.step()
    sim.add("high", *prompts["high"], prompt_logprobs=0, options=RequestOptions(background=True, priority=11))
    sim.run(100)
    check(sim, prompts)
    assert list(sim.finished) == ["high", "low"]


@pytest.mark.parametrize("flags", [{"disable_overlap_schedule": True}, {"enable_mixed_chunk": True}], ids=str)
@pytest.mark.parametrize("keeps_pages", [True, False])
def test_lines_of_batches_of_two_priorities_both_end(tiny: TinyEngine, flags: dict, keeps_pages: bool) -> None:
    """On the real engine, as lines of a batch reach it."""
    params = {"max_tokens": 40, "prompt_logprobs": 0} if keeps_pages else {"max_tokens": 40}
    prompts = {"low": random_prompt(60), "high": random_prompt(50, salt=1)}
    expected = generate(tiny.core(), prompts, **params)
    core = tiny.core(
        schedule_policy="priority",
        chunked_prefill_size=16,
        max_total_tokens=136,
        disable_radix_cache=not keeps_pages,
        **flags,
    )
    collector = Collector(core)
    for name, priority in (("low", 0), ("high", 11)):
        collector.add(name, prompts[name], options=RequestOptions(background=True, priority=priority), **params)
        collector.step()
    for _ in range(300):
        collector.step()
    assert list(collector.finish) == ["high", "low"]
    assert collector.run().tokens == expected


def background(priority: int) -> RequestOptions:
    return RequestOptions(background=True, priority=priority)


def running(sim: Simulation) -> set[str]:
    return {request.given.request_id for request in sim.scheduler.running}


def test_lines_of_batches_are_admitted_in_the_order_of_their_priority() -> None:
    sim = Simulation(max_running=1, num_pages=60, policy="priority")
    for name, priority in (("runs", 0), ("low", 1), ("high", 3), ("middle", 2)):
        sim.add(name, [1, 2, 3], 4, options=background(priority), ignore_eos=True)
        sim.step()
    sim.run()
    assert list(sim.finished) == ["runs", "high", "middle", "low"]


def test_lines_of_batches_take_no_place_under_other_policies() -> None:
    sim = Simulation(max_running=1, num_pages=60)
    for name, priority in (("a", 0), ("b", 50)):
        sim.add(name, [1, 2, 3], 6, options=background(priority), ignore_eos=True)
        sim.step()
    sim.run()
    assert list(sim.finished) == ["a", "b"]
    assert sim.finished["a"].num_retractions == 0


def test_nobody_gives_way_for_nothing() -> None:
    """Without the only one that gives way there is still no room: it runs on."""
    sim = Simulation(num_pages=21, page_size=1, max_running=4, max_step_tokens=16, policy="priority")
    sim.add("equal", list(range(20, 31)), 4, options=RequestOptions(priority=20), ignore_eos=True)
    sim.step()
    sim.add("low", [1, 2], 3, ignore_eos=True)
    sim.step()
    sim.step()
    assert running(sim) == {"equal", "low"}
    sim.add("high", list(range(40, 51)), 4, options=RequestOptions(priority=20), ignore_eos=True)
    sim.run()
    assert [sim.finished[name].num_retractions for name in ("equal", "low", "high")] == [0, 0, 0]


@pytest.mark.parametrize("mixes", [False, True])
def test_no_more_give_way_than_have_to(mixes: bool) -> None:
    """The one that loses least first; whoever preempts runs in that very step, and the others go on."""
    sim = Simulation(num_pages=80, page_size=1, max_running=3, max_step_tokens=32, policy="priority", mixes=mixes)
    sim.scheduler.kv_budget.ratio = NewTokenRatio(0.0)
    for name, length in (("long", 15), ("short", 6), ("middle", 10)):
        sim.add(name, [ord(name[0]), *range(length)], 12, ignore_eos=True)
    for _ in range(3):
        sim.step()
    sim.add("high", list(range(60, 66)), 3, options=RequestOptions(priority=11), ignore_eos=True)
    while "high" not in running(sim):
        assert running(sim) == {"long", "short", "middle"}
        sim.step()
    assert "high" in {row.request.given.request_id for row in sim.batches[-1].rows}
    assert running(sim) == {"long", "middle", "high"}
    sim.run()
    assert sim.finished["short"].num_retractions == 1
    assert sim.finished["long"].num_retractions == sim.finished["middle"].num_retractions == 0


@pytest.mark.parametrize("last", [0, 1, 2])
def test_memory_is_taken_from_who_loses_least(last: int) -> None:
    """Whenever it came."""
    sim = Simulation(num_pages=31, page_size=1, max_running=3, max_step_tokens=32)
    sim.scheduler.kv_budget.ratio = NewTokenRatio(0.0)
    lengths = {"long": 12, "middle": 8, "short": 4}
    names = sorted(lengths, key=lambda name: list(lengths).index(name) == last)
    for name in names:
        sim.add(name, [ord(name[0]), *range(1, lengths[name])], 8, ignore_eos=True)
    while not sim.scheduler.retractor.retractions:
        sim.step()
    assert running(sim) == {"long", "middle"}
    sim.run()
    assert sim.finished["long"].num_retractions == 0


@pytest.mark.parametrize("above", [0, 1])
def test_only_a_priority_above_the_threshold_takes_a_place(above: int) -> None:
    sim = Simulation(max_running=1, num_pages=60, policy="priority")
    sim.add("runs", [1, 2, 3], 12, ignore_eos=True)
    sim.step()
    sim.add("waits", [4, 5], 2, options=RequestOptions(priority=PREEMPTION_THRESHOLD + above), ignore_eos=True)
    sim.run()
    assert sim.finished["runs"].num_retractions == above


@pytest.mark.parametrize("count", [2, 3])
def test_of_those_that_lose_the_same_the_youngest_gives_way(count: int) -> None:
    sim = Simulation(num_pages=10 * count + 1, page_size=1, max_running=count, max_step_tokens=32)
    sim.scheduler.kv_budget.ratio = NewTokenRatio(0.0)
    names = [f"r{number}" for number in range(count)]
    for number, name in enumerate(names):
        sim.add(name, [50 + number, *range(6)], 12, ignore_eos=True, received=float(number))
    while not sim.scheduler.retractor.retractions:
        sim.step()
    assert running(sim) == set(names[:-1])
    sim.run()
    assert sim.finished[names[0]].num_retractions == 0


def test_who_has_lost_its_pages_gets_them_before_those_that_came_later() -> None:
    sim = Simulation(num_pages=25, page_size=1, max_running=2, max_step_tokens=32)
    sim.scheduler.kv_budget.ratio = NewTokenRatio(0.0)
    for name, max_tokens in (("a", 12), ("b", 12), ("late", 2)):
        sim.add(name, [ord(name[0]), *range(6)], max_tokens, ignore_eos=True)
    while not sim.scheduler.retractor.retractions:
        sim.step()
    (victim,) = {"a", "b"} - running(sim)
    assert [request.given.request_id for request in sim.scheduler.waiting] == [victim, "late"]
    while "late" not in sim.finished:
        sim.step()
        assert "late" not in running(sim) or victim in running(sim) or victim in sim.finished
    sim.run()


def test_those_that_run_keep_room_for_what_they_are_expected_to_write() -> None:
    sim = Simulation(num_pages=25, page_size=1, max_running=3, max_step_tokens=32)
    for name in "ab":
        sim.add(name, [ord(name), 2, 3, 4], 12, ignore_eos=True)
    for _ in range(3):
        sim.step()
        assert running(sim) == {"a"}, "both prompts fit, but not with 70 % of both outputs"
    sim.run()
    assert not sim.scheduler.retractor.retractions


@pytest.mark.parametrize("num_low", [1, 2])
def test_pages_that_victims_share_with_others_are_not_counted(num_low: int) -> None:
    """What two requests share is free only when both give way; and what the waiting one shares with them it keeps."""
    sim = Simulation(num_pages=25, page_size=1, max_running=4, max_step_tokens=32, policy="priority")
    sim.scheduler.kv_budget.ratio = NewTokenRatio(0.0)
    shared = list(range(20, 34))
    for number in range(2):
        priority = 0 if number < num_low else 20
        sim.add(f"r{number}", [*shared, 50 + number], 3, options=RequestOptions(priority=priority), ignore_eos=True)
    sim.step()
    sim.add("high", list(range(60, 72)), 3, options=RequestOptions(priority=20), ignore_eos=True)
    sim.step()
    sim.step()
    assert ("high" in running(sim)) == (num_low == 2)
    sim.run()
    assert [sim.finished[f"r{number}"].num_retractions for number in range(2)] == [int(num_low == 2)] * 2


def test_room_kept_for_a_victim_is_free() -> None:
    """The pages that it has are too few for the waiting one; those that it would have had do."""
    sim = Simulation(num_pages=31, page_size=1, max_running=4, max_step_tokens=32, policy="priority")
    urgent = RequestOptions(priority=20)
    sim.add("small", [1, 2, 3], 3, options=urgent, ignore_eos=True)
    sim.add("low", [5, 6, 7, 8], 16, ignore_eos=True)
    sim.step()
    assert running(sim) == {"small", "low"}
    sim.add("high", list(range(20, 30)), 8, options=urgent, ignore_eos=True)
    sim.step()
    sim.step()
    assert running(sim) == {"small", "high"}
    sim.run()


@pytest.mark.parametrize(
    ("num_pages", "mixes", "requests"),
    [  # prompt, tokens to generate, options, steps until the next one comes
        (16, True, [(7, 3, background(0), 0), (3, 3, RequestOptions(), 6), (3, 5, background(11), 0)]),
        (23, False, [(9, 8, background(0), 5), (2, 8, background(22), 0), (5, 4, background(0), 4)]),
    ],
)
def test_a_victim_waits_for_its_last_token(num_pages: int, mixes: bool, requests: list[tuple]) -> None:
    """It could run again before the token that it had sampled has been read, and would sample it twice."""
    sim = Simulation(num_pages=num_pages, page_size=1, max_running=3, max_step_tokens=8, policy="priority", mixes=mixes)
    prompts = {}
    for number, (length, max_tokens, options, num_steps) in enumerate(requests):
        prompts[f"r{number}"] = ([20 + 7 * number + i for i in range(length)], max_tokens)
        sim.add(f"r{number}", *prompts[f"r{number}"], options=options)
        for _ in range(num_steps):
            sim.step()
    sim.run()
    check(sim, prompts)


def test_should_requests_go_in_circles_those_that_run_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Were there an order in which each gives way to each, tokens would come all the same, and the log would say it."""

    def gives_way(self: Retractor, victim: Request, request: Request) -> bool:
        return True

    monkeypatch.setattr(Retractor, "_gives_way", gives_way)
    sim = Simulation(num_pages=19, page_size=1, max_step_tokens=4, policy="priority")
    monkeypatch.setattr(sim.progress, "check_plan", lambda batch: None)
    monkeypatch.setattr(sim.progress, "check_step", lambda num_done: None)
    prompts = {"a": (list(range(10, 19)), 4), "b": (list(range(30, 39)), 4)}
    for name in prompts:
        sim.add(name, *prompts[name], prompt_logprobs=0)
    sim.run(20 * MAX_FRUITLESS)
    check(sim, prompts)
    assert f"{MAX_FRUITLESS} retractions in a row without a new token" in caplog.text


def test_an_engine_whose_requests_cannot_go_on_fails(tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look for a step for ever."""
    core = tiny.core()
    collector = Collector(core)
    collector.add("a", random_prompt(9))
    monkeypatch.setattr(core._scheduler, "schedule", lambda: None)
    for _ in range(engine_core.MAX_STALLED):
        collector.step()
    with pytest.raises(RuntimeError, match="no step can be scheduled"):
        collector.step()
    monkeypatch.undo()
    collector.run()
