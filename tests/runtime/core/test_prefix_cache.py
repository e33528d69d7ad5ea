"""The prefix cache on real programs: what comes out is what comes out without it, token for token."""

import itertools
import json
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.errors import OverloadedError
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.scheduling.state.radix_node import page_keys
from tests.runtime.tiny_engine import Collector, Outcome, TinyEngine, generate, random_prompt

PAGE = 4
LENGTHS = (*range(1, 15), *range(30, 38), *range(46, 51))  # around pages, and around chunks of 16
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "seed": 5},
    "penalties": {
        "temperature": 1.0,
        "seed": 6,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logit_bias": {40: 3.0, 41: 3.0, 42: -100.0},
        "min_tokens": 3,
        "stop_ids": tuple(range(3, 67)),
    },
    "logprobs": {"temperature": 0.8, "seed": 7, "logprobs": 4},
    "prompt logprobs": {"logprobs": 2, "prompt_logprobs": 3},
}


def cached_part(num_tokens: int) -> int:
    """Tokens that a prompt takes from the cache if all of them are there: the last one is always computed."""
    return (num_tokens - 1) // PAGE * PAGE


def check_same(outcome: Outcome, expected: Outcome) -> None:
    """Equal tokens, and logprobs up to the rounding of another shape of step."""
    assert outcome.tokens == expected.tokens
    for ours, theirs in ((outcome.logprobs, expected.logprobs), (outcome.prompt_logprobs, expected.prompt_logprobs)):
        assert [entry.token_id for entry in ours] == [entry.token_id for entry in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
            assert [value for _, value in a.top] == pytest.approx([value for _, value in b.top], abs=1e-4)


def run(core: EngineCore, prompts: dict[str, list[int]], **params: Any) -> Collector:
    collector = Collector(core)
    for name, tokens in prompts.items():
        collector.add(name, tokens, **params)
    return collector.run()


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in ("greedy", "logprobs") else ()) for kind in KINDS]
)
def test_a_hit_changes_nothing(tiny: TinyEngine, kind: str) -> None:
    prompts = {str(length): random_prompt(length) for length in LENGTHS}
    params = {"max_tokens": 8, **KINDS[kind]}
    expected = run(tiny.core(disable_radix_cache=True), prompts, **params)
    core = tiny.core(chunked_prefill_size=16)
    for round_ in range(3):
        answers = run(core, prompts, **params)
        for name, tokens in prompts.items():
            check_same(answers.outcome(name), expected.outcome(name))
            hits = round_ > 0 and kind != "prompt logprobs"  # those need every position's logits
            assert answers.cached_tokens[name] == (cached_part(len(tokens)) if hits else 0)
    assert set(expected.cached_tokens.values()) == {0}
    if kind == "penalties":
        assert len({len(tokens) for tokens in expected.tokens.values()}) > 1, "some were stopped"


def test_prompt_logprobs_leave_a_prompt_for_others(tiny: TinyEngine) -> None:
    core, tokens = tiny.core(), random_prompt(30)
    scored = run(core, {"x": tokens}, prompt_logprobs=1)
    again = run(core, {"x": tokens}, logprobs=1)
    assert again.cached_tokens["x"] == 28
    assert again.tokens == scored.tokens


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("length", [5, 7, 8, 15])
def test_turns_of_a_conversation(tiny: TinyEngine, length: int, stops: bool) -> None:
    """Each turn's prompt is the last one, its answer, and a new question."""
    plain = tiny.core(disable_radix_cache=True)
    turns: list[tuple[list[int], list[int], tuple[int, ...]]] = []
    tokens = random_prompt(length)
    for turn in range(4):
        answer = generate(plain, {"x": tokens}, temperature=0.8, max_tokens=10 + turn)["x"]
        stop_ids = (answer[6],) if stops else ()
        if stops:
            answer = answer[: answer.index(answer[6]) + 1]
        turns.append((tokens, answer, stop_ids))
        tokens = tokens + answer + random_prompt(length, salt=turn + 1)
    core, num_computed = tiny.core(), 0
    for turn, (tokens, expected, stop_ids) in enumerate(turns):
        collector = Collector(core)
        collector.add("x", tokens, temperature=0.8, max_tokens=10 + turn, stop_ids=stop_ids)
        collector.run()
        assert collector.tokens["x"] == expected
        assert collector.cached_tokens["x"] == num_computed // PAGE * PAGE
        # The last token of an answer has no keys and values; but where it stops it, one more step is under way.
        num_computed = len(tokens) + len(expected) - (0 if stops else 1)


def test_the_same_prefix_within_one_step(tiny: TinyEngine) -> None:
    prefix, longer = random_prompt(22), [*random_prompt(22), 4, 5, 6, 7, 8]
    prompts = {"a": [*prefix, 3], "b": longer, "same as b": longer, "c": prefix}
    expected = run(tiny.core(disable_radix_cache=True), prompts, temperature=0.9)
    answers = run(tiny.core(), prompts, temperature=0.9)
    assert answers.tokens == expected.tokens
    assert answers.cached_tokens == {"a": 0, "b": 20, "same as b": 24, "c": 20}


@pytest.mark.parametrize("mixes", [False, True])
def test_a_prefix_that_is_still_being_computed(tiny: TinyEngine, mixes: bool) -> None:
    """70 tokens take five steps; whoever asks for them in the meantime waits, and has them."""
    whole = random_prompt(70)
    prompts = {"first": whole, "same": whole, "longer": whole + random_prompt(9), "shorter": whole[:41]}
    expected = run(tiny.core(disable_radix_cache=True), prompts, temperature=0.9)
    for num_steps in range(8):
        core = tiny.core(chunked_prefill_size=16, enable_mixed_chunk=mixes)
        collector = Collector(core)
        collector.add("first", whole, temperature=0.9)
        for _ in range(num_steps):
            collector.step()
        for name in ("same", "longer", "shorter"):
            collector.add(name, prompts[name], temperature=0.9)
        collector.run()
        assert collector.tokens == expected.tokens
        assert collector.cached_tokens == {"first": 0, "same": 68, "longer": 68, "shorter": 40}


@pytest.mark.parametrize("num_steps", range(6))
def test_what_an_aborted_request_has_computed(tiny: TinyEngine, num_steps: int) -> None:
    tokens = random_prompt(70)
    expected = generate(tiny.core(disable_radix_cache=True), {"x": tokens})
    core = tiny.core(chunked_prefill_size=16)
    collector = Collector(core)
    collector.add("aborted", tokens)
    for _ in range(num_steps):
        collector.step()
    core.abort(["aborted"])
    collector.add("x", tokens)
    collector.run()
    assert collector.tokens["x"] == expected["x"]
    assert collector.cached_tokens["x"] == min(16 * num_steps, 68)


def test_nothing_is_shared_across_salts(tiny: TinyEngine) -> None:
    tokens = random_prompt(30)
    expected = generate(tiny.core(disable_radix_cache=True), {"x": tokens})["x"]
    core = tiny.core()
    for round_, together in itertools.product(range(2), (False, True)):
        collector = Collector(core)
        salts = (None, "a", "b") if not together else ("c", "d", "e")
        for salt in salts:
            collector.add(str(salt), tokens, options=RequestOptions(cache_salt=salt))
            if not together:
                collector.run()
        collector.run()
        for salt in salts:
            assert collector.tokens[str(salt)] == expected
            assert collector.cached_tokens[str(salt)] == (28 if round_ else 0)


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_pool_too_small_for_cache_and_requests(tiny: TinyEngine, policy: str) -> None:
    """Families of prompts with common beginnings; pages are evicted and requests retracted all the time."""
    rng = np.random.default_rng(3)
    stems = [random_prompt(int(length)) for length in (13, 24, 40)]
    rounds = []
    for _ in range(4):
        ends = [rng.integers(3, 300, rng.integers(0, 12)).tolist() for _ in range(6)]
        rounds.append({str(i): stems[rng.integers(3)] + end for i, end in enumerate(ends)})
    plain = tiny.core(disable_radix_cache=True)
    params = {"temperature": 0.9, "frequency_penalty": 0.3, "max_tokens": 25}
    expected = [generate(plain, prompts, **params) for prompts in rounds]
    core = tiny.core(
        max_total_tokens=136, schedule_conservativeness=0.0, chunked_prefill_size=16, radix_eviction_policy=policy
    )
    num_retractions = 0
    for prompts, tokens in zip(rounds, expected, strict=True):
        answers = run(core, prompts, **params)
        assert answers.tokens == tokens
        num_retractions += sum(answers.num_retractions.values())
    stats = core.stats()
    assert num_retractions > 0
    assert stats.total.num_evicted_tokens > 0
    assert stats.total.num_hit_tokens > 0


def test_prefixes_of_more_pages_than_a_step_can_name(build: Callable[..., TinyEngine]) -> None:
    """Pages of one token: 100 are more than SPARE_UPDATES, 1,200 more than two times EARLY_UPDATES."""
    engine = build(
        page_size=1,
        max_total_tokens=2600,
        chunked_prefill_size=32,
        cache_self_check=1.0,
        deterministic=True,  # few programs, and exact
        compile="lazy",
        json_model_override_args=json.dumps({"max_position_embeddings": 2048}),
    )
    whole = random_prompt(1200)
    prompts = {"long": whole, "middle": whole[:600], "short": whole[:100], "other": [*whole[:100], 5]}
    expected = run(engine.core(disable_radix_cache=True, max_running_requests=1), prompts, logprobs=2, max_tokens=6)
    core = engine.core(cache_self_check=1.0)  # room for a second copy
    for round_ in range(3):
        answers = run(core, prompts, logprobs=2, max_tokens=6)
        for name, tokens in prompts.items():
            assert answers.outcome(name) == expected.outcome(name)
            if round_:
                assert answers.cached_tokens[name] == len(tokens) - 1
    stats = core.stats()
    assert stats.num_self_checks >= 8
    assert stats.num_self_check_failures == 0


def test_flush_empties_it(tiny: TinyEngine) -> None:
    core, prompts = tiny.core(), {"x": random_prompt(30)}
    first = run(core, prompts)
    assert core.stats().total.num_cached_tokens == 44  # of 30 + 16, one of which was never computed
    assert run(core, prompts).cached_tokens == {"x": 28}
    collector = Collector(core)
    collector.add("x", prompts["x"])
    collector.step()
    with pytest.raises(OverloadedError):
        core.flush_cache()
    collector.run()
    core.flush_cache()
    assert core.stats().total.num_cached_tokens == 0
    again = run(core, prompts)
    assert again.cached_tokens == {"x": 0}
    assert again.tokens == first.tokens


def test_self_checks_of_honest_hits(tiny: TinyEngine) -> None:
    """And requests that arrive while one runs are served at once."""
    prompts = {str(length): random_prompt(length) for length in (3, 5, 30, 100)}
    expected = run(tiny.core(disable_radix_cache=True), prompts).tokens
    core = tiny.core(cache_self_check=1.0, chunked_prefill_size=16)
    run(core, prompts)
    assert core.stats().num_self_checks == 0, "no hits yet"
    num_met = 0
    for round_ in range(1, 4):
        answers = run(core, prompts)
        assert answers.tokens == expected
        assert core.stats().num_self_checks == 3 * round_  # a prompt of 3 tokens can't hit
    for name in prompts:  # again, with the next request on its heels
        collector = Collector(core)
        collector.add("100", prompts["100"])
        while core.has_work and not core._self_check.is_running:
            collector.step()
        num_met += core._self_check.is_running
        collector.add(name, prompts[name])
        assert collector.run().tokens[name] == expected[name]
    stats = core.stats()
    assert num_met == len(prompts)
    assert stats.num_self_checks > 9
    assert stats.num_self_check_failures == 0
    assert stats.cache_enabled


@pytest.mark.parametrize("flags", [{"max_running_requests": 1}, {"max_total_tokens": 136}], ids=str)
def test_a_self_check_gives_way_to_requests(tiny: TinyEngine, flags: dict[str, int]) -> None:
    """An urgent request takes the only slot from the one that checks, or all pages, at any of its steps."""
    prompts = {"x": random_prompt(60), "urgent": random_prompt(20)}
    expected = run(tiny.core(disable_radix_cache=True), prompts, max_tokens=110).tokens
    for num_steps in range(6):
        core = tiny.core(cache_self_check=1.0, chunked_prefill_size=16, schedule_policy="priority", **flags)
        run(core, {"x": prompts["x"]})
        collector = Collector(core)
        collector.add("x", prompts["x"])
        while not core._self_check.is_running:
            collector.step()
        for _ in range(num_steps):
            collector.step()
        collector.add("urgent", prompts["urgent"], max_tokens=110, options=RequestOptions(priority=100))
        collector.run()
        assert collector.tokens == {"x": expected["x"][:16], "urgent": expected["urgent"]}
        stats = core.stats()
        assert (stats.num_self_check_failures, stats.cache_enabled) == (0, True)


def cached_pages(core: EngineCore, tokens: list[int]) -> list[int]:
    return core._scheduler.schedulers[0].cache.tree.match(page_keys(tokens, PAGE, 0, len(tokens) // PAGE), None)[1]


def overwrite(core: EngineCore, page: int, values: Any) -> None:
    """Puts other keys and values into a page, behind everybody's back."""
    runner = core._runner
    layers = tuple(layer.at[page].set(values(layer)) for layer in runner.executor.state.kv_cache)
    runner.executor.state = runner.executor.state._replace(kv_cache=layers)


CORRUPTIONS = {
    "noise": lambda layer: np.random.default_rng(0).standard_normal(layer.shape[1:]),
    "another page": lambda layer: layer[200],
    "zeros": lambda layer: np.zeros(layer.shape[1:]),
}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_self_check_finds_a_wrong_page(tiny: TinyEngine, corruption: str, caplog: pytest.LogCaptureFixture) -> None:
    prompts = {"x": random_prompt(30), "y": random_prompt(21)}
    others = {str(i): random_prompt(100, salt=i) for i in range(8)}  # so that the pool's last pages are in use
    generate(tiny.core(), others, max_tokens=4)
    expected = run(tiny.core(disable_radix_cache=True), prompts).tokens
    core = tiny.core(cache_self_check=1.0)
    run(core, prompts)
    overwrite(core, cached_pages(core, prompts["x"])[1], CORRUPTIONS[corruption])
    collector = Collector(core)
    with caplog.at_level(logging.ERROR, "palladio.engine"):
        collector.add("user request~1f", prompts["x"])
        collector.run()
    assert "the cached keys and values of request user request differ" in caplog.text
    stats = core.stats()
    assert (stats.num_self_checks, stats.num_self_check_failures) == (1, 1)
    assert (stats.cache_enabled, stats.total.num_cached_tokens) == (False, 0)
    for _ in range(2):
        answers = run(core, prompts)
        assert answers.tokens == expected
        assert answers.cached_tokens == {"x": 0, "y": 0}
    assert core.stats().total.num_cached_tokens == 0


def test_a_page_of_nan_fails_one_request_and_is_dropped(tiny: TinyEngine) -> None:
    prompts = {"x": random_prompt(30)}
    core = tiny.core(cache_self_check=1.0)
    expected = run(core, prompts).tokens
    overwrite(core, cached_pages(core, prompts["x"])[1], lambda layer: np.full(layer.shape[1:], np.nan))
    finish = run(core, prompts).finish["x"]
    assert (finish.type, finish.status) == ("abort", 500)
    answers = run(core, prompts)
    assert answers.tokens == expected
    assert answers.cached_tokens == {"x": 0}
    assert core.stats().cache_enabled


def test_requests_that_run_when_a_self_check_fails(tiny: TinyEngine) -> None:
    """They hold pages of the cache; nothing is lost when it goes, and what is right stays right."""
    prompts = {"x": random_prompt(60), "y": random_prompt(21), "z": [*random_prompt(60), 9]}
    expected = run(tiny.core(disable_radix_cache=True), prompts, temperature=0.7).tokens
    core = tiny.core(cache_self_check=1.0, chunked_prefill_size=16, enable_mixed_chunk=True)
    run(core, {"x": prompts["x"], "y": prompts["y"]})
    collector = Collector(core)
    collector.add("x", prompts["x"], max_tokens=1)
    while not core._self_check.is_running:
        collector.step()
    overwrite(core, cached_pages(core, prompts["x"])[0], CORRUPTIONS["noise"])
    collector.add("y", prompts["y"], temperature=0.7)
    while core._self_check.is_running:
        collector.step()
    assert core.stats().num_self_check_failures == 1
    assert core.stats().total.num_running == 1
    collector.add("z", prompts["z"], temperature=0.7)
    collector.run()
    assert (collector.tokens["y"], collector.tokens["z"]) == (expected["y"], expected["z"])
    assert collector.cached_tokens["y"] == 20, "held when it went"
    assert collector.cached_tokens["z"] == 0
    assert core.stats().total.num_cached_tokens == 0
