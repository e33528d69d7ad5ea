"""What a token means for a request that decodes: the short way of most tokens, and when it is not taken."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from palladio.runtime.grammar.constraint import Constraint
from palladio.runtime.interface.outputs.request_trace import DecodeSteps
from palladio.runtime.interface.request.generation_request import GenerationRequest, RequestOptions
from palladio.runtime.interface.request.sampling_params import SamplingParams
from palladio.runtime.scheduling.policy.kv_budget import NewTokenRatio
from palladio.runtime.scheduling.state.new_tokens import take_tokens
from palladio.runtime.scheduling.state.request import Request, RequestStatus
from palladio.runtime.scheduling.state.running import RunningRequests
from tests.runtime.scheduling.scheduler_sim import Simulation
from tests.runtime.scheduling.simulated_model import EOS, ScriptedConstraint


def decoding(**params: Any) -> Request:
    """It has one of four tokens, and a dispatched step samples the next one."""
    params = {"max_tokens": 4, "seed": 0, **params}
    options = RequestOptions(timeline=params.pop("timeline", False))
    stop_ids = params.pop("stop_ids", [EOS])
    request = Request.of(GenerationRequest("a", [1, 2, 3], SamplingParams(**params), stop_ids, 0.0, options))
    request.status = RequestStatus.RUNNING
    RunningRequests(2, page_size=4).add(request)
    request.first_token, request.decode_mark = 1.0, DecodeSteps()
    request.append_token(4)
    request.note_taken()
    request.note_unread(1)
    return request


def takes(request: Request, tokens: list[int], count: int | None = None, *, alone: bool = False) -> bool:
    """Whether the columns take the tokens of its row. Args: count: how many are its own."""
    columns = request.columns or RunningRequests(2, page_size=4).columns
    counts = None if count is None else np.array([count])
    slots = np.array([request.slot or 1])
    return bool(columns.take_tokens(slots, np.array([tokens], np.int32), counts, [0] * alone)[0])


def test_a_token_from_which_nothing_follows_is_taken_at_once():
    request = decoding()
    assert takes(request, [5])
    assert (request.token_ids, request.num_unread) == ([1, 2, 3, 4, 5], 0)


def test_so_are_several_and_those_behind_them_are_not_its_own():
    for count, expected in ((0, []), (2, [5, 6])):
        request = decoding(max_tokens=9)
        assert takes(request, [5, 6, EOS], count)
        assert (request.num_known_tokens, request.num_unread) == (4 + count, 0)
        assert request.token_ids == [1, 2, 3, 4, *expected]


def read_last(request: Request) -> None:
    request.append_token(5)
    request.append_token(6)


def constrain(request: Request) -> None:
    constraint: Constraint = ScriptedConstraint()  # type: ignore[assignment]
    request.constraint = constraint
    request.note_taken()


def forget_decoding(request: Request) -> None:
    request.decode_mark = None
    request.note_taken()


SPECIAL: dict[str, Callable[[Request], None]] = {
    "its first, or the first since it was retracted": forget_decoding,
    "retracted": Request.leave_slot,
    "its last": read_last,
    "of a grammar": constrain,
    "of a step before others were forced": Request.void,
}


@pytest.mark.parametrize("change", SPECIAL.values(), ids=SPECIAL)
def test_a_token_from_which_something_follows_is_not(change):
    request = decoding()
    change(request)
    before, num_unread = copy.copy(request.token_ids), request.num_unread
    assert not takes(request, [5])
    assert (request.token_ids, request.num_unread) == (before, num_unread)


@pytest.mark.parametrize("asked", [{"logprobs": 0}, {"timeline": True}, {"stop_ids": range(100, 109)}], ids=str)
def test_nor_is_one_of_a_request_that_is_told_more_than_tokens_or_has_many_stop_ids(asked):
    request = decoding(**asked)
    assert not takes(request, [5])
    assert request.token_ids == [1, 2, 3, 4]


def test_neither_are_an_end_and_one_that_means_nothing():
    request = decoding(max_tokens=9)
    assert not takes(request, [EOS])
    assert not takes(request, [5, EOS], 2)
    assert not takes(request, [5], alone=True)
    assert (request.token_ids, request.num_unread) == ([1, 2, 3, 4], 1)


def test_a_token_may_be_taken_at_once_just_as_long_as_the_long_way_ends_nothing():
    short, long = decoding(), decoding()
    for token in (5, 6, 7):
        short.note_unread(1)
        taken = takes(short, [token])
        assert taken == (take_tokens(long, long.output([token]), lambda _request, _count: False) is None)
    assert short.token_ids == [1, 2, 3, 4, 5, 6]


def test_tokens_that_only_the_columns_have_are_never_more_than_they_hold():
    request = decoding(max_tokens=2000, stop_ids=[])
    expected = list(request.token_ids)
    for token in range(1000):
        request.note_unread(1)
        if not takes(request, [token]):
            take_tokens(request, request.output([token]), lambda _request, _count: False)
            request.note_unread(-1)
            request.note_taken()
        expected.append(token)
        assert request.num_known_tokens == len(expected)
    assert request.token_ids == expected


def test_rows_of_the_same_requests_are_taken_as_those_of_others_are():
    """Reading the rows of the same requests again is shorter, where nothing follows from any of their tokens."""
    running, rng = RunningRequests(3, page_size=4), np.random.default_rng(0)
    for name, stop_ids, limit in (("a", [EOS], 500), ("b", [], 90), ("c", [EOS, 77], 300)):
        request = Request.of(
            GenerationRequest(name, [1, 2, 3], SamplingParams(max_tokens=limit, seed=0), stop_ids, 0.0)
        )
        request.status = RequestStatus.RUNNING
        running.add(request)
        request.first_token, request.decode_mark = 1.0, DecodeSteps()
        request.note_taken()
    expected, columns, slots = [[1, 2, 3] for _ in running], running.columns, running.slots
    num_short = 0
    for step in range(400):
        tokens = rng.integers(3, 400, 3).astype(np.int32)
        columns.add_unread(slots, 1)
        alone = [1] if step % 50 == 20 else []
        if not alone and running.steady.take(tokens):
            num_short, taken = num_short + 1, [True] * 3
        else:
            taken = columns.take_tokens(slots, tokens[:, None], None, alone).tolist()
        for place, (request, token) in enumerate(zip(running, tokens.tolist(), strict=True)):
            expected[place].append(token)
            ends = token in request.given.stop_token_ids or len(expected[place]) >= 3 + request.max_tokens
            assert not (taken[place] and (ends or place in alone))
            assert taken[place] or ends or place in alone or len(expected[place]) > columns.plain_until[slots[place]]
            if not taken[place]:
                request.append_token(token)
                request.note_unread(-1)
                request.note_taken()
            assert request.num_known_tokens == len(expected[place])
        if step % 37 == 0:
            assert [request.token_ids for request in running] == expected
    assert [request.token_ids for request in running] == expected
    assert running.steady.request_ids == ["a", "b", "c"]
    assert num_short > 50, "until one of them is complete"


def test_who_loses_its_slot_keeps_its_tokens_and_what_is_unread_of_it():
    request = decoding()
    assert takes(request, [5])
    request.note_unread(2)
    request.leave_slot()
    assert (request.token_ids, request.num_known_tokens, request.num_unread) == ([1, 2, 3, 4, 5], 5, 2)
    request.void()
    running = RunningRequests(1, page_size=4)
    running.add(request)
    assert (request.token_ids, request.num_computed, request.num_unread, request.revision) == ([1, 2, 3, 4, 5], 0, 0, 1)


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
    monkeypatch.setattr(Request, "plain_until", 0)
    assert outputs() == short
