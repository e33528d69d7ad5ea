"""Requests with grammars on real programs: every output is in its grammar, and is the same whatever else runs."""

import collections
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from palladio.runtime.core import engine_core
from palladio.runtime.interface.outputs.token_output import FinishReason
from palladio.runtime.interface.request.grammar_spec import Grammar, Thinking
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.runtime.core.constrained import EOS, FRANCE, run
from tests.runtime.execution.compiled.test_out_of_memory import fail_once
from tests.runtime.tiny_engine import Collector, TinyEngine, random_prompt, record_batches

SCHEMAS = json.loads((Path(__file__).parent / "json_schemas.json").read_text())["schemas"]
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"enum": ["small", "big"]}, "population": {"type": "integer"}},
    "required": ["name", "size", "population"],
    "additionalProperties": False,
}
SMALL_POOL = {"max_total_tokens": 200, "schedule_conservativeness": 0.0}


@pytest.fixture(scope="module")
def tokenizer(tiny_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_dir)


@pytest.fixture(scope="module")
def closing(tokenizer: Tokenizer) -> dict[int, float]:
    """A bias towards what ends strings, lists and objects: a random model would write for ever."""
    endings = ('"', "}", "]", '"}', ":", "<|im_end|>")
    return {token_id: 8.0 for token_id in range(384) if tokenizer.token_text(token_id) in endings}


def mixed(closing: dict[int, float]) -> dict[str, dict[str, Any]]:
    """Requests with grammars of several kinds, in all tiers of the sampler, beside some without."""
    city = Grammar("json_schema", json.dumps(CITY))
    common = {"temperature": 1.0, "stop_ids": (EOS,), "max_tokens": 60}
    return {
        "plain": {"prompt": random_prompt(9), "temperature": 0.9, "seed": 3, "max_tokens": 30},
        "greedy": {"prompt": random_prompt(12), "grammar": FRANCE, "stop_ids": (EOS,), "max_tokens": 60},
        "city": {"prompt": random_prompt(30), "grammar": city, "seed": 1, "logit_bias": closing, **common},
        "scored": {"prompt": random_prompt(7), "grammar": FRANCE, "seed": 2, "logprobs": 3, **common},
        "penalized": {"prompt": random_prompt(20), "grammar": FRANCE, "seed": 3, "presence_penalty": 0.5, **common},
        "short": {"prompt": random_prompt(11), "grammar": FRANCE, "seed": 4, **common, "max_tokens": 5},
        "letters": {"prompt": random_prompt(5), "grammar": Grammar("regex", "[a-z]+"), "seed": 5, **common},
        "late": {"prompt": random_prompt(90), "grammar": FRANCE, "seed": 6, **common},
        "greedy plain": {"prompt": random_prompt(40), "max_tokens": 30},
    }


@pytest.fixture(scope="module")
def alone(tiny: TinyEngine, closing: dict[int, float]) -> dict[str, list[int]]:
    """Each request by itself: there every jump over forced text pays."""
    return {name: run(tiny, {name: request}).tokens[name] for name, request in mixed(closing).items()}


def test_alone(alone: dict[str, list[int]], tokenizer: Tokenizer) -> None:
    texts = {name: tokenizer.decode(tokens) for name, tokens in alone.items()}
    jsonschema.validate(json.loads(texts["city"]), CITY)
    for name in ("greedy", "scored", "penalized", "late"):
        assert re.fullmatch(FRANCE.text, texts[name])
    assert len(alone["short"]) == 5
    assert texts["letters"].removesuffix("<|im_end|>").isalpha()


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"disable_overlap_schedule": True},
        {"enable_mixed_chunk": True},
        {"disable_radix_cache": True},
        SMALL_POOL,
        {"max_running_requests": 2},
    ],
    ids=str,
)
def test_together(
    tiny: TinyEngine, alone: dict[str, list[int]], closing: dict[int, float], flags: dict[str, Any]
) -> None:
    collector = run(tiny, mixed(closing), **flags)
    assert collector.tokens == alone
    assert {name: finish.type for name, finish in collector.finish.items()}["short"] == "length"
    assert len(collector.logprobs["scored"]) == len(alone["scored"])
    if flags == SMALL_POOL:
        assert sum(collector.num_retractions.values()) > 0


@pytest.mark.parametrize("several", ["drafting", pytest.param("three_steps", marks=pytest.mark.slow)], indirect=True)
def test_several_tokens_a_step(several: TinyEngine, alone: dict[str, list[int]], closing: dict[int, float]) -> None:
    assert run(several, mixed(closing)).tokens == alone


@pytest.mark.slow  # test_determinism.py has engines of one shape
def test_one_shape(build: Any, closing: dict[int, float]) -> None:
    engine = build(deterministic=True, compile="lazy")
    requests = mixed(closing)
    together = run(engine, requests)
    for name in ("greedy", "scored", "city"):
        single = run(engine, {name: requests[name]})
        assert single.outcome(name) == together.outcome(name)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_schemas_of_every_kind(tiny: TinyEngine, tokenizer: Tokenizer, closing: dict[int, float], step: int) -> None:
    """At temperature 1, from a model that knows nothing: what ends by itself is valid, always."""
    assert len(SCHEMAS) > 100
    requests = {
        entry["name"]: {
            "prompt": random_prompt(5 + number % 7, number),
            "grammar": Grammar("json_schema", json.dumps(entry["schema"])),
            "temperature": 1.0,
            "seed": number,
            "max_tokens": 150,
            "stop_ids": (EOS,),
            "logit_bias": closing,
        }
        for number, entry in enumerate(SCHEMAS)
        if number % step == 0  # of all, tests/runtime/grammar/test_schema_corpus.py knows what is allowed
    }
    collector = run(tiny, requests)
    ends = collections.Counter(finish.type for finish in collector.finish.values())
    assert ends["stop"] > 0.9 * len(requests), ends
    for entry in SCHEMAS[::step]:
        if collector.finish[entry["name"]].type == "stop":
            tokens = [token for token in collector.tokens[entry["name"]] if token != EOS]
            value = json.loads(tokenizer.decode(tokens))
            jsonschema.Draft202012Validator(entry["schema"]).validate(value)


def test_forced_text_takes_few_steps(tiny: TinyEngine) -> None:
    core = tiny.core()
    batches = record_batches(core)
    collector = Collector(core)
    collector.add("a", random_prompt(5), grammar=FRANCE, max_tokens=60, stop_ids=(EOS,))
    collector.run()
    assert len(batches) < 0.6 * len(collector.tokens["a"])
    assert collector.finish["a"] == FinishReason("stop"), "no step is spent on the end-of-sequence token"


def test_thinking_comes_before_the_grammar(tiny: TinyEngine, tokenizer: Tokenizer) -> None:
    start, end = (tokenizer.encode(tag)[0] for tag in ("<think>", "</think>"))
    thinking = Thinking((start,), (end,), begun=True, budget=12)
    collector = run(
        tiny,
        {
            str(seed): {
                "prompt": random_prompt(6, seed),
                "grammar": Grammar("choice", '["Paris", "Berlin"]'),
                "thinking": thinking,
                "temperature": 1.0,
                "seed": seed,
                "max_tokens": 60,
                "stop_ids": (EOS,),
            }
            for seed in range(6)
        },
    )
    for tokens in collector.tokens.values():
        length = tokens.index(end)
        assert length <= 12
        assert EOS not in tokens[:length]
        assert tokenizer.decode(tokens[length + 1 :]) in ("Paris", "Berlin")
    assert max(tokens.index(end) for tokens in collector.tokens.values()) == 12


def test_a_budget_without_a_grammar(tiny: TinyEngine, tokenizer: Tokenizer) -> None:
    start, end = (tokenizer.encode(tag)[0] for tag in ("<think>", "</think>"))
    thinking = Thinking((start,), (end,), begun=True, budget=4)
    request = {"prompt": random_prompt(6), "temperature": 1.0, "seed": 1, "max_tokens": 20}
    tokens = run(tiny, {"a": {**request, "thinking": thinking}}).tokens["a"]
    assert tokens[:4] == run(tiny, {"a": request}).tokens["a"][:4]
    assert tokens[4] == end
    assert len(tokens) == 20


def test_a_forbidden_token_never_stands_in_a_thought(tiny: TinyEngine, tokenizer: Tokenizer) -> None:
    """Nor does the rest change: a token that would have come is replaced, and the answer may have it."""
    start, end, mark = (tokenizer.encode(tag)[0] for tag in ("<think>", "</think>", "<tool_call>"))
    thinking = Thinking((start,), (end,), begun=True, budget=4, forbidden_ids=(mark,))
    request = {"prompt": random_prompt(6), "temperature": 1.0, "seed": 1, "max_tokens": 12, "logit_bias": {mark: 60.0}}
    assert run(tiny, {"a": request}).tokens["a"] == [mark] * 12
    tokens = run(tiny, {"a": {**request, "thinking": thinking}}).tokens["a"]
    assert mark not in tokens[:4]
    assert tokens[4:] == [end, *[mark] * 7]


def test_a_spent_budget_constrains_nothing(tiny: TinyEngine, tokenizer: Tokenizer) -> None:
    """The request runs ahead of the host again, like any other."""
    start, end = (tokenizer.encode(tag)[0] for tag in ("<think>", "</think>"))
    core = tiny.core()
    batches = record_batches(core)
    collector = Collector(core)
    thinking = Thinking((start,), (end,), begun=True, budget=4)
    collector.add("a", random_prompt(6), thinking=thinking, max_tokens=20)
    collector.run()
    assert batches[-1].rows[0].request.constraint is None


def test_ends_of_sequence_are_ignored_while_there_is_more(tiny: TinyEngine) -> None:
    request = {"prompt": random_prompt(6), "temperature": 1.0, "max_tokens": 30, "ignore_eos": True, "seed": 1}
    collector = run(tiny, {"a": {**request, "grammar": Grammar("regex", "[a-z]+"), "logit_bias": {EOS: 50.0}}})
    assert EOS not in collector.tokens["a"]
    assert collector.finish["a"].type == "length"


def test_min_tokens_against_a_grammar(tiny: TinyEngine, tokenizer: Tokenizer) -> None:
    """Where the grammar leaves only a stop id, that comes, early as it is; never a token that is not allowed."""
    letter = tokenizer.encode("a")[0]
    request = {"prompt": random_prompt(6), "grammar": Grammar("regex", "aaaa"), "max_tokens": 30, "min_tokens": 5}
    collector = run(tiny, {"a": {**request, "stop_ids": (letter,)}})
    assert set(tokenizer.decode(collector.tokens["a"])) == {"a"}
    assert collector.finish["a"].type == "stop"


def test_the_end_of_a_grammar_ends_the_output(tiny: TinyEngine) -> None:
    """Whatever the request says about ends."""
    request = {"prompt": random_prompt(6), "grammar": Grammar("choice", '["Paris"]'), "max_tokens": 40}
    collector = run(tiny, {"a": {**request, "ignore_eos": True}, "b": {**request, "min_tokens": 30}})
    assert collector.tokens["a"] == collector.tokens["b"]
    assert collector.finish["a"] == collector.finish["b"] == FinishReason("stop")


def test_stop_ids_within_forced_text(tiny: TinyEngine, tokenizer: Tokenizer) -> None:
    tokens = run(tiny, {"a": {"prompt": random_prompt(6), "grammar": FRANCE, "max_tokens": 60}}).tokens["a"]
    collector = run(
        tiny, {"a": {"prompt": random_prompt(6), "grammar": FRANCE, "max_tokens": 60, "stop_ids": (tokens[4],)}}
    )
    first = tokens.index(tokens[4])
    assert collector.tokens["a"] == tokens[: first + 1]
    assert collector.finish["a"] == FinishReason("stop", matched=tokens[4])


def test_other_requests_pay_nothing(tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without grammars there is no mask, no wait for the step before, and no other program."""

    def never(*args: object) -> None:
        raise AssertionError("a mask was made")

    monkeypatch.setattr(engine_core, "build_masks", never)
    core = tiny.core()
    tiers = []
    programs = core._runner.programs
    tier_of = programs.tier
    monkeypatch.setattr(programs, "tier", lambda kind, size, tier: tiers.append(tier) or tier_of(kind, size, tier))
    collector = Collector(core)
    for number in range(4):
        collector.add(str(number), random_prompt(6 + number), temperature=0.5 * number, seed=number)
    collector.run()
    assert set(tiers) <= {"greedy", "random"}


@pytest.mark.parametrize("flags", [{}, {"enable_mixed_chunk": True}], ids=str)
def test_pages_of_a_request_that_ends_while_its_next_step_runs(tiny: TinyEngine, flags: dict[str, Any]) -> None:
    """The step before is read after the forward pass is dispatched: that has written the last token's keys and values,
    though its row samples for nobody. So the page that this token fills is cached, and is what it should be."""
    grammar = Grammar("regex", "[a-z]+")
    request = {"grammar": grammar, "temperature": 1.0, "seed": 1, "max_tokens": 12}
    num_full = 0
    for length in range(9, 13):
        tokens = run(tiny, {"a": {"prompt": random_prompt(length), **request}}).tokens["a"]
        stop = next(token for number, token in enumerate(tokens) if number >= 5 and token not in tokens[:number])
        core = tiny.core(cache_self_check=1.0, **flags)
        collector = Collector(core)
        collector.add("a", random_prompt(length), **request, stop_ids=(stop,))
        collector.add("b", random_prompt(7, salt=1), **{**request, "max_tokens": 40})
        batches = record_batches(core)
        while "a" not in collector.finish:
            collector.step()
        whole = random_prompt(length) + collector.tokens["a"]
        assert whole[-1] == stop
        assert any(row.request.given.request_id == "a" for row in batches[-1].rows), (
            "it ended while this step was under way"
        )
        collector.run()
        longer = {"c": [*whole, 50, 51]}
        collector.add("c", longer["c"], logprobs=1)
        collector.run()
        assert collector.cached_tokens["c"] == len(whole) // 4 * 4
        num_full += len(whole) % 4 == 0
        assert core.stats().num_self_checks > 0
        assert core.stats().num_self_check_failures == 0
        fresh = Collector(tiny.core(disable_radix_cache=True))
        fresh.add("c", longer["c"], logprobs=1)
        expected = fresh.run().logprobs["c"]
        assert [entry.logprob for entry in collector.logprobs["c"]] == pytest.approx(
            [entry.logprob for entry in expected], abs=1e-4
        )
    assert num_full == 1, "of four lengths one fills its last page with the token that ended it"


@pytest.mark.parametrize("method", ["forward", "sample", "read"])
def test_after_a_step_that_ran_out_of_memory(
    tiny: TinyEngine, alone: dict[str, list[int]], closing: dict[int, float], monkeypatch: Any, method: str
) -> None:
    core = tiny.core()
    runner = core._runner
    collector = Collector(core)
    for name, request in mixed(closing).items():
        collector.add(name, **request)
    failed = fail_once(
        monkeypatch,
        runner,
        method,
        lambda batch: batch.kind == "decode",
        destroy=lambda: runner.executor.state.of_requests,
    )
    collector.run()
    assert failed
    for name, tokens in alone.items():
        if name in failed:
            assert collector.finish[name].status == 500
            assert collector.tokens[name] == tokens[: len(collector.tokens[name])]
        else:
            assert collector.tokens[name] == tokens, name


def test_a_grammar_that_goes_too_far(tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library gives up on a grammar while it is at work: that request ends with the reason, others go on."""
    core = tiny.core()
    collector = Collector(core)
    collector.add("bad", random_prompt(6), grammar=Grammar("regex", "[a-z]+"), max_tokens=30)
    collector.add("good", random_prompt(6), grammar=FRANCE, max_tokens=60)
    while not collector.tokens["bad"]:
        collector.step()
    (request,) = [request for request in core._scheduler.schedulers[0].running if request.given.request_id == "bad"]
    assert request.constraint is not None
    request.constraint._matcher.native.consume_token(EOS + 1)  # type: ignore[attr-defined]  # as a token that the mask forbids
    collector.run()
    assert (collector.finish["bad"].type, collector.finish["bad"].status) == ("abort", 400)
    assert "the grammar cannot continue" in collector.finish["bad"].message
    assert collector.finish["good"].type == "stop"


def test_seeds_decide(tiny: TinyEngine, closing: dict[int, float]) -> None:
    city = Grammar("json_schema", json.dumps(CITY))
    requests = {
        str(seed): {
            "prompt": random_prompt(8),
            "grammar": city,
            "temperature": 1.0,
            "seed": seed,
            "max_tokens": 80,
            "logit_bias": closing,
        }
        for seed in range(8)
    }
    tokens = run(tiny, requests).tokens
    assert len({tuple(ids) for ids in tokens.values()}) == 8
    assert np.mean([run(tiny, {name: request}).tokens[name] == tokens[name] for name, request in requests.items()]) == 1


def test_allowed_tokens_are_the_only_ones(tiny: TinyEngine) -> None:
    ids = (7, 99, 200, 383)
    common = {"prompt": random_prompt(9), "max_tokens": 12, "allowed_token_ids": ids}
    requests: dict[str, dict[str, Any]] = {
        "greedy": common,
        "random": common | {"temperature": 5.0, "seed": 3},
        "full": common | {"temperature": 5.0, "seed": 3, "logprobs": 2, "presence_penalty": 1.0},
        "plain": {"prompt": random_prompt(9), "max_tokens": 12},
    }
    together = run(tiny, requests)
    for name in ("greedy", "random", "full"):
        tokens = together.tokens[name]
        assert len(tokens) == 12
        assert set(tokens) <= set(ids)
        assert run(tiny, {name: requests[name]}).tokens[name] == tokens
    assert len(set(together.tokens["random"])) > 1
    assert not set(together.tokens["plain"]) <= set(ids)
