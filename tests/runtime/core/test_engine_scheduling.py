"""Ways to schedule, on real programs: each gives the tokens that the plain way gives."""

import types
from typing import Any, NamedTuple

import hypothesis
import pytest
from hypothesis import strategies as st

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling import scheduler
from tests.properties import examples
from tests.runtime.tiny_engine import (
    TINY_CONFIG,
    Collector,
    Outcome,
    TinyEngine,
    generate,
    random_prompt,
    record_batches,
)

CONTEXT = TINY_CONFIG["max_position_embeddings"]
KINDS: list[dict[str, Any]] = [  # in all tiers of the sampler
    {},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.9, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"temperature": 0.7, "logprobs": 2},
    {"logprobs": 2, "prompt_logprobs": 2},
    {"temperature": 1.0, "logit_bias": {9: 4.0}, "min_tokens": 4, "max_tokens": 9},
]
STOP_IDS = tuple(range(3, 40))  # about one token in ten
SMALL_POOL = {"max_total_tokens": 136, "schedule_conservativeness": 0.0}


class Arrival(NamedTuple):
    """A request, and how many steps pass before the next one."""

    length: int
    stem: int
    kind: int
    max_tokens: int
    stops: bool
    gap: int


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        length=st.integers(1, 90),
        stem=st.integers(0, 1),
        kind=st.integers(0, len(KINDS) - 1),
        max_tokens=st.integers(4, 20),
        stops=st.booleans(),
        gap=st.integers(0, 5),
    ),
    min_size=4,
    max_size=14,
)
FLAGS = st.fixed_dictionaries(
    {
        "chunked_prefill_size": st.sampled_from([16, 32, 64]),
        "disable_overlap_schedule": st.booleans(),
        "disable_radix_cache": st.booleans(),
    }
)
# The same examples always: steps of other shapes round differently, and one token in a million hangs on that.
bounded = hypothesis.settings(examples(6, long=15), derandomize=True)


def serve(core: EngineCore, arrivals: list[Arrival]) -> Collector:
    """Runs requests whose prompts are beginnings of two stems."""
    collector = Collector(core)
    for i, arrival in enumerate(arrivals):
        prompt = random_prompt(90, arrival.stem)[: arrival.length]
        params = {"seed": i, "max_tokens": arrival.max_tokens, **KINDS[arrival.kind]}
        collector.add(str(i), prompt, stop_ids=STOP_IDS if arrival.stops else (), **params)
        for _ in range(arrival.gap):
            collector.step()
    return collector.run()


def check_same(collector: Collector, expected: Collector) -> None:
    """Equal tokens, and logprobs up to the rounding of another shape of step."""
    assert collector.tokens == expected.tokens
    assert collector.finish == expected.finish
    for name in expected.tokens:
        check_same_logprobs(collector.outcome(name), expected.outcome(name))


def check_same_logprobs(outcome: Outcome, expected: Outcome) -> None:
    for ours, theirs in ((outcome.logprobs, expected.logprobs), (outcome.prompt_logprobs, expected.prompt_logprobs)):
        assert [entry.token_id for entry in ours] == [entry.token_id for entry in theirs]
        assert [entry.logprob for entry in ours] == pytest.approx([entry.logprob for entry in theirs], abs=1e-4)


drafting_or_three_steps = pytest.mark.parametrize(
    "several", [pytest.param("three_steps", marks=pytest.mark.slow), "drafting"], indirect=True
)


def engines_and_flags(*several: dict[str, Any]) -> pytest.MarkDecorator:
    """Every pair; by default the simplest engine has each of these flags, and one whose steps verify drafts the second
    ones, and the others are slow."""
    return pytest.mark.parametrize(
        ("engine", "flags"),
        [
            pytest.param(
                engine,
                flags,
                id=f"{flags}-{engine}",
                marks=() if engine == "tiny" or (engine, flags) == ("drafting", several[1]) else pytest.mark.slow,
            )
            for flags in several
            for engine in ("tiny", "three_steps", "drafting")
        ],
    )


def plain(tiny: TinyEngine) -> EngineCore:
    flags = {"disable_radix_cache": True, "disable_mixed_chunk": True, "disable_overlap_schedule": True}
    return tiny.core(num_continuous_decode_steps=1, **flags)


# Mixed steps


@bounded
@hypothesis.given(arrivals=ARRIVALS, flags=FLAGS)
def test_mixed_steps_change_nothing(tiny: TinyEngine, arrivals: list[Arrival], flags: dict[str, Any]) -> None:
    expected = serve(plain(tiny), arrivals)
    check_same(serve(tiny.core(enable_mixed_chunk=True, **flags), arrivals), expected)


@pytest.mark.parametrize("mixes", [True, False])
def test_a_stream_beside_a_long_prompt(tiny: TinyEngine, mixes: bool) -> None:
    """In mixed steps it gets a token at each of them, out of the budget; else at every other one."""
    core = tiny.core(chunked_prefill_size=16, enable_mixed_chunk=mixes)
    batches = record_batches(core)
    collector = Collector(core)
    collector.add("stream", random_prompt(5), max_tokens=30)
    collector.step()
    collector.add("long", random_prompt(100), max_tokens=1)
    while "long" not in collector.finish:
        collector.step()
    collector.run()
    steps = [(batch.kind, batch.num_decodes, batch.num_tokens) for batch in batches[1:13]]
    if mixes:
        assert steps[:6] == [("prefill", 1, 16)] * 6
    else:
        assert steps == [("decode", 1, 1), ("prefill", 0, 16)] * 6


def test_a_prompt_with_logprobs_that_is_split_beside_one_without(tiny: TinyEngine) -> None:
    """The step samples for one row, in a tier without logprobs, and the other row, which wants some, is no sample."""
    core = tiny.core(chunked_prefill_size=16)
    collector = Collector(core)
    collector.add("short", random_prompt(5))
    collector.add("long", random_prompt(60), logprobs=2, max_tokens=3)
    collector.run()
    assert [len(collector.logprobs[name]) for name in ("short", "long")] == [0, 3]


# Decode steps of several tokens


@drafting_or_three_steps
@bounded
@hypothesis.given(arrivals=ARRIVALS, flags=FLAGS, mixes=st.booleans(), small=st.booleans())
def test_several_tokens_a_step_change_nothing(
    tiny: TinyEngine,
    several: TinyEngine,
    arrivals: list[Arrival],
    flags: dict[str, Any],
    mixes: bool,
    small: bool,
) -> None:
    expected = serve(plain(tiny), arrivals)
    core = several.core(enable_mixed_chunk=mixes, **flags, **(SMALL_POOL if small else {}))
    check_same(serve(core, arrivals), expected)


@drafting_or_three_steps
@pytest.mark.parametrize("kind", range(4))
def test_several_tokens_a_step_end_where_they_must(tiny: TinyEngine, several: TinyEngine, kind: int) -> None:
    """At max_tokens and at a stop id in each of the three, alone and in a batch."""
    params, tokens = KINDS[kind], random_prompt(9)
    whole = Collector(plain(tiny))
    whole.add("x", tokens, max_tokens=12, **params)
    expected = whole.run().outcome("x")
    core = several.core()
    for together in (False, True):
        collector = Collector(core)
        for count in range(1, 9):
            collector.add(f"{count} tokens", tokens, max_tokens=count, **params)
            collector.add(f"stop at {count}", tokens, max_tokens=12, stop_ids=(expected.tokens[count],), **params)
            if not together:
                collector.run()
        collector.run()
        for count in range(1, 9):
            for name in (f"{count} tokens", f"stop at {count}"):
                end = expected.tokens.index(expected.tokens[count]) + 1 if "stop" in name else count
                assert collector.tokens[name] == expected.tokens[:end]
                assert collector.finish[name].type == ("stop" if "stop" in name else "length")
                check_same_logprobs(collector.outcome(name), expected._replace(logprobs=expected.logprobs[:end]))


def test_three_steps_in_one_waste_none_at_max_tokens(three_steps: TinyEngine) -> None:
    core = three_steps.core()
    batches = record_batches(core)
    generate(core, {"x": random_prompt(9)}, max_tokens=8)
    assert [batch.num_tokens for batch in batches] == [9, 3, 3, 1]


@drafting_or_three_steps
@pytest.mark.parametrize("count", range(1, 9))
def test_several_tokens_a_step_at_the_end_of_the_context(tiny: TinyEngine, several: TinyEngine, count: int) -> None:
    prompts = {"x": random_prompt(CONTEXT - count), "y": random_prompt(CONTEXT - count - 1)}
    expected = generate(plain(tiny), prompts, max_tokens=count)
    assert generate(several.core(), prompts, max_tokens=count) == expected


@drafting_or_three_steps
def test_several_tokens_a_step_when_pages_run_out(tiny: TinyEngine, several: TinyEngine) -> None:
    prompts = {str(length): random_prompt(length) for length in (9, 10, 17, 20, 25, 30)}
    params = {"max_tokens": 40, "temperature": 0.9, "presence_penalty": 0.5}
    expected = generate(plain(tiny), prompts, **params)
    for mixes in (False, True):
        collector = Collector(several.core(enable_mixed_chunk=mixes, **SMALL_POOL))
        for name, tokens in prompts.items():
            collector.add(name, tokens, **params)
        collector.run()
        assert sum(collector.num_retractions.values()) > 0
        assert collector.tokens == expected


# Deadlines and priorities


@engines_and_flags({}, {"enable_mixed_chunk": True}, {"disable_overlap_schedule": True})
def test_deadlines(
    engine: str, flags: dict[str, Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end requests that wait, prefill and decode; others go on, and what was computed is right."""
    clock = [0.0]
    monkeypatch.setattr(scheduler, "time", types.SimpleNamespace(time=lambda: clock[0]))
    prompts = {"x": random_prompt(40), "y": random_prompt(30), "waits": random_prompt(20)}
    late = RequestOptions(timeout=10.0)
    shared: TinyEngine = request.getfixturevalue(engine)
    expected = generate(shared.core(), prompts, temperature=0.8)
    for num_steps in range(12):
        clock[0] = 0.0
        core = shared.core(chunked_prefill_size=16, max_running_requests=2, **flags)
        collector = Collector(core)
        collector.add("x", prompts["x"], temperature=0.8, options=late)
        collector.add("y", prompts["y"], temperature=0.8)
        collector.add("waits", prompts["waits"], temperature=0.8, options=late)
        for _ in range(num_steps):
            collector.step()
        ended = set(collector.finish)
        clock[0] = 10.0
        collector.step()
        assert {"x", "waits"} <= set(collector.finish)
        assert core.stats().total.num_running + core.stats().total.num_waiting == ("y" not in collector.finish)
        core._scheduler.check_integrity()
        for name in {"x", "waits"} - ended:
            assert (collector.finish[name].type, collector.finish[name].status) == ("abort", 504)
            assert collector.tokens[name] == expected[name][: len(collector.tokens[name])]
            assert len(collector.tokens[name]) < 16
        collector.add("x again", prompts["x"], temperature=0.8)
        collector.run()
        assert collector.tokens["y"] == expected["y"]
        assert collector.tokens["x again"] == expected["x"]
        assert collector.cached_tokens["x again"] == min(16 * num_steps, 36) or num_steps < 4


@engines_and_flags({}, {"enable_mixed_chunk": True}, {"disable_radix_cache": True})
def test_an_urgent_request_goes_before_and_its_victim_resumes(
    engine: str, flags: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    shared: TinyEngine = request.getfixturevalue(engine)
    prompts = {"first": random_prompt(40), "second": random_prompt(9), "urgent": random_prompt(50)}
    params = {"temperature": 0.8, "logprobs": 1, "max_tokens": 20}
    expected = Collector(shared.core(disable_radix_cache=True))
    for name, tokens in prompts.items():
        expected.add(name, tokens, **params)
    expected.run()
    for num_steps in range(1, 16, 2):
        core = shared.core(chunked_prefill_size=16, max_running_requests=2, schedule_policy="priority", **flags)
        collector = Collector(core)
        collector.add("first", prompts["first"], **params, options=RequestOptions(priority=5))
        collector.add("second", prompts["second"], **params)
        for _ in range(num_steps):
            collector.step()
        running = {"first", "second"} - set(collector.finish)
        collector.add("urgent", prompts["urgent"], **{**params, "max_tokens": 3}, options=RequestOptions(priority=16))
        collector.run()
        for name in ("first", "second"):
            assert collector.tokens[name] == expected.tokens[name]
            check_same_logprobs(collector.outcome(name), expected.outcome(name))
        assert collector.tokens["urgent"] == expected.tokens["urgent"][:3]
        assert collector.num_retractions["first"] == 0, "second is less urgent still"
        if running == {"first", "second"} and num_steps > 3:
            assert collector.num_retractions["second"] == 1


@pytest.mark.parametrize("overlap", [True, False])
def test_two_victims_at_once(tiny: TinyEngine, overlap: bool) -> None:
    """The first one's pages are too few for an urgent request; the last tokens of both are still on the device."""
    prompts = {"small": random_prompt(8), "large": random_prompt(100), "urgent": random_prompt(62)}
    expected = generate(plain(tiny), prompts, temperature=0.8)
    for num_steps in range(4, 12):
        core = tiny.core(
            max_total_tokens=168,
            schedule_conservativeness=0.0,
            schedule_policy="priority",
            disable_overlap_schedule=not overlap,
        )
        collector = Collector(core)
        for name in ("large", "small"):
            collector.add(name, prompts[name], temperature=0.8)
        for _ in range(num_steps):
            collector.step()
        collector.add("urgent", prompts["urgent"], temperature=0.8, options=RequestOptions(priority=100))
        collector.run()
        assert collector.tokens == expected
        assert collector.num_retractions == {"small": 1, "large": 1, "urgent": 0}


# What the device did meanwhile


@pytest.mark.parametrize("flags", [{}, {"disable_overlap_schedule": True}, {"cache_self_check": 1.0}], ids=str)
def test_idle_gaps_are_counted_within_stretches_of_work(tiny: TinyEngine, flags: dict[str, Any]) -> None:
    core = tiny.core(chunked_prefill_size=16, **flags)
    batches = record_batches(core)
    for length in (5, 40, 40):
        generate(core, {"x": random_prompt(length), "y": random_prompt(9)})
    stats = core.stats()
    idle = stats.device_idle
    num_stretches = 3 + stats.num_self_checks
    assert sum(idle.counts) == len(batches) - num_stretches
    assert len(idle.counts) == len(idle.bounds) + 1
    assert idle.total >= 0.0
