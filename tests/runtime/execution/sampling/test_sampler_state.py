"""reset_slot: a request's history enters the sampler's state chunk by chunk."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.runtime.execution.programs.step_programs import slot_rules
from palladio.runtime.execution.sampling.sampler_state import MAX_SUPPRESSED_IDS, SamplerState, SlotTokens, reset_slot
from palladio.runtime.interface.request.sampling_params import MAX_LOGIT_BIAS, MAX_LOGPROB_IDS

V, L = 50, 8
jit_reset = jax.jit(reset_slot, donate_argnames="state")


def rules(bias=(), stop_ids=(), asked_ids=()):
    return slot_rules(dict(bias), stop_ids, asked_ids, V)


def fill(state, slot, prompt, output, slot_rules):
    tokens = [*prompt, *output]
    for start in range(0, max(len(tokens), 1), L):
        part = tokens[start : start + L]
        padding = [7] * (L - len(part))  # a real id, to show that padding is ignored
        state = jit_reset(
            state,
            jnp.int32(slot),
            SlotTokens(
                jnp.array(part + padding, jnp.int32),
                jnp.arange(start, start + L) < len(prompt),
                jnp.int32(len(part)),
                jnp.array(start == 0),
            ),
            slot_rules,
        )
    return state


@pytest.mark.parametrize("num_prompt", [0, 1, 7, 8, 9, 16, 30])
@pytest.mark.parametrize("num_output", [0, 1, 8, 21])
def test_chunks_add_up_and_clear_what_was_there(num_prompt, num_output):
    rng = np.random.default_rng(num_prompt)
    prompt, output = rng.integers(8, V, num_prompt).tolist(), rng.integers(8, 14, num_output).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = fill(
            SamplerState.allocate(4, V), 2, [1, 2, 3], [4, 4], rules({3: 1.0}, [9], [1, 2, 3])
        )  # a former owner
        state = fill(state, 3, [5], [6, 6], rules({8: 2.0}))
        state = fill(state, 2, prompt, output, rules({11: -4.0, 0: 2.0}, [1, 49], [13, 12]))
    np.testing.assert_array_equal(np.flatnonzero(state.prompt_mask[2]), sorted(set(prompt)))
    np.testing.assert_array_equal(state.output_counts[2], np.bincount(np.array(output, int), minlength=V))
    assert state.bias_ids[2, :3].tolist() == [11, 0, V]
    assert state.bias_values[2, :3].tolist() == [-4.0, 2.0, 0.0]
    assert state.stop_ids[2, :3].tolist() == [1, 49, V]
    assert state.asked_ids[2, :3].tolist() == [13, 12, 0]
    # the neighbours
    assert np.flatnonzero(state.prompt_mask[3]).tolist() == [5]
    assert state.output_counts[3, 6] == 2
    assert state.output_counts[3].sum() == 2
    assert state.bias_ids[3, 0] == 8
    assert not state.prompt_mask[:2].any()
    assert not state.output_counts[:2].any()


def test_reset_works_in_place():
    state = SamplerState.allocate(4, V)
    before = state.output_counts.unsafe_buffer_pointer()
    after = fill(state, 1, [1], [2], rules())
    assert state.output_counts.is_deleted()
    assert after.output_counts.unsafe_buffer_pointer() == before


def test_empty_rows_bias_and_suppress_nothing():
    state = SamplerState.allocate(3, V)
    assert (state.bias_ids == V).all()
    assert (state.stop_ids == V).all()
    assert state.bias_ids.shape == (3, MAX_LOGIT_BIAS)


def test_rules_that_fill_their_rows_fit_and_more_are_refused():
    full = slot_rules(
        dict.fromkeys(range(MAX_LOGIT_BIAS), 1.0), range(MAX_SUPPRESSED_IDS), range(MAX_LOGPROB_IDS), 1000
    )
    assert full.bias_ids[-1] == MAX_LOGIT_BIAS - 1
    assert full.stop_ids[-1] == MAX_SUPPRESSED_IDS - 1
    assert full.asked_ids[-1] == MAX_LOGPROB_IDS - 1
    with pytest.raises(ValueError, match="at most"):
        slot_rules(dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0), [], [], 1000)
    with pytest.raises(ValueError, match="at most"):
        slot_rules({}, range(MAX_SUPPRESSED_IDS + 1), [], 1000)
