"""Drafts: steps give several tokens where a text repeats itself, and the tokens are those of steps without drafts."""

import logging
from typing import Any

import pytest

from palladio.flags.default_model import default_model_path
from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.front.offline.offline_engine import Engine
from tests.runtime.tiny_engine import Collector, TinyEngine, generate, random_prompt, record_batches

COPIES = random_prompt(9) * 4


def num_decodes(core: EngineCore, prompt: list[int], **params: Any) -> tuple[list[int], int]:
    """The tokens of one request, and the steps after its prompt."""
    batches = record_batches(core)
    tokens = generate(core, {"x": prompt}, **params)["x"]
    return tokens, sum(batch.kind != "prefill" for batch in batches)


@pytest.mark.parametrize("flags", [{}, {"disable_overlap_schedule": True}], ids=["overlap", "no overlap"])
def test_a_text_that_repeats_takes_fewer_steps(tiny: TinyEngine, drafting: TinyEngine, flags: dict[str, Any]) -> None:
    """This model's greedy output runs in a circle."""
    expected, num_plain = num_decodes(tiny.core(num_continuous_decode_steps=1, **flags), COPIES, max_tokens=96)
    core = drafting.core(**flags)
    tokens, num_steps = num_decodes(core, COPIES, max_tokens=96)
    assert tokens == expected
    assert num_plain >= 95
    assert 95 / num_steps >= 1.5
    total = core.stats().total
    assert total.num_accepted_drafts > 0.5 * total.num_draft_rows
    assert total.num_accepted_drafts <= total.num_draft_tokens


def test_a_prefix_that_is_cached_comes_with_its_tokens(drafting: TinyEngine) -> None:
    """The matcher finds on the device what another request has computed."""
    core = drafting.core()
    first, _ = num_decodes(core, COPIES, max_tokens=40)
    again, num_steps = num_decodes(core, [*COPIES, *first], max_tokens=40)
    whole, num_cold = num_decodes(drafting.core(), [*COPIES, *first], max_tokens=40)
    assert again == whole
    assert num_steps == num_cold
    assert core.stats().total.num_hit_tokens > 40


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.05, "top_k": 8},
    "penalties": {"temperature": 0.05, "presence_penalty": 0.02, "frequency_penalty": -0.02},
    "logprobs": {"logprobs": 2, "logprob_token_ids": (5, 9)},
    "least": {"min_tokens": 30, "stop_ids": tuple(range(3, 80))},
    "stop": {},
}


@pytest.mark.parametrize("pool", [{}, {"max_total_tokens": 160, "schedule_conservativeness": 0.0}], ids=["", "small"])
def test_each_kind_of_request_has_right_drafts_and_the_same_tokens(
    tiny: TinyEngine, drafting: TinyEngine, pool: dict[str, Any]
) -> None:
    """In float32, with steps of other shapes; the small pool retracts some."""
    plain = Collector(tiny.core())
    for name, params in KINDS.items():
        plain.add(name, COPIES, **{"max_tokens": 48, **params})
    plain.run()
    drafted = Collector(drafting.core(**pool))
    for name, params in KINDS.items():
        stop_ids = {"stop_ids": (plain.tokens["stop"][30],)} if name == "stop" else {}
        drafted.add(name, COPIES, **{"max_tokens": 48, **params, **stop_ids})
    drafted.run()
    end = plain.tokens["stop"].index(plain.tokens["stop"][30]) + 1
    assert drafted.tokens == plain.tokens | {"stop": plain.tokens["stop"][:end]}
    logprobs = [[entry.logprob for entry in of.logprobs["logprobs"]] for of in (drafted, plain)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    accepted = {name: trace.drafts.num_accepted_drafts for name, trace in drafted.traces.items()}
    assert all(accepted.values()), accepted
    assert any(drafted.num_retractions.values()) == bool(pool)


@pytest.mark.slow  # above are the same tokens, and test_determinism.py has one shape
def test_one_shape_gives_the_same_bits(build: Any) -> None:
    """With --deterministic, log-probabilities too."""
    flags = {"deterministic": True, "chunked_prefill_size": 32, "compile": "lazy"}
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 0.7, "presence_penalty": 0.3},
    ]
    collectors = []
    for speculative in ({}, {"speculative_algorithm": "NGRAM"}):
        collector = Collector(build(**flags, **speculative).core())
        for number, params in enumerate(kinds):
            collector.add(str(number), COPIES[: 20 + number], max_tokens=24, logprobs=2, seed=number, **params)
        collectors.append(collector.run())
    plain, drafted = collectors
    assert all(drafted.outcome(name) == plain.outcome(name) for name in plain.tokens)
    assert drafted.core.stats().total.num_accepted_drafts > 0
    assert plain.core.stats().total.num_draft_rows == 0


def test_the_log_tells_how_many_are_right(drafting: TinyEngine, caplog: pytest.LogCaptureFixture) -> None:
    core = drafting.core(decode_log_interval=5)
    with caplog.at_level(logging.INFO, "palladio.engine"):
        generate(core, {"x": COPIES}, max_tokens=60)
    lines = [record.message for record in caplog.records if "Decode batch" in record.message]
    assert any("accept len: 4.00, accept rate: 1.00, cuda graph" in line for line in lines), lines


@pytest.mark.slow
def test_what_users_see_is_the_same() -> None:
    """Stop strings, several samples, least tokens, and a grammar beside free text; twice, the second time with hits."""
    passage = "The capital of France is Paris. The capital of Spain is Madrid. " * 3
    requests: list[dict[str, Any]] = [
        {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True},
        {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True, "stop": ["a"]},
        {"temperature": 0.8, "max_new_tokens": 40, "seed": 5, "n": 3},
        {"temperature": 0.6, "max_new_tokens": 40, "seed": 6, "min_new_tokens": 20, "frequency_penalty": 0.3},
        {"temperature": 0, "max_new_tokens": 60, "regex": "the capital of (France|Spain) is [A-Z][a-z]{3,9}!"},
    ]
    found = []
    for speculative in ({}, {"speculative_algorithm": "NGRAM"}):
        flags = {"max_running_requests": 8, "context_length": 512, "max_total_tokens": 4096, "compile": "lazy"}
        with Engine(str(default_model_path()), random_seed=0, **flags, **speculative) as engine:
            results: list[Any] = [engine.generate([passage] * len(requests), requests) for _ in range(2)]
            found.append([[(one["text"], one["meta_info"]["finish_reason"]) for one in turn] for turn in results])
            accepted = engine.get_server_info()["internal_states"][0]["num_accepted_drafts"]
            assert (accepted > 0) == bool(speculative)
    assert found[0] == found[1]
    assert "stop" in {reason["type"] for _, reason in found[0][0][:2]}
