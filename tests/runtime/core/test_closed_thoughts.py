"""Thoughts that end the output, on real programs: the mark that closes them comes in the place of the end, an answer
follows, and the tokens are the same whatever else runs."""

from pathlib import Path
from typing import Any

import pytest

from palladio.runtime.core import engine_core
from palladio.runtime.interface.request.generation_request import RequestOptions
from palladio.runtime.interface.request.grammar_spec import Thinking, ThoughtClosing
from palladio.runtime.text.tokenizers.tokenizer import Tokenizer
from tests.runtime.core.constrained import EOS, FRANCE, run
from tests.runtime.tiny_engine import Collector, TinyEngine, random_prompt

SMALL_POOL = {"max_total_tokens": 200, "schedule_conservativeness": 0.0}
SEED = 3


@pytest.fixture(scope="module")
def marks(tiny_dir: Path) -> tuple[int, int]:
    tokenizer = Tokenizer.load(tiny_dir)
    start, end = (tokenizer.encode(tag)[0] for tag in ("<think>", "</think>"))
    return start, end


@pytest.fixture(scope="module")
def closing(marks: tuple[int, int]) -> ThoughtClosing:
    start, end = marks
    return ThoughtClosing((end,), True, (start,), (((end,), False),))


def mixed(closing: ThoughtClosing | None, end: int) -> dict[str, dict[str, Any]]:
    """Outputs that soon end, of several kinds, beside some that do not."""
    common = {"temperature": 1.0, "stop_ids": (EOS,), "max_tokens": 60, "closing": closing}
    soon = {EOS: 4.0}  # of 400 tokens, which are much alike: every eighth one
    budget = Thinking((), (end,), begun=True, budget=5)
    return {
        "drawn": {"prompt": random_prompt(9), "seed": SEED, "logit_bias": soon, **common},
        "greedy": {"prompt": random_prompt(5), "stop_ids": (EOS,), "logit_bias": {EOS: 90.0}, "closing": closing},
        "scored": {"prompt": random_prompt(7), "seed": 2, "logprobs": 2, "logit_bias": soon, **common},
        "penalized": {"prompt": random_prompt(20), "seed": 5, "presence_penalty": 1.5, "logit_bias": soon, **common},
        "late": {"prompt": random_prompt(90), "seed": 6, "min_tokens": 12, "logit_bias": {EOS: 30.0}, **common},
        "grammar": {"prompt": random_prompt(12), "grammar": FRANCE, "seed": 7, "logit_bias": soon, **common}
        | {"thinking": Thinking((), (end,), begun=True)},
        "budget": {"prompt": random_prompt(30), "seed": 8, "thinking": budget, **common, "max_tokens": 20},
        "whole": {"prompt": random_prompt(11), "prompt_logprobs": 0, "seed": 9, "logit_bias": soon, **common},
        "plain": {"prompt": random_prompt(40), "max_tokens": 30},
    }


@pytest.fixture(scope="module")
def alone(tiny: TinyEngine, closing: ThoughtClosing, marks: tuple[int, int]) -> dict[str, list[int]]:
    """Each request by itself."""
    requests = mixed(closing, marks[1])
    return {name: run(tiny, {name: request}).tokens[name] for name, request in requests.items()}


def test_a_thought_is_closed_where_the_output_would_end(
    tiny: TinyEngine, alone: dict[str, list[int]], marks: tuple[int, int], tiny_dir: Path
) -> None:
    """Up to there nothing is different."""
    end = marks[1]
    as_is = run(tiny, mixed(None, end))
    for name in ("drawn", "greedy", "scored", "penalized", "late", "whole"):
        thought = as_is.tokens[name][:-1]
        assert as_is.tokens[name][-1] == EOS
        assert end not in thought
        assert alone[name][: len(thought) + 1] == [*thought, end], name
        assert alone[name][len(thought) + 1] != EOS
        assert len(alone[name]) > len(thought) + 2
    assert alone["greedy"][0] == end
    assert alone["greedy"][2] == EOS, "an answer is as long as the model wants"
    assert len(as_is.tokens["late"]) == 13
    thought = alone["grammar"][: alone["grammar"].index(end)]
    assert as_is.tokens["grammar"] != alone["grammar"], "there it thinks on"
    assert EOS not in thought
    text = Tokenizer.load(tiny_dir).decode(alone["grammar"][len(thought) + 1 :])
    assert text.startswith("the capital of ")


@pytest.mark.parametrize(
    "flags",
    [{}, {"disable_overlap_schedule": True}, {"enable_mixed_chunk": True}, {"disable_radix_cache": True}, SMALL_POOL],
    ids=str,
)
def test_together(
    tiny: TinyEngine,
    alone: dict[str, list[int]],
    closing: ThoughtClosing,
    marks: tuple[int, int],
    flags: dict[str, Any],
) -> None:
    collector = run(tiny, mixed(closing, marks[1]), **flags)
    assert collector.tokens == alone
    assert collector.closed == dict.fromkeys(alone, "eos") | {"budget": "budget", "plain": None}
    for name, count in collector.num_retractions.items():
        assert count >= (collector.closed[name] == "eos")
    assert [entry.token_id for entry in collector.logprobs["scored"]] == alone["scored"]
    assert len(collector.prompt_logprobs["whole"]) == 11


@pytest.mark.parametrize("several", ["drafting", pytest.param("three_steps", marks=pytest.mark.slow)], indirect=True)
def test_several_tokens_a_step(
    several: TinyEngine, alone: dict[str, list[int]], closing: ThoughtClosing, marks: tuple[int, int]
) -> None:
    assert run(several, mixed(closing, marks[1])).tokens == alone


def test_no_mask_is_made_before_an_output_would_end(
    tiny: TinyEngine, closing: ThoughtClosing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thoughts run ahead of the host, like all else."""

    def never(*args: object) -> None:
        raise AssertionError("a mask was made")

    monkeypatch.setattr(engine_core, "build_masks", never)
    collector = run(tiny, {"a": {"prompt": random_prompt(6), "closing": closing, "stop_ids": (EOS,)}})
    assert len(collector.tokens["a"]) == 16


def test_an_answer_runs_ahead_of_the_host_again(tiny: TinyEngine, closing: ThoughtClosing) -> None:
    core = tiny.core()
    collector = Collector(core)
    request = {"logit_bias": {EOS: 90.0}, "min_tokens": 4, "max_tokens": 12, "stop_ids": (EOS,)}
    collector.add("a", random_prompt(6), closing=closing, **request)
    seen = []
    while "a" not in collector.finish:
        collector.step()
        running = core._scheduler.schedulers[0].running
        seen += [(request.closed, request.constraint is None) for request in running]
    assert seen[0] == (None, True)
    assert ("eos", False) in seen
    assert seen[-1] == ("eos", True)
    assert core.stats(check_integrity=True).integrity_error is None


@pytest.mark.parametrize("flags", [{}, {"disable_overlap_schedule": True}], ids=str)
def test_a_timeline_tells_of_it(tiny: TinyEngine, closing: ThoughtClosing, flags: dict[str, Any]) -> None:
    request = {"logit_bias": {EOS: 90.0}, "min_tokens": 4, "max_tokens": 12, "stop_ids": (EOS,), "closing": closing}
    request |= {"prompt": random_prompt(6), "options": RequestOptions(timeline=True)}
    collector = run(tiny, {"a": request}, **flags)
    records = list(collector.timelines["a"])
    assert sum(record.new_tokens for record in records) == len(collector.tokens["a"])
    kinds = [record.kind for record in records]
    assert kinds.count("retracted") == 1
    assert "prefill" in kinds[: kinds.index("retracted")]
    assert kinds[kinds.index("retracted") :].count("prefill") == 1
