"""Which decode steps give a request several tokens, and as how many outputs these are told."""

from typing import Any

import pytest

from palladio.runtime.interface.outputs.token_output import FinishReason, PlainTokens, TokenOutput, one_by_one
from tests.runtime.scheduling.scheduler_sim import SMALL, Simulation


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("mixes", [False, True])
def test_steps_of_few_requests_give_several_tokens_unless_somebody_waits_for_a_step(mixes: bool, lag: int) -> None:
    prompts = {"a": ([1, 2], 70), "b": ([3, 5], 60), "long": (list(range(40, 73)), 9)}
    outputs = []
    for passes in (1, 4):
        sim = Simulation(num_pages=60, joined_passes=passes, mixes=mixes, lag=lag, max_step_tokens=8)
        sim.add("a", *prompts["a"], ignore_eos=True)
        sim.add("b", *prompts["b"], ignore_eos=True)
        for _ in range(5):
            sim.step()
        before = len(sim.batches)
        sim.add("long", *prompts["long"], ignore_eos=True)
        sim.run()
        outputs.append(sim.outputs)
        largest = [batch.num_passes for batch in sim.batches]
        assert max(largest[:before]) == max(largest[before:]) == passes
        prefills = [number for number, batch in enumerate(sim.batches) if batch.chunks and number >= before]
        assert len(prefills) > 4
        assert largest[before : prefills[-1]] == [1] * (prefills[-1] - before)
        assert all(len(batch.decodes) <= SMALL for batch in sim.batches if batch.num_passes > 1)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("needs", [{"logprobs": 0}, {"frequency_penalty": 0.5}, {"min_tokens": 3}, {"grammar": True}])
def test_a_request_that_needs_the_host_or_the_whole_sampler_has_a_token_a_step(needs: dict[str, Any]) -> None:
    """And so has who runs beside it."""
    sim = Simulation(num_pages=60, joined_passes=4)
    params = {name: value for name, value in needs.items() if name != "grammar"}
    sim.add("plain", [1, 2], 30, ignore_eos=True)
    sim.add("other", [3, 5], 12, is_constrained="grammar" in needs, **params)
    sim.run()
    together = [batch for batch in sim.batches if batch.num_decodes == 2]
    assert together
    assert {batch.num_passes for batch in together} == {1}
    several = [batch for batch in sim.batches if batch.num_passes > 1]
    assert several
    assert all([request.given.request_id for request in batch.requests] == ["plain"] for batch in several)


def test_tokens_are_told_one_by_one() -> None:
    end = TokenOutput("c", [7, 8, 9], finish=FinishReason("length"))
    told = one_by_one([PlainTokens.of(["a", "b"], [[1, 2, 3], [4]]), end, TokenOutput("d", [])])
    plain = [(["a", "b"], [[1], [4]]), (["a"], [[2]]), (["a"], [[3]]), (["c"], [[7]]), (["c"], [[8]])]
    assert told[:5] == [PlainTokens.of(*each) for each in plain]
    assert told[5:] == [TokenOutput("c", [9], finish=FinishReason("length")), TokenOutput("d", [])]
