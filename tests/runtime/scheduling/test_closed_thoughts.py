"""An output that would end inside a thought goes on with the mark that closes the thought, in every mode of the
scheduler, on a simulated device. No mask is simulated, so the answer may end at once."""

from typing import Any

import pytest

from palladio.runtime.interface.request.grammar_spec import ThoughtClosing
from palladio.runtime.scheduling.state.request import Request
from tests.runtime.scheduling.scheduler_sim import Simulation
from tests.runtime.scheduling.simulated_model import EOS, next_token

CLOSE = 150  # no token of the simulated model
CLOSING = ThoughtClosing((CLOSE,), True, (), (((CLOSE,), False),))
PROMPTS = {f"r{n}": ([10 + 7 * n + i for i in range(n + 3)], 40) for n in range(1, 10)}
ENDING = {"r3", "r4", "r5", "r8", "r9"}  # those in which an end of sequence comes within 40 tokens


def expected(prompt: list[int], max_tokens: int) -> list[int]:
    tokens = list(prompt)
    for number in range(max_tokens):
        token = next_token(tokens)
        if token == EOS and CLOSE not in tokens and number + 1 < max_tokens:
            token = CLOSE
        tokens.append(token)
        if token == EOS:
            break
    return tokens[len(prompt) :]


def run(sim: Simulation) -> set[Request]:
    """Run to the end; return the requests whose thought was closed."""
    requests = set(sim.scheduler.waiting)
    num_closed = 0
    while sim.step():
        closed = {request for request in requests if request.closed is not None}
        if len(closed) > num_closed:  # they have lost their pages, for no want of memory
            sim.progress.begin()
            num_closed = len(closed)
    assert not sim.scheduler.has_requests
    sim.scheduler.check_integrity()
    return closed


@pytest.mark.parametrize(
    "mode",
    [
        {},
        {"lag": 0},
        {"mixes": True},
        {"num_decode_steps": 3},
        {"joined_passes": 3, "max_running": 2},
        {"num_drafts": 3},
        {"num_drafts": 1, "lag": 0, "page_size": 1},
        {"windows": ((4, 1),)},
        {"windows": ((7, 2),), "keeps_all": False},
        {"num_snapshots": 5},
        {"num_snapshots": 5, "num_decode_steps": 3, "page_size": 2},
        {"shares_prefixes": False},
        {"num_pages": 14},
        {"policy": "priority"},
    ],
    ids=str,
)
def test_the_mark_comes_in_the_place_of_the_end(mode: dict[str, Any]) -> None:
    sim = Simulation(**{"num_pages": 60, **mode})
    for name, (prompt, max_tokens) in PROMPTS.items():
        sim.add(name, prompt, max_tokens, closing=CLOSING)
    closed = run(sim)
    assert {request.given.request_id for request in closed} == ENDING
    for name, (prompt, max_tokens) in PROMPTS.items():
        assert sim.outputs[name] == expected(prompt, max_tokens), name
        assert sim.finished[name].closed == ("eos" if name in ENDING else None)
        assert sim.finished[name].num_retractions >= (name in ENDING)
    assert sim.cache.num_used_tokens == 0


def test_an_end_after_the_thought_ends_the_output() -> None:
    prompt, max_tokens = PROMPTS["r9"]
    before = expected(prompt, max_tokens)
    begun = [*prompt, *before[: before.index(CLOSE)]]
    outside = ThoughtClosing((CLOSE,), False, (), (((CLOSE,), False),))
    for closing, tokens in ((CLOSING, [CLOSE]), (outside, [EOS]), (None, [EOS])):
        sim = Simulation()
        sim.add("a", begun, 30, closing=closing)
        closed = run(sim)
        assert sim.outputs["a"][:1] == tokens
        assert bool(closed) == (tokens == [CLOSE])


def test_where_there_is_no_room_for_an_answer_the_output_ends() -> None:
    prompt, _ = PROMPTS["r9"]
    place = expected(prompt, 40).index(CLOSE)
    for max_tokens, closes in ((place + 1, False), (place + 2, True)):
        sim = Simulation()
        sim.add("a", prompt, max_tokens, closing=CLOSING)
        assert bool(run(sim)) == closes
        assert sim.outputs["a"] == expected(prompt, max_tokens)


def test_what_the_request_itself_ends_at_ends_a_thought() -> None:
    prompt, max_tokens = PROMPTS["r9"]
    for params in ({"stop_token_ids": (EOS,)}, {"allowed_token_ids": (EOS, 5)}):
        sim = Simulation()
        sim.add("a", prompt, max_tokens, closing=CLOSING, **params)
        assert not run(sim)
        assert sim.outputs["a"][-1] == EOS
    sim = Simulation()
    sim.add("a", prompt, max_tokens, closing=CLOSING, ignore_eos=True)
    assert not run(sim)
    assert sim.finished["a"].finish is not None
    assert sim.finished["a"].finish.type == "length"
