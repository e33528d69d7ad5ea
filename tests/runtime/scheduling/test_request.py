"""What a token means for a request that decodes: the short way of most tokens, and when it is not taken."""

import copy
from collections.abc import Callable

import pytest

from palladio.runtime.grammar.constraint import Constraint
from palladio.runtime.interface.generation_request import GenerationRequest, SamplingParams
from palladio.runtime.interface.outputs import DecodeSteps
from palladio.runtime.scheduling.kv_budget import NewTokenRatio
from palladio.runtime.scheduling.request import NOT_FINITE, Request, RequestStatus, take_tokens
from tests.runtime.scheduling.scheduler_sim import Simulation
from tests.runtime.scheduling.simulated_model import EOS, ScriptedConstraint


def decoding() -> Request:
    """It has one of four tokens, and a dispatched step samples the next one."""
    given = GenerationRequest("a", [1, 2, 3], SamplingParams(max_tokens=4, seed=0), [EOS], 0.0)
    request = Request.of(given)
    request.status, request.slot = RequestStatus.RUNNING, 1
    request.first_token, request.decode_mark = 1.0, DecodeSteps()
    request.token_ids.append(4)
    request.num_unread = 1
    return request


def test_a_token_from_which_nothing_follows_is_taken_at_once():
    request = decoding()
    output = request.output([5])
    assert request.take_token(output)
    assert (request.token_ids, request.num_unread, output) == ([1, 2, 3, 4, 5], 0, request.output([5]))


def read_last(request: Request) -> None:
    request.token_ids += [5, 6]


def constrain(request: Request) -> None:
    constraint: Constraint = ScriptedConstraint()  # type: ignore[assignment]
    request.constraint = constraint


SPECIAL: dict[str, Callable[[Request], None]] = {
    "its first, or the first since it was retracted": lambda request: setattr(request, "decode_mark", None),
    "retracted": lambda request: setattr(request, "slot", 0),
    "its last": read_last,
    "of a grammar": constrain,
}


@pytest.mark.parametrize("change", SPECIAL.values(), ids=SPECIAL)
def test_a_token_from_which_something_follows_is_not(change):
    request = decoding()
    change(request)
    before = copy.copy(request.token_ids)
    assert not request.take_token(request.output([5]))
    assert (request.token_ids, request.num_unread) == (before, 1)


def test_neither_are_several_tokens_an_end_and_one_that_means_nothing():
    request = decoding()
    outputs = [request.output([]), request.output([5, 6]), request.output([EOS]), request.output([5], NOT_FINITE)]
    assert [request.take_token(output) for output in outputs] == [False] * 4
    assert (request.token_ids, request.num_unread) == ([1, 2, 3, 4], 1)


def test_a_token_may_be_taken_at_once_just_as_long_as_the_long_way_ends_nothing():
    short, long = decoding(), decoding()
    for token in (5, 6, 7):
        short.num_unread = long.num_unread = 1
        taken = short.take_token(short.output([token]))
        assert taken == (take_tokens(long, long.output([token]), lambda _request, _count: False) is None)
    assert short.token_ids == [1, 2, 3, 4, 5, 6]


def test_both_ways_give_the_same_outputs(monkeypatch):
    def outputs() -> dict[str, list[int]]:
        sim = Simulation(num_pages=12, max_running=4)
        sim.scheduler.kv_budget.ratio = NewTokenRatio(0.0)  # admits as if no request made output: some are retracted
        for number in range(6):
            sim.add(str(number), [20 + number] * (3 + number), 5 * number + 1, min_tokens=number % 2)
        sim.run()
        assert any(output.num_retractions for output in sim.finished.values())
        return {name: (tokens, sim.finished[name].finish) for name, tokens in sim.outputs.items()}  # type: ignore[misc]

    short = outputs()
    monkeypatch.setattr(Request, "take_token", lambda _request, _output: False)
    assert outputs() == short
