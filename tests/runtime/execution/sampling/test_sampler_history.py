"""What the sampler remembers of a request: bias, stop ids, penalties, and whose row is written."""

import dataclasses
import warnings

import jax
import numpy as np
import pytest

from palladio.runtime.execution.sampling.sampler import sample
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from tests.runtime.execution.sampling.sampler_oracle import V, jit_sample, make_batch, random_logits, state_with


def test_logit_bias_of_100_forces_and_bans():
    logits = random_logits(2, scale=1.0)
    best = int(logits[1].argmax())
    state = state_with(1, bias={33: 100.0})
    banned = state_with(2, bias={best: -100.0})
    state = dataclasses.replace(
        state,
        bias_ids=state.bias_ids.at[2].set(banned.bias_ids[2]),
        bias_values=state.bias_values.at[2].set(banned.bias_values[2]),
    )
    for temperature in (0.0, 1.0):
        batch = make_batch({"slot_ids": 1}, {"slot_ids": 2}, has_bias=True, temperature=temperature)
        token_ids = jit_sample(logits, state, batch, tier="full")[0].token_ids
        assert token_ids[0] == 33
        assert token_ids[1] != best
    unbiased = make_batch({"slot_ids": 1}, {"slot_ids": 2}, temperature=0.0)
    assert jit_sample(logits, state, unbiased, tier="full")[0].token_ids[1] == best


def test_min_tokens_lasts_until_its_position():
    logits = random_logits(1)
    best = int(logits.argmax())
    state = state_with(1, stop_ids=[best], bias={best: 100.0})
    for position, ends in ((7, False), (9, False), (10, True)):
        batch = make_batch(
            {"positions": position, "min_position": 10, "temperature": 0.0, "has_bias": True}, slot_ids=1
        )
        assert (jit_sample(logits, state, batch, tier="full")[0].token_ids[0] == best) == ends


def test_frequency_penalty_counts_what_was_sampled():
    logits = np.zeros((2, V), np.float32)
    logits[:, 5], logits[:, 8] = 3.0, 2.0
    state = SamplerState.allocate(3, V)
    batch = make_batch({"slot_ids": 1, "frequency_penalty": 0.4}, {"slot_ids": 2}, temperature=0.0)
    tokens = []
    for _ in range(7):
        output, state = jit_sample(logits, state, batch, tier="full")
        tokens.append(output.token_ids.tolist())
    # 3, 2.6, 2.2, then 1.8 < 2, then 1.8 > 1.6, ...
    assert [t[0] for t in tokens] == [5, 5, 5, 8, 5, 8, 5]
    assert {t[1] for t in tokens} == {5}
    assert state.output_counts[1, 5] == 5
    assert state.output_counts[1, 8] == 2
    assert state.output_counts[2].sum() == 7
    assert state.last_token[1:].tolist() == [5, 5]


def test_presence_and_repetition_look_at_output_and_prompt():
    logits = np.zeros((1, V), np.float32)
    logits[:, 5], logits[:, 8] = 3.0, 2.9
    greedy = {"slot_ids": 1, "temperature": 0.0}
    in_prompt, in_output = state_with(1, prompt=[5]), state_with(1, output=[5])
    for params, state, token in (
        ({"presence_penalty": 0.2}, in_prompt, 5),
        ({"presence_penalty": 0.2}, in_output, 8),
        ({"frequency_penalty": 0.2}, in_prompt, 5),
        ({"repetition_penalty": 1.1}, in_prompt, 8),
        ({"repetition_penalty": 1.1}, in_output, 8),
    ):
        assert jit_sample(logits, state, make_batch(greedy | params), tier="full")[0].token_ids[0] == token


def test_cheap_tiers_report_no_logprobs_and_count_nothing():
    for tier in ("greedy", "random"):
        output, state = jit_sample(random_logits(2), SamplerState.allocate(3, V), make_batch({}, {}), tier=tier)
        assert output.logprobs is output.top_ids is output.top_logprobs is None
        assert not state.output_counts.any()


@pytest.mark.parametrize("tier", ["greedy", pytest.param("random", marks=pytest.mark.slow), "full"])
def test_scratch_rows_touch_only_row_zero(tier):
    state = state_with(1, output=[4, 4], num_slots=3)
    batch = make_batch({"slot_ids": 0}, {"slot_ids": 2}, {"slot_ids": 0}, {"slot_ids": 0})
    _, after = jit_sample(random_logits(4), state, batch, tier=tier)
    np.testing.assert_array_equal(after.output_counts[1], state.output_counts[1])
    assert after.last_token[1] == state.last_token[1]


@pytest.mark.parametrize("tier", ["greedy", pytest.param("random", marks=pytest.mark.slow), "full"])
def test_donation_updates_in_place(tier):
    run = jax.jit(sample, static_argnames="tier", donate_argnames="state")
    state = SamplerState.allocate(65, V)
    logits, batch = random_logits(2), make_batch({"slot_ids": 1}, {"slot_ids": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = run.lower(logits, state, batch, tier=tier).compile()
        before = state.output_counts.unsafe_buffer_pointer()
        _, after = compiled(logits, state, batch)
    assert state.output_counts.is_deleted()
    assert after.output_counts.unsafe_buffer_pointer() == before
    assert not any(" copy(" in line and "s32[65,300]" in line for line in compiled.as_text().splitlines())
