"""Requests that come, go and are aborted at any moment, in every mode of the scheduler, on a simulated device."""

import hypothesis
import pytest
from hypothesis import strategies as st

from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling.batch.scheduled_batch import ScheduledBatch
from tests.properties import examples
from tests.runtime.scheduling.scheduler_sim import Simulation, check

actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30), st.integers(0, 25)),
        st.tuples(st.just("abort"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("lose"), st.just(0), st.just(0)),
    ),
    max_size=30,
)
ADVANCES = (("num_decode_steps", 3), ("joined_passes", 3), ("num_drafts", 1), ("num_drafts", 3))
modes = st.fixed_dictionaries(
    {
        "num_pages": st.integers(14, 24),
        "page_size": st.sampled_from([1, 2, 4]),
        "lag": st.sampled_from([0, 1]),
        "mixes": st.booleans(),
        "advance": st.sampled_from([{}, *({name: count} for name, count in ADVANCES)]),
        "shares_prefixes": st.sampled_from([True, True, False]),
        "eviction_policy": st.sampled_from(["lru", "lfu"]),
        "one_shape": st.booleans(),
        # Windows shorter than a page, of whole pages and others, longer than most requests; in several tables each.
        "windows": st.sampled_from([(), (), ((1, 1),), ((4, 1),), ((7, 2),), ((2, 1), (9, 2)), ((40, 1),)]),
        "keeps_all": st.sampled_from([True, True, False]),
        # Of states that layers keep; 0: they keep none.
        "num_snapshots": st.sampled_from([0, 0, 1, 2, 5, 12]),
        "snapshot_interval": st.sampled_from([1, 6, 8, 100]),
    }
)


def seconds_of(batch: ScheduledBatch) -> float:
    return 0.001 * batch.num_tokens


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight", "random", "lof", "priority"])
@hypothesis.given(actions, modes)
@examples(40, long=17_000)
def test_any_interleaving_answers_every_request(policy, steps, mode) -> None:
    mode["keeps_all"] |= not mode["windows"]
    advance = mode.pop("advance")
    if mode["one_shape"]:
        advance = advance | {"num_decode_steps": 1}
    if mode["num_snapshots"]:
        advance = advance | {"num_drafts": 0}
    sim = Simulation(policy=policy, max_running=3, max_step_tokens=8, seconds_of=seconds_of, **mode, **advance)
    capacity = (sim.num_pages - 1) * sim.page_size
    added: dict[str, tuple[list[int], int]] = {}
    aborted: set[str] = set()
    constrained: set[str] = set()
    for action, first, second in steps:
        if action == "add":
            length, max_tokens = min(first, capacity // 2), min(second, capacity // 2)
            name = f"r{len(added)}"
            shared = list(range(10, 10 + length - length // 4))  # of every prompt: so that most share something
            added[name] = (shared + [(length * 7 + i) % 90 for i in range(length // 4)], max_tokens)
            options = RequestOptions(
                priority=11 * (second % 3),
                cache_salt=None if second % 5 else "salt",
                background=(first + 3 * second) % 3 == 0,
            )
            if (first + second) % 4 == 0:
                constrained.add(name)
            sim.add(
                *(name, *added[name]),
                prompt_logprobs=0 if first % 3 == 0 else None,
                options=options,
                is_constrained=name in constrained,
            )
        elif action == "abort" and first < len(added):
            name = f"r{first}"
            if sim.abort(name):
                aborted.add(name)
        elif action == "step":
            for _ in range(first):
                sim.step()
        elif action == "flush":
            sim.flush()
        elif action == "lose":
            sim.lose()
    sim.run()
    aborted |= {name for name, output in sim.finished.items() if output.finish == FinishReason("abort")}
    check(sim, {name: value for name, value in added.items() if name not in aborted}, constrained)
