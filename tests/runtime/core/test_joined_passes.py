"""Decode steps of few requests on a CPU: up to eight forward passes in one program, which no user can see."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.core.plan.sizing import joined_passes
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.outputs.token_output import by_request
from palladio.runtime.interface.request.generation_request import RequestOptions
from tests.runtime.tiny_engine import Collector, Outcome, TinyEngine, create_core, random_prompt, record_batches

SIZES = (1, 4, 8)  # two requests and three are padded
MOST = 8  # passes of a step


@pytest.fixture(scope="module")
def engine(build: Callable[..., TinyEngine]) -> TinyEngine:
    return build(cuda_graph_bs=SIZES, compile="lazy")


def run(core: EngineCore, requests: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], set[int]]:
    """All that users see of requests that run together, what stays cached, and the passes of the decode steps."""
    collector, batches = Collector(core), record_batches(core)
    for number, (name, params) in enumerate(requests.items()):
        params = {"max_tokens": 19, "seed": number, "stop_ids": (2,), **params}
        collector.add(name, random_prompt(params.pop("length", 6 + number)), **params)
    collector.run()
    usage = {name: (len(collector.tokens[name]), collector.cached_tokens[name]) for name in requests}
    outcomes: dict[str, Outcome] = {name: collector.outcome(name) for name in requests}
    total = core.stats().total
    seen = outcomes, collector.finish, usage, (total.num_cached_tokens, total.num_total_tokens)
    decodes = [batch for batch in batches if batch.kind == "decode"]
    for batch in decodes:
        assert batch.num_passes == max(batch.decodes.num_tokens)
        assert batch.num_passes == 1 or len(batch.decodes) <= 4
    return dict(zip(("outcomes", "finish", "usage", "cache"), seen, strict=True)), {b.num_passes for b in decodes}


@pytest.mark.parametrize("number", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 4)), 3, 5])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 2**63 + 5},
        {"temperature": 1.0, "max_tokens": 60},
    ],
)
def test_users_see_what_they_saw_with_one_pass_a_step(engine: TinyEngine, number: int, params: dict[str, Any]) -> None:
    requests = {str(i): params for i in range(number)}
    one, passes_of_one = run(engine.core(num_continuous_decode_steps=1), requests)
    several, passes = run(engine.core(), requests)
    assert several == one
    assert passes_of_one == {1}
    assert max(passes) == (MOST if number <= 4 else max(passes))


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 8, 9, 10, 11, 16, 17, 19])
@pytest.mark.parametrize("overlaps", [True, False])
def test_no_pass_is_made_for_a_token_after_the_last(engine: TinyEngine, max_tokens: int, overlaps: bool) -> None:
    requests = {"a": {"max_tokens": max_tokens, "ignore_eos": True}, "b": {"max_tokens": 3, "ignore_eos": True}}
    flags = {"disable_overlap_schedule": not overlaps}
    one, _ = run(engine.core(num_continuous_decode_steps=1, **flags), requests)
    several, _ = run(engine.core(**flags), requests)
    assert several == one
    core = engine.core(**flags)
    batches = record_batches(core)
    Collector(core).add("a", random_prompt(5), max_tokens=max_tokens, stop_ids=())
    while core.has_work:
        core.step()
    passes = [batch.num_passes for batch in batches if batch.kind == "decode"]
    full, rest = divmod(max_tokens - 1, MOST)
    assert passes == [MOST] * full + [rest] * (rest > 0)
    assert core.stats().total.num_used_tokens == 0


@pytest.mark.parametrize(
    "params",
    [
        {"logprobs": 3},
        {"temperature": 0.9, "frequency_penalty": 0.7, "presence_penalty": 0.2, "repetition_penalty": 1.1},
        {"min_tokens": 9, "temperature": 1.5},
        {"logit_bias": {7: 3.0}, "temperature": 1.0},
    ],
)
def test_what_the_whole_sampler_does_takes_a_pass_a_step(engine: TinyEngine, params: dict[str, Any]) -> None:
    requests = {"a": params, "b": {"max_tokens": 40, "ignore_eos": True}}
    one, _ = run(engine.core(num_continuous_decode_steps=1), requests)
    several, passes = run(engine.core(), requests)
    assert several == one
    assert passes > {1}  # of both; then of the other one alone


def test_each_token_is_an_event(engine: TinyEngine) -> None:
    """The last one too, which comes with its request's end. A timeline tells of a step, so its tokens stay together."""
    core, most = engine.core(), dict[str, int]()
    collector, tokens = Collector(core), dict[str, list[int]](plain=[], watched=[])
    collector.add("plain", random_prompt(5), max_tokens=19)
    collector.add("watched", random_prompt(6), max_tokens=18, options=RequestOptions(timeline=True))
    while core.has_work:
        for output in core.step():
            for one in by_request([output]):
                most[one.request_id] = max(most.get(one.request_id, 0), len(one.token_ids))
                tokens[one.request_id] += one.token_ids
                if one.finish is not None:
                    assert len(tokens[one.request_id]) == {"plain": 19, "watched": 18}[one.request_id]
    assert list(map(len, tokens.values())) == [19, 18]
    assert most == {"plain": 1, "watched": MOST}


def test_a_stop_id_in_the_middle_of_a_step_ends_the_request_there(engine: TinyEngine) -> None:
    tokens = Collector(engine.core())
    tokens.add("x", random_prompt(5), max_tokens=14, temperature=1.2)
    greedy = tokens.run().tokens["x"]
    for end in range(2, 9):
        stop = greedy[end - 1]
        first = greedy.index(stop) + 1
        core = engine.core()
        collector = Collector(core)
        collector.add("x", random_prompt(5), max_tokens=14, temperature=1.2, stop_ids=(stop,))
        collector.run()
        assert collector.tokens["x"] == greedy[:first]
        assert collector.finish["x"].matched == stop


def test_a_request_that_is_aborted_within_a_step_leaves_nothing(engine: TinyEngine) -> None:
    core = engine.core()
    collector = Collector(core)
    collector.add("gone", random_prompt(5), max_tokens=60)
    collector.add("stays", random_prompt(9), max_tokens=30)
    for _ in range(4):
        collector.step()
    core.abort(["gone"])
    collector.run()
    alone = Collector(engine.core())
    alone.add("stays", random_prompt(9), max_tokens=30)
    assert collector.tokens["stays"] == alone.run().tokens["stays"]


def test_a_request_that_comes_waits_for_the_steps_under_way_alone(engine: TinyEngine) -> None:
    core = engine.core()
    collector, batches = Collector(core), record_batches(core)
    collector.add("long", random_prompt(5), max_tokens=80)
    for _ in range(5):
        collector.step()
    before = len(batches)
    collector.add("late", random_prompt(70), max_tokens=2)
    while "late" not in collector.finish:
        collector.step()
    assert batches[before - 1].num_passes == MOST
    assert batches[before].kind == "prefill"
    last = max(number for number, batch in enumerate(batches) if batch.kind == "prefill")
    assert {batch.num_passes for batch in batches[before:last]} == {1}
    collector.run()


def test_which_engines_make_several_passes() -> None:
    config = EngineConfig.from_flags({"model_path": "x"})
    cpu = PlatformDefaults.of("cpu")
    short = cpu.short_pass_bytes
    assert [joined_passes(config, cpu, size) for size in (short // 2, short, short + 1)] == [MOST, 4, 1]
    for platform in ("gpu", "tpu"):
        assert joined_passes(config, PlatformDefaults.of(platform), 1000) == 1
    for flags in (
        {"num_continuous_decode_steps": 1},
        {"num_continuous_decode_steps": 3},
        {"deterministic": True},
        {"speculative_algorithm": "NGRAM"},
        {"dp_size": 2},
        {"is_embedding": True},
    ):
        given = EngineConfig.from_flags({"model_path": "x", **flags})
        assert joined_passes(given, cpu, 1000) == 1


@pytest.mark.parametrize("compile_mode", ["lazy", pytest.param("background", marks=pytest.mark.slow)])
def test_steps_have_one_pass_until_their_program_is_there(tiny_dir, compile_mode: str) -> None:
    core = create_core(tiny_dir, compile=compile_mode, fail_on_recompile=False, cuda_graph_bs=(1,))
    buckets = core._runner.buckets()
    assert buckets.several == ((1,) if compile_mode == "lazy" else buckets.several)
    batches, collector = record_batches(core), Collector(core)
    if compile_mode == "background":
        core._scheduler.use(dataclasses.replace(buckets, several=()), 0.0)
    collector.add("a", random_prompt(5), max_tokens=30)
    while core.has_work:
        collector.step()
    core.close()
    expected = MOST if core._runner.buckets().several else 1
    assert max(batch.num_passes for batch in batches) <= expected
    assert len(collector.tokens["a"]) == 30
