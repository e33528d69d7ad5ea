"""What a seed promises everywhere, and what --deterministic promises on top: the same bits, whatever else happens."""

import itertools
import random
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.core.plan.platform_defaults import PlatformDefaults
from palladio.runtime.core.plan.sizing import EngineLimits
from palladio.runtime.front.requests.intake import RequestIntake
from palladio.runtime.interface.config.config import EngineConfig
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.batch.buckets import PrefillBucket
from tests.properties import examples
from tests.runtime.tiny_engine import Collector, Outcome, TinyEngine, create_core, generate, random_prompt

PROMPT = random_prompt(37)
SAMPLED: dict[str, Any] = {
    "temperature": 0.8,
    "top_p": 0.9,
    "top_k": 40,
    "frequency_penalty": 0.4,
    "presence_penalty": 0.2,
    "repetition_penalty": 1.1,
    "seed": 2**40 + 17,
    "max_tokens": 30,
}
CROWD: list[dict[str, Any]] = [  # every tier of the sampler
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "seed": 2, "logprobs": 3},
    {"temperature": 0.0, "frequency_penalty": 0.5, "prompt_logprobs": 1},
    {"temperature": 1.2, "seed": 3, "logit_bias": {9: 2.0}, "top_p": 0.8},
    {"temperature": 0.0, "logprobs": 0},
]


def run_in_crowd(core: EngineCore, salt: int = 0) -> Collector:
    """The request PROMPT, SAMPLED as "x" among others, which come and go."""
    rng = random.Random(salt)
    collector = Collector(core)
    for i, params in enumerate(CROWD):
        collector.add(f"early {i}", random_prompt(rng.randrange(1, 60), salt + i), **params, max_tokens=9 + 7 * i)
        for _ in range(rng.randrange(2)):
            collector.step()
    collector.add("x", PROMPT, **SAMPLED)
    for i, params in enumerate(CROWD):
        for _ in range(rng.randrange(6)):
            collector.step()
        collector.add(f"late {i}", random_prompt(rng.randrange(1, 60), 10 + salt + i), **params, max_tokens=12)
    return collector.run()


@pytest.fixture(scope="module")
def alone(tiny: TinyEngine) -> list[int]:
    """Its tokens on an engine that does nothing else, without a cache."""
    return generate(tiny.core(disable_radix_cache=True), {"x": PROMPT}, **SAMPLED)["x"]


FLAGS: list[dict[str, Any]] = [
    {},
    {"disable_overlap_schedule": True},
    {"disable_radix_cache": True},
    {"radix_eviction_policy": "lfu", "schedule_policy": "lpm"},
    {"chunked_prefill_size": 16, "enable_mixed_chunk": True, "disable_overlap_schedule": True},
]
CHUNKS = [
    {"chunked_prefill_size": chunk, "enable_mixed_chunk": mixes}
    for chunk, mixes in itertools.product((16, 32, 64), (False, True))
]


@pytest.mark.parametrize("flags", [*FLAGS, *(pytest.param(flags, marks=pytest.mark.slow) for flags in CHUNKS)], ids=str)
def test_a_seeded_request_ignores_what_runs_beside_it(
    tiny: TinyEngine, alone: list[int], flags: dict[str, Any]
) -> None:
    core = tiny.core(**flags)
    for round_ in range(2):  # the second time from the cache
        collector = run_in_crowd(core, salt=round_)
        assert collector.tokens["x"] == alone
        cached = round_ > 0 and not flags.get("disable_radix_cache")
        assert collector.cached_tokens["x"] == (36 if cached else 0)


@pytest.mark.slow
@pytest.mark.parametrize("mixes", [False, True])
def test_a_seeded_request_ignores_how_many_steps_a_program_takes(
    three_steps: TinyEngine, alone: list[int], mixes: bool
) -> None:
    core = three_steps.core(chunked_prefill_size=32, enable_mixed_chunk=mixes)
    for round_ in range(2):
        assert run_in_crowd(core, salt=round_).tokens["x"] == alone


@pytest.mark.parametrize("flags", [{}, {"enable_mixed_chunk": True}, {"disable_radix_cache": True}], ids=str)
def test_a_seeded_request_ignores_its_retractions(tiny: TinyEngine, alone: list[int], flags: dict[str, Any]) -> None:
    """By others that are more urgent, at many of its steps; and for want of pages."""
    for num_steps in range(0, 30, 4):
        core = tiny.core(max_running_requests=1, chunked_prefill_size=16, schedule_policy="priority", **flags)
        collector = Collector(core)
        collector.add("x", PROMPT, **SAMPLED)
        for i in range(3):
            for _ in range(1 + num_steps):
                collector.step()
            collector.add(str(i), random_prompt(20, i), max_tokens=2, options=RequestOptions(priority=100))
        collector.run()
        assert collector.tokens["x"] == alone
        assert collector.num_retractions["x"] > 0
    core = tiny.core(max_total_tokens=200, schedule_conservativeness=0.0, **flags)
    collector = Collector(core)
    collector.add("x", PROMPT, **SAMPLED)
    for i in range(3):  # these have more to lose
        collector.add(str(i), random_prompt(50, i), max_tokens=60)
    collector.run()
    assert collector.num_retractions["x"] > 0
    assert collector.tokens["x"] == alone


def test_a_seeded_request_ignores_a_restart(tiny_dir: Path, alone: list[int]) -> None:
    """Another engine of the same seed, with other buckets."""
    core = create_core(tiny_dir, chunked_prefill_size=16, max_running_requests=2, compile="lazy")
    assert generate(core, {"x": PROMPT}, **SAMPLED)["x"] == alone
    assert generate(core, {"x": PROMPT}, **{**SAMPLED, "seed": 4})["x"] != alone


def test_sample_i_is_that_of_seed_plus_i(tiny: TinyEngine) -> None:
    plain = tiny.core(disable_radix_cache=True)
    lone = [generate(plain, {"x": PROMPT}, **{**SAMPLED, "seed": SAMPLED["seed"] + i})["x"] for i in range(5)]
    assert len(set(map(tuple, lone))) == 5
    core = tiny.core()
    asked = GenerationRequest("x", PROMPT, SamplingParams(**SAMPLED, n=5, ignore_eos=True))
    messages = RequestIntake(core.ready, None).resolve(asked)
    collector = Collector(core)
    for message in messages:
        collector.send(message)
    collector.run()
    assert [collector.tokens[message.request_id] for message in messages] == lone
    assert [collector.cached_tokens[message.request_id] for message in messages] == [0, 36, 36, 36, 36]


# --deterministic: what follows compares floats with ==.

EXACT = {"max_tokens": 14, "logprobs": 5, "prompt_logprobs": 2}
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 31, 32, 33, 34, 64, 65, 90)


@pytest.fixture(scope="module")
def exactly_alone(exact: TinyEngine) -> dict[int, Outcome]:
    """Each prompt's outcome on an engine that does nothing else, without a cache."""
    collector = Collector(exact.core(disable_radix_cache=True, max_running_requests=1))
    for length in LENGTHS:
        collector.add(str(length), random_prompt(length), **EXACT)
    collector.run()
    outcomes = {length: collector.outcome(str(length)) for length in LENGTHS}
    for length, outcome in outcomes.items():
        assert (len(outcome.tokens), len(outcome.logprobs), len(outcome.prompt_logprobs)) == (14, 14, length)
        assert all(len(entry.top) == 5 for entry in outcome.logprobs)
    return outcomes


@pytest.mark.parametrize("flags", [{"cpu_kernels": "native"}, {"attention_backend": "cpu_native"}])
def test_kernels_that_round_a_chunk_differently_are_refused(flags: dict[str, Any]) -> None:
    flag = f"--{next(iter(flags)).replace('_', '-')} .*native"
    with pytest.raises(ConfigError, match=rf"{flag} rounds a token alone .* leave --deterministic or it out"):
        EngineConfig.from_flags({"model_path": "m", "deterministic": True, **flags})


def test_deterministic_is_one_program(tiny: TinyEngine, exact: TinyEngine) -> None:
    def count(engine: TinyEngine, name: str) -> int:
        return sum(key.kind == name for key in engine.programs)

    assert [count(exact, name) for name in ("forward", "sample", "score", "decode")] == [1, 4, 1, 0]
    assert [count(tiny, name) for name in ("forward", "sample", "score", "decode")] == [4, 8, 2, 2]


@pytest.mark.parametrize(
    ("flags", "num_tokens"),
    [
        ({}, 8),
        ({"chunked_prefill_size": 20}, 20),
        ({"chunked_prefill_size": 5}, 8),
        ({"max_prefill_tokens": 3}, 8),
        ({"chunked_prefill_size": -1, "max_prefill_tokens": 64}, 256),  # a prompt is not split: the whole context
    ],
    ids=str,
)
def test_the_one_shape_holds_what_must_run(tiny_dir: Path, flags: dict[str, Any], num_tokens: int) -> None:
    values = {"model_path": str(tiny_dir), "max_running_requests": 8, "deterministic": True, **flags}
    config = EngineConfig.from_flags(values)
    defaults = PlatformDefaults.of("cpu")
    limits = EngineLimits.of(config, ModelConfig.from_hf(*read_model_dir(tiny_dir, {})), defaults)
    assert limits.buckets(config, defaults).prefill == (PrefillBucket(num_tokens, 8),)


@pytest.mark.parametrize(
    ("chunk", "mixes"),
    [
        (19, True),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in ((8, False), (8, True), (19, False), (32, False), (32, True))
        ),
    ],
)
def test_bits_alone_and_in_batches(
    exact: TinyEngine, exactly_alone: dict[int, Outcome], chunk: int, mixes: bool
) -> None:
    """All positions in the batch, all chunks, from scratch and from the cache."""
    core = exact.core(chunked_prefill_size=chunk, enable_mixed_chunk=mixes)
    for shift in (0, 9):
        for scores in (True, False):
            params = EXACT if scores else {**EXACT, "prompt_logprobs": None}
            collector = Collector(core)
            for length in LENGTHS[shift:] + LENGTHS[:shift]:
                collector.add(str(length), random_prompt(length), **params)
            collector.run()
            for length, expected in exactly_alone.items():
                assert collector.outcome(str(length)) == expected._replace(
                    prompt_logprobs=expected.prompt_logprobs if scores else []
                )
                assert scores or collector.cached_tokens[str(length)] == (length - 1) // 4 * 4


def test_bits_of_decoding_are_those_of_prefill(exact: TinyEngine, exactly_alone: dict[int, Outcome]) -> None:
    """Each token, once more from a prompt of all tokens before it."""
    core = exact.core(disable_radix_cache=True)
    for length in (1, 13, 32, 64):
        collector, outcome = Collector(core), exactly_alone[length]
        for i in range(14):
            tokens = random_prompt(length) + outcome.tokens[:i]
            collector.add(str(i), tokens, max_tokens=1, logprobs=5)
        collector.run()
        assert [collector.logprobs[str(i)] for i in range(14)] == [[entry] for entry in outcome.logprobs]


@pytest.mark.parametrize("flags", [{}, {"enable_mixed_chunk": True}, {"disable_radix_cache": True}], ids=str)
def test_bits_after_retraction(exact: TinyEngine, exactly_alone: dict[int, Outcome], flags: dict[str, Any]) -> None:
    core = exact.core(max_total_tokens=108, schedule_conservativeness=0.0, **flags)
    collector = Collector(core)
    for length in LENGTHS:
        collector.add(str(length), random_prompt(length), **EXACT)
    collector.run()
    assert sum(count > 0 for count in collector.num_retractions.values()) > 2
    for length, expected in exactly_alone.items():
        assert collector.outcome(str(length)) == expected


def test_bits_of_sampled_requests(exact: TinyEngine) -> None:
    """Not promised, but so it is: the noise is a function of seed and position, and all else is one program."""
    plain = exact.core(disable_radix_cache=True, max_running_requests=1)
    collector = Collector(plain)
    collector.add("x", PROMPT, **SAMPLED, logprobs=20)
    expected = collector.run().outcome("x")
    core = exact.core(chunked_prefill_size=16, enable_mixed_chunk=True)
    for _ in range(2):
        collector = Collector(core)
        for i, params in enumerate(CROWD):
            collector.add(str(i), random_prompt(7 * i + 1, i), **params)
        collector.step()
        collector.add("x", PROMPT, **SAMPLED, logprobs=20)
        assert collector.run().outcome("x") == expected


@st.composite
def schedules(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[int, int, bool]]]:
    """Flags, and arrivals: prompt length, steps before the next arrival, whether it asks for prompt logprobs."""
    flags = {
        "chunked_prefill_size": draw(st.integers(8, 32)),
        "enable_mixed_chunk": draw(st.booleans()),
        "disable_overlap_schedule": draw(st.booleans()),
        "max_total_tokens": draw(st.sampled_from([108, 160, 1024])),
        "schedule_conservativeness": 0.0,
    }
    arrival = st.tuples(st.sampled_from(LENGTHS), st.integers(0, 4), st.booleans())
    return flags, draw(st.lists(arrival, min_size=4, max_size=20))


@examples(6, long=150)
@hypothesis.given(schedules())
def test_bits_under_any_schedule(
    exact: TinyEngine,
    exactly_alone: dict[int, Outcome],
    schedule: tuple[dict[str, Any], list[tuple[int, int, bool]]],
) -> None:
    flags, arrivals = schedule
    collector = Collector(exact.core(**flags))
    for i, (length, num_steps, scores) in enumerate(arrivals):
        collector.add(str(i), random_prompt(length), **{**EXACT, "prompt_logprobs": 2 if scores else None})
        for _ in range(num_steps):
            collector.step()
    collector.run()
    for i, (length, _, scores) in enumerate(arrivals):
        expected = exactly_alone[length]
        assert collector.outcome(str(i)) == (expected if scores else expected._replace(prompt_logprobs=[]))
