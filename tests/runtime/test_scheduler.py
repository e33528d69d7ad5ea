import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from palladio.runtime.errors import OverloadedError
from tests.runtime.scheduler_sim import EOS, Simulation, expected_output

STOP = frozenset({EOS})


def check(sim: Simulation, prompts: dict[str, tuple[list[int], int]]) -> None:
    for name, (prompt, max_tokens) in prompts.items():
        assert sim.outputs[name] == expected_output(prompt, max_tokens, STOP), name
        assert sim.finished[name].finish is not None
        assert sim.scored.get(name, prompt) == prompt, "prompt logprobs are whole"
    assert sim.cache.num_used_tokens == 0


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
    chunks = [i for i, batch in enumerate(sim.batches) if any(r.request.request_id == "long" for r in batch.rows)][:4]
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
    sim.scheduler._ratio = sim.scheduler._min_ratio = 0.0  # admit as if no request made output
    for name, (prompt, max_tokens) in prompts.items():
        sim.add(name, prompt, max_tokens)
    sim.run()
    check(sim, prompts)
    assert sim.scheduler.retractions
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
        sim.add(name, list(range(20, 80)), 2)
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


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30), st.integers(0, 25)),
        st.tuples(st.just("abort"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0)),
    ),
    max_size=30,
)


@hypothesis.given(actions, st.integers(14, 24), st.sampled_from([1, 2, 4]), st.sampled_from([0, 1]))
@hypothesis.settings(max_examples=150, deadline=None)
def test_any_interleaving_answers_every_request(steps, num_pages: int, page_size: int, lag: int) -> None:
    sim = Simulation(num_pages=num_pages, page_size=page_size, max_running=3, max_step_tokens=8, lag=lag)
    capacity = (num_pages - 1) * page_size
    added: dict[str, tuple[list[int], int]] = {}
    aborted: set[str] = set()
    for action, first, second in steps:
        if action == "add":
            length, max_tokens = min(first, capacity // 2), min(second, capacity // 2)
            name = f"r{len(added)}"
            added[name] = ([(length * 7 + i) % 90 for i in range(length)], max_tokens)
            sim.add(name, *added[name], prompt_logprobs=0 if first % 2 else None)
        elif action == "abort" and first < len(added):
            name = f"r{first}"
            if sim.scheduler.abort(name):
                aborted.add(name)
        elif action == "step":
            for _ in range(first):
                sim.step()
    sim.run()
    check(sim, {name: value for name, value in added.items() if name not in aborted})
