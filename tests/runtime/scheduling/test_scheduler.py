import dataclasses
import itertools
import sys
import time

import pytest

from palladio.runtime.interface.errors import OverloadedError
from palladio.runtime.interface.outputs.token_output import TokenOutput
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling.policy.deadlines import Deadlines
from palladio.runtime.scheduling.policy.kv_budget import NewTokenRatio
from palladio.runtime.scheduling.state.new_tokens import NOT_FINITE
from tests.runtime.scheduling.scheduler_sim import STOP, Simulation, check, sampled_rows
from tests.runtime.scheduling.simulated_model import EOS, expected_output


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 15, 16, 17, 33])
def test_one_request_gets_its_tokens(length: int, lag: int) -> None:
    sim = Simulation(lag=lag)
    prompt = list(range(20, 20 + length))
    sim.add("a", prompt, 12)
    sim.run()
    check(sim, {"a": (prompt, 12)})
    finish = sim.finished["a"].finish
    assert finish is not None
    assert (finish.type, finish.matched) in {("length", None), ("stop", EOS)}


def test_long_prompts_are_split_and_running_streams_go_on() -> None:
    sim = Simulation(num_pages=40)
    sim.add("stream", [11, 12], 30, ignore_eos=True)
    sim.step()
    sim.add("long", list(range(30, 90)), 2)
    sim.run()
    kinds = [batch.kind for batch in sim.batches]
    chunks = [
        i for i, batch in enumerate(sim.batches) if any(r.request.given.request_id == "long" for r in batch.rows)
    ][:4]
    assert [sim.batches[i].num_tokens for i in chunks] == [16, 16, 16, 12]
    assert all("decode" in kinds[a:b] for a, b in itertools.pairwise(chunks)), "decode steps in between"


def test_max_tokens_zero_only_computes_the_prompt() -> None:
    sim = Simulation()
    sim.add("a", [1, 2, 3], 0)
    sim.run()
    assert sim.outputs["a"] == []
    finish = sim.finished["a"].finish
    assert finish is not None
    assert finish.type == "length"


def test_out_of_pages_retracts_and_loses_nothing() -> None:
    sim = Simulation(num_pages=12, page_size=4, max_running=4)
    prompts = {f"r{i}": ([i + 1] * 6, 30) for i in range(6)}
    sim.scheduler.kv_budget.ratio = NewTokenRatio(0.0)  # admit as if no request made output
    for name, (prompt, max_tokens) in prompts.items():
        sim.add(name, prompt, max_tokens)
    sim.run()
    check(sim, prompts)
    assert sim.scheduler.retractor.retractions
    assert sum(output.num_retractions for output in sim.finished.values()) > 0


def test_a_finished_request_is_not_sampled_past_its_limit() -> None:
    sim = Simulation()
    sim.add("a", [1, 2], 3, ignore_eos=True)
    sim.run()
    assert sum(len(batch.rows) for batch in sim.batches) == 3, "max_tokens is known ahead: no step is wasted"


def test_queue_limit() -> None:
    sim = Simulation(max_queued=2)
    sim.add("a", [1], 4)
    sim.add("b", [1], 4)
    with pytest.raises(OverloadedError, match="--max-queued-requests 2"):
        sim.add("c", [1], 4)
    sim.run()


def test_abort_in_every_state_frees_everything() -> None:
    sim = Simulation(max_running=2)
    for name in "abcd":
        sim.add(name, [1, 2, 3, 4, 5], 50, ignore_eos=True)
    sim.step()
    sim.step()
    for name in "dbac":
        assert sim.scheduler.abort(name)
        assert not sim.scheduler.abort(name)
    assert sim.cache.num_used_tokens == 0
    sim.run()
    sim.scheduler.check_integrity()


def test_prompts_that_fit_a_step_are_not_split_when_asked() -> None:
    sim = Simulation(num_pages=100, max_step_tokens=100, splits_prompts=False)
    for name in "ab":
        sim.add(name, list(range(ord(name), ord(name) + 60)), 2)
    sim.run()
    assert [row.num_tokens for batch in sim.batches if batch.kind == "prefill" for row in batch.rows] == [60, 60]


def test_prompts_that_fit_the_pool_together_are_admitted_together() -> None:
    sim = Simulation(num_pages=17, page_size=4, max_step_tokens=64)
    for name in "abc":
        sim.add(name, list(range(20, 36)), 1)
    sim.step()
    assert len(sim.scheduler.running) == 3
    sim.run()


def test_order_is_first_come_first_served() -> None:
    sim = Simulation(max_running=1, num_pages=40)
    for name in "abc":
        sim.add(name, [1, 2], 3)
    sim.run()
    assert list(sim.finished) == ["a", "b", "c"]


@pytest.mark.parametrize("one_shape", [False, True])
def test_mixed_steps_decode_while_a_long_prompt_is_prefilled(one_shape: bool) -> None:
    sim = Simulation(num_pages=60, mixes=True, one_shape=one_shape)
    prompts = {"stream": ([11, 12], 30), "long": (list(range(30, 90)), 3)}
    sim.add("stream", *prompts["stream"], ignore_eos=True)
    sim.step()
    sim.add("long", *prompts["long"])
    sim.run()
    mixed = [batch for batch in sim.batches if batch.kind == "prefill" and batch.num_decodes]
    assert [[row.num_tokens for row in batch.rows] for batch in mixed] == [[1, 15], [1, 15], [1, 15], [1, 15]]
    assert [batch.kind for batch in sim.batches].count("decode") == 29 - len(mixed)
    assert sim.outputs["stream"] == expected_output([11, 12], 30, frozenset())
    assert sim.outputs["long"] == expected_output(prompts["long"][0], 3, STOP)


def test_steps_are_not_mixed_when_decoding_would_crowd_out_prefill() -> None:
    sim = Simulation(num_pages=100, max_running=8, max_step_tokens=8, mixes=True)
    for i in range(6):
        sim.add(f"r{i}", [i + 1, 2], 40, ignore_eos=True)
    sim.add("late", list(range(30, 60)), 3)
    sim.run()
    check(sim, {"late": (list(range(30, 60)), 3)})
    assert sim.finished["late"].times.first_token <= sim.finished["r0"].times.finished


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("mixes", [False, True])
def test_several_decode_steps_in_one(mixes: bool, lag: int) -> None:
    prompts = {f"r{i}": ([3 * i + 1] * (2 + i), 5 + 3 * i) for i in range(6)}
    outputs = []
    for num_steps in (1, 4):
        sim = Simulation(num_pages=60, num_decode_steps=num_steps, mixes=mixes, lag=lag)
        for name, (prompt, max_tokens) in prompts.items():
            sim.add(name, prompt, max_tokens)
        sim.run()
        check(sim, prompts)
        outputs.append(sim.outputs)
        assert max(row.num_tokens for b in sim.batches for row in b.rows if row.decodes) == num_steps
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("mixes", "lag"),
    [
        *((True, 0), (False, 1)),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((True, 1), (False, 0))),
    ],
)
def test_drafts_where_pages_are_few(mixes: bool, lag: int) -> None:
    """Pages for drafts are given only where there are some; those for tokens that there may be, always."""
    for num_pages in range(28, 60, 2):
        flags = {"page_size": 1, "num_drafts": 1, "mixes": mixes, "lag": lag}
        sim = Simulation(num_pages=num_pages, max_running=6, max_step_tokens=32, **flags)  # type: ignore[arg-type]
        prompts = {name: ([10 + number] * 2, 25) for number, name in enumerate("abcdef")}
        for name, (prompt, max_tokens) in prompts.items():
            sim.add(name, prompt, max_tokens)
        sim.run()
        check(sim, prompts)
        kinds = {batch.kind for batch in sim.batches}
        assert "verify" in kinds


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("num_decode_steps", [1, 3])
def test_known_tokens_are_computed_in_one_step(lag: int, num_decode_steps: int) -> None:
    sim = Simulation(num_pages=60, lag=lag, num_decode_steps=num_decode_steps)
    prompt = [3, 5]
    sim.add("a", prompt, 60, is_constrained=True)
    sim.run()
    check(sim, {"a": (prompt, 60)}, {"a"})
    jumps = [row.num_tokens for batch in sim.batches[1:] for row in batch.rows if not row.decodes]
    assert max(jumps) > 3
    assert len(sim.batches) < len(sim.outputs["a"]) - sum(jumps) + 2 * len(jumps) + 2


@pytest.mark.parametrize("mixes", [False, True])
def test_what_a_constrained_request_computed_before_it_ended_can_be_used(mixes: bool) -> None:
    """Its last token is read while the step that computes this token runs: the page is cached, and was written."""
    sim = Simulation(num_pages=21, page_size=1, max_running=3, max_step_tokens=8, mixes=mixes)
    prompts = {"a": ([73, 74, 75], 8)}
    sim.add("a", *prompts["a"], is_constrained=True)
    sim.run()
    assert len(sim.outputs["a"]) < 8
    prompts["b"] = ([73, 74, 75, *sim.outputs["a"], 1, 2, 3], 10)
    sim.add("b", *prompts["b"], is_constrained=True)
    sim.run()
    check(sim, prompts, prompts)
    assert sim.finished["b"].cached_tokens == 3 + len(sim.outputs["a"])


def test_a_jump_is_not_worth_the_step_of_many() -> None:
    sim = Simulation(num_pages=100, max_running=8)
    for i in range(8):
        sim.add(f"r{i}", [3 * i + 1, 5], 40, is_constrained=True)
    sim.run()
    check(sim, {f"r{i}": ([3 * i + 1, 5], 40) for i in range(8)}, {f"r{i}" for i in range(8)})
    for batch in sim.batches[1:]:
        jumps = [row.num_tokens for row in batch.rows if not row.decodes]
        assert all(count > len(batch.rows) for count in jumps)


def test_a_jump_asks_for_no_page_beyond_max_tokens() -> None:
    """Six tokens are forced where three may still come, and the pool has pages for just those three."""
    prompt, max_tokens = [3, 5], 9
    sim = Simulation(num_pages=1 + len(prompt) + max_tokens, page_size=1)
    sim.add("a", prompt, max_tokens, is_constrained=True)
    sim.run()
    check(sim, {"a": (prompt, max_tokens)}, {"a"})
    assert len(sim.batches) < max_tokens, "it did not jump"


def prefill_tokens(sim: Simulation, name: str) -> int:
    return sum(
        row.num_tokens
        for b in sim.batches
        for row in b.rows
        if row.request.given.request_id == name and not row.decodes
    )


def test_a_cached_prefix_is_not_computed_again() -> None:
    sim = Simulation(num_pages=40)
    sim.add("a", list(range(20, 33)), 6, ignore_eos=True)
    sim.run()
    conversation = list(range(20, 33)) + sim.outputs["a"] + [5, 6]
    sim.add("same", list(range(20, 33)), 2)
    sim.add("longer", conversation, 2)
    sim.add("salted", list(range(20, 33)), 2, options=RequestOptions(cache_salt="mine"))
    sim.run()
    assert sim.finished["a"].cached_tokens == 0
    assert sim.finished["same"].cached_tokens == 12
    assert sim.finished["longer"].cached_tokens == 16, "the output is cached as well, but for its last token's page"
    assert sim.finished["salted"].cached_tokens == 0
    assert [prefill_tokens(sim, name) for name in ("same", "longer", "salted")] == [1, len(conversation) - 16, 13]
    stats = sim.cache.stats()
    assert stats.num_hit_tokens == 28
    assert stats.num_cached_tokens > 0
    sim.cache.flush()
    assert sim.cache.stats().num_cached_tokens == 0
    sim.scheduler.check_integrity()


def test_requests_of_one_step_share_a_prefix() -> None:
    sim = Simulation(num_pages=40, max_step_tokens=24)
    for i in range(4):
        sim.add(f"r{i}", [*range(20, 36), 50 + i], 2)
    sim.step()
    assert [row.num_tokens for row in sim.batches[0].rows] == [17, 1, 1, 1]
    sim.run()
    check(sim, {f"r{i}": ([*range(20, 36), 50 + i], 2) for i in range(4)})


def test_the_prefix_of_a_prompt_that_is_still_prefilled_is_shared() -> None:
    sim = Simulation(num_pages=60, max_step_tokens=16)
    for i in range(2):
        sim.add(f"r{i}", [*range(20, 60), 80 + i], 2)
    sim.run()
    assert [prefill_tokens(sim, name) for name in ("r0", "r1")] == [41, 1]


def test_without_the_prefix_cache_everything_is_computed() -> None:
    sim = Simulation(num_pages=60, shares_prefixes=False)
    for i in range(2):
        sim.add(f"r{i}", list(range(20, 60)), 2)
    sim.run()
    assert [prefill_tokens(sim, name) for name in ("r0", "r1")] == [40, 40]
    assert sim.cache.stats().num_cached_tokens == 0
    assert not sim.cache.shares_prefixes


def test_a_duplicate_is_dropped_for_the_cached_page() -> None:
    """A prompt of whole pages computes its last page again, and one that wants prompt logprobs computes all."""
    sim = Simulation(num_pages=14, page_size=1, max_step_tokens=16)
    for name, scores in (("a", None), ("b", None), ("c", 0)):
        sim.add(name, list(range(20, 30)), 3, prompt_logprobs=scores)
        sim.run()
    check(sim, dict.fromkeys("abc", (list(range(20, 30)), 3)))
    assert sim.cache.stats().num_cached_tokens <= 13


def test_what_is_not_finite_does_not_stay_in_the_cache() -> None:
    sim = Simulation(num_pages=40)
    sim.add("a", list(range(20, 33)), 6)
    batch = sim.scheduler.schedule()
    assert batch is not None
    assert sim.cache.stats().num_cached_tokens == 12
    read = sampled_rows([[1]], {0: batch.rows[0].request.output([1], NOT_FINITE)})
    (output,) = sim.scheduler.process(batch, [read])
    assert isinstance(output, TokenOutput)
    assert output.finish is NOT_FINITE
    assert output.times is not None
    assert output.times.finished is not None
    assert sim.cache.stats().num_cached_tokens == 0
    sim.scheduler.check_integrity()


def test_a_priority_is_admitted_first_and_may_preempt() -> None:
    sim = Simulation(num_pages=40, max_running=2, policy="priority")
    for i, priority in enumerate((0, 5, 3)):
        sim.add(f"r{i}", [i + 1, 2], 20, options=RequestOptions(priority=priority), ignore_eos=True)
    sim.step()
    assert {r.given.request_id for r in sim.scheduler.running} == {"r1", "r2"}
    sim.add("not enough", [9], 4, options=RequestOptions(priority=13), ignore_eos=True)
    sim.step()
    assert {r.given.request_id for r in sim.scheduler.running} == {"r1", "r2"}, (
        "more urgent by 10 is not by more than 10"
    )
    sim.add("urgent", [8], 4, options=RequestOptions(priority=14), ignore_eos=True)
    sim.step()
    sim.step()
    assert {r.given.request_id for r in sim.scheduler.running} == {"r1", "urgent"}, "the least urgent made way"
    sim.run()
    assert len(sim.finished) == 5
    assert sim.finished["r2"].num_retractions == 1
    assert sim.outputs["r2"] == expected_output([3, 2], 20, frozenset())
    assert next(iter(sim.finished)) == "urgent"


def test_a_request_ends_at_its_deadline_wherever_it_is() -> None:
    sim = Simulation(max_running=1, num_pages=60)
    now = time.time()
    sim.add("runs", [1, 2], 500 // 4, received=now, options=RequestOptions(timeout=3600.0), ignore_eos=True)
    sim.add("waits", [3, 4], 5, received=now - 10, options=RequestOptions(timeout=9.0))
    sim.step()
    finish = sim.finished["waits"].finish
    assert finish is not None
    assert finish.status == 504
    assert "within its timeout of 9 s (waiting in the queue)" in str(finish.message)
    sim.step()
    runs = sim.scheduler._requests["runs"]
    runs.given = dataclasses.replace(runs.given, received=runs.given.received - 3600.0)
    sim.scheduler._deadlines = Deadlines()
    sim.scheduler._deadlines.add(sim.scheduler._requests["runs"])
    sim.step()
    assert "tokens generated" in str(sim.finished["runs"].finish.message)
    sim.run()
    assert sim.cache.num_used_tokens == 0


def test_thousands_of_waiting_requests_are_not_touched_by_a_step() -> None:
    """Counted, not timed: what a step looks up grows with what it admits, not with the queue."""
    for policy in ("fcfs", "lpm", "dfs-weight", "random", "lof", "priority"):
        counts = []
        for num_queued in (100, 1_000):
            sim = Simulation(num_pages=200, max_running=4, policy=policy)
            for i in range(num_queued):
                sim.add(f"r{i}", [i % 90, i // 90 % 90, 5], 30, ignore_eos=True)
            calls = 0

            def count(frame, event, argument) -> None:
                nonlocal calls
                calls += event in ("call", "c_call")

            sim.scheduler.schedule()
            sys.setprofile(count)
            for _ in range(3):
                sim.scheduler.schedule()
            sys.setprofile(None)
            counts.append(calls)
        assert counts[1] < 1.5 * counts[0] + 50, policy
