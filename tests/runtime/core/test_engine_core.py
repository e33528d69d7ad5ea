"""The engine at token level, on real programs of a tiny model: what runs beside a request must not change it."""

import math

import numpy as np
import pytest

from palladio.runtime.core.engine_core import EngineCore
from palladio.runtime.interface.errors import InvalidRequestError
from palladio.runtime.interface.request.generation_request import GenerationRequest, SamplingParams
from tests.runtime.tiny_engine import NUM_TOKENS, Collector, TinyEngine, generate

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100)


def prompt(length: int, salt: int = 0) -> list[int]:
    rng = np.random.default_rng(1000 * salt + length)
    return rng.integers(3, NUM_TOKENS, length).tolist()


SMALL_STEPS = {"chunked_prefill_size": 32}


@pytest.fixture
def core(tiny: TinyEngine) -> EngineCore:
    return tiny.core(**SMALL_STEPS)


@pytest.fixture(scope="module")
def alone(tiny: TinyEngine) -> dict[str, list[int]]:
    """Greedy tokens of each prompt length, each run alone."""
    core, tokens = tiny.core(**SMALL_STEPS), dict[str, list[int]]()
    for length in LENGTHS:
        tokens |= generate(core, {str(length): prompt(length)}, max_tokens=24)
    return tokens


def test_prompts_together_give_the_tokens_they_give_alone(alone: dict[str, list[int]], core: EngineCore) -> None:
    together = generate(core, {str(length): prompt(length) for length in LENGTHS}, max_tokens=24)
    assert together == alone


def test_cached_decoding_equals_computing_everything_anew(alone: dict[str, list[int]], core: EngineCore) -> None:
    """Each token again from a prefill of all tokens before it: pages, chunks and decode steps must not matter."""
    for length in (1, 5, 17, 33):
        tokens = prompt(length)
        for expected in alone[str(length)][:6]:
            assert generate(core, {"x": tokens}, max_tokens=1)["x"] == [expected]
            tokens = [*tokens, expected]


@pytest.mark.slow
def test_a_small_pool_retracts_and_changes_nothing(tiny: TinyEngine) -> None:
    prompts = {f"{length}": prompt(length) for length in (9, 10, 17, 20, 25, 30)}
    sampled = {"max_tokens": 40, "temperature": 0.9, "top_p": 0.9, "frequency_penalty": 0.5}
    large = tiny.core(**SMALL_STEPS)
    expected = {name: generate(large, {name: tokens}, **sampled)[name] for name, tokens in prompts.items()}
    small = tiny.core(max_total_tokens=160, schedule_conservativeness=0.0, **SMALL_STEPS)
    collector = Collector(small)
    for name, tokens in prompts.items():
        collector.add(name, tokens, **sampled)
    collector.run()
    assert sum(collector.num_retractions.values()) > 0, "the pool was meant to be too small"
    assert collector.tokens == expected


def test_overlap_changes_nothing(tiny: TinyEngine) -> None:
    prompts = {str(length): prompt(length) for length in LENGTHS}
    expected = generate(tiny.core(**SMALL_STEPS), prompts, temperature=0.7)
    serial = tiny.core(disable_overlap_schedule=True, **SMALL_STEPS)
    assert generate(serial, prompts, temperature=0.7) == expected


def test_seeded_sampling_is_the_same_alone_and_in_a_batch(core: EngineCore) -> None:
    params = {"temperature": 1.0, "top_p": 0.95, "top_k": 50, "min_p": 0.01, "seed": 2**63 + 11}
    single = generate(core, {"x": prompt(20)}, **params)["x"]
    crowd = Collector(core)
    for i in range(6):
        crowd.add(f"other{i}", prompt(10 + i), temperature=0.5 + i / 10, seed=i, logprobs=3)
    crowd.step()
    crowd.add("x", prompt(20), **params)
    assert crowd.run().tokens["x"] == single
    assert generate(core, {"x": prompt(20)}, **(params | {"seed": 12}))["x"] != single


def test_stop_token_ids_end_the_output_unless_it_is_too_short(core: EngineCore) -> None:
    tokens = generate(core, {"x": prompt(12)}, max_tokens=20)["x"]
    stop = tokens[5]
    first = tokens.index(stop)
    collector = Collector(core)
    collector.add("x", prompt(12), max_tokens=20, stop_ids=(stop,))
    collector.run()
    assert collector.tokens["x"] == tokens[: first + 1]
    assert (collector.finish["x"].type, collector.finish["x"].matched) == ("stop", stop)
    collector.add("y", prompt(12), max_tokens=20, stop_ids=(stop,), min_tokens=first + 3)
    collector.run()
    assert len(collector.tokens["y"]) >= first + 3
    assert stop not in collector.tokens["y"][: first + 2], "suppressed, not only ignored"


def test_min_tokens_keeps_the_end_away_even_if_it_is_ignored(core: EngineCore) -> None:
    """With ignore_eos an end of sequence does not end the output; before min_tokens it does not show either."""
    eos = core.ready.eos_token_ids[0]
    wants_eos = {"logit_bias": {eos: 100.0}, "ignore_eos": True, "max_tokens": 8}
    collector = Collector(core)
    collector.add("free", prompt(12), **wants_eos)
    collector.add("least", prompt(12), min_tokens=5, **wants_eos)
    collector.run()
    assert collector.tokens["free"] == [eos] * 8
    assert eos not in collector.tokens["least"][:5]
    assert collector.tokens["least"][5:] == [eos] * 3


def test_logprobs_are_of_the_model_and_agree_with_scoring(core: EngineCore) -> None:
    """What decoding says of each token, scoring prompt + output says too."""
    collector = Collector(core)
    collector.add("x", prompt(10), logprobs=5, max_tokens=12)
    tokens = collector.run().tokens["x"]
    collector.add("score", prompt(10) + tokens, max_tokens=0, prompt_logprobs=5)
    collector.run()
    scored = collector.prompt_logprobs["score"]
    assert collector.tokens["score"] == []
    assert scored[0].logprob is None
    assert [entry.token_id for entry in scored] == prompt(10) + tokens
    for decoded, again in zip(collector.logprobs["x"], scored[10:], strict=True):
        assert decoded.logprob == pytest.approx(again.logprob, abs=1e-4)
        assert [i for i, _ in decoded.top] == [i for i, _ in again.top]
        assert decoded.top[0] == (decoded.token_id, decoded.logprob), "greedy takes the likeliest, same float"
        assert sum(math.exp(value) for _, value in decoded.top) < 1.0


def test_prompt_logprobs_do_not_depend_on_chunks(core: EngineCore) -> None:
    """70 tokens take three prefill steps."""
    collector = Collector(core)
    collector.add("long", prompt(70), max_tokens=1, prompt_logprobs=2)
    for i in range(3):
        collector.add(f"other{i}", prompt(20, salt=i), max_tokens=8)
    collector.run()
    whole = collector.prompt_logprobs["long"]
    assert len(whole) == 70
    collector.add("short", prompt(70)[:30], max_tokens=1, prompt_logprobs=2)
    collector.run()
    for a, b in zip(whole[1:30], collector.prompt_logprobs["short"][1:], strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


def test_padded_vocabulary_is_never_sampled(core: EngineCore) -> None:
    tokens = generate(core, {str(i): prompt(5, salt=i) for i in range(20)}, temperature=100.0, max_tokens=30)
    assert max(max(ids) for ids in tokens.values()) < NUM_TOKENS


def test_logit_bias_and_penalties(core: EngineCore) -> None:
    assert set(generate(core, {"x": prompt(9)}, logit_bias={77: 100.0})["x"]) == {77}
    assert 77 not in generate(core, {"x": prompt(9)}, logit_bias={77: -100.0})["x"]
    free = generate(core, {"x": prompt(9)}, max_tokens=40)["x"]
    for penalty in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 2.0}):
        assert len(set(generate(core, {"x": prompt(9)}, max_tokens=40, **penalty)["x"])) > len(set(free))


def test_a_slot_does_not_inherit_its_former_owners_bias(core: EngineCore) -> None:
    free = generate(core, {"x": prompt(9)})["x"]
    for _ in range(10):
        generate(core, {str(i): prompt(9) for i in range(8)}, logit_bias={77: 100.0}, max_tokens=2)
        assert generate(core, {"x": prompt(9)}, logprobs=1)["x"] == free, "tier full, no bias of its own"


def test_aborts_at_any_time_leave_nothing_behind(core: EngineCore) -> None:
    for round_ in range(40):
        collector = Collector(core)
        names = [f"r{i}" for i in range(12)]
        for i, name in enumerate(names):
            collector.add(name, prompt(3 + 7 * i), max_tokens=50)
        for _ in range(round_ % 5):
            collector.step()
        core.abort(names)
        collector.run()


def test_an_id_that_is_in_use_is_refused_and_its_request_goes_on(core: EngineCore) -> None:
    free = generate(core, {"x": prompt(9)})["x"]
    collector = Collector(core)
    collector.add("x", prompt(9))
    collector.step()
    with pytest.raises(InvalidRequestError, match="a request with id 'x' is already running"):
        core.add(GenerationRequest("x", prompt(5), SamplingParams(max_tokens=3, seed=0)))
    collector.run()
    assert collector.tokens["x"] == free
    assert generate(core, {"x": prompt(9)})["x"] == free, "an id that has ended is free again"


def test_a_thousand_aborts_in_a_row(core: EngineCore) -> None:
    collector = Collector(core)
    for i in range(1000):
        collector.add(str(i), prompt(5), max_tokens=10)
    core.abort([str(i) for i in range(1000)])
    collector.run()
    assert core.stats().total.num_waiting == 0


def test_integrity_is_checked_only_if_asked(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise AssertionError("a page is lost")

    monkeypatch.setattr(core._scheduler, "check_integrity", broken)
    assert core.stats().integrity_error is None
    assert core.stats(check_integrity=True).integrity_error == "a page is lost"
    collector = Collector(core)
    collector.add("x", prompt(5), max_tokens=50)
    collector.step()
    assert core.stats(check_integrity=True).integrity_error is None, "something runs"
    monkeypatch.undo()
    collector.run()


def test_flush_is_refused_while_requests_run(core: EngineCore) -> None:
    collector = Collector(core)
    collector.add("x", prompt(5))
    with pytest.raises(Exception, match="no request is running"):
        core.flush_cache()
    collector.run()
    core.flush_cache()
