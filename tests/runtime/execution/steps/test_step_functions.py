"""How many forward passes a decode program makes."""

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.runtime.execution.batch.batch_builder import NUM_COLUMNS, SLOT, ForwardLayout
from palladio.runtime.execution.sampling.sampler import SamplerTarget
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from palladio.runtime.execution.steps.step_functions import decode_steps

VOCAB, PAGE = 8, 4


def counting_model(batch, kv_cache):
    """Its cache counts the passes, and the rows that each of them computes."""
    passes, rows = kv_cache
    return batch.token_ids[:, None].astype(jnp.float32), (passes + 1, rows.at[passes].set((batch.slots > 0).sum()))


def next_of(hidden):
    """Logits whose largest is the token after the one that was computed."""
    return jnp.where(jnp.arange(VOCAB) == (hidden.astype(jnp.int32) + 1) % VOCAB, 1.0, 0.0)


@pytest.mark.parametrize(
    ("tokens", "num_passes", "rows"),
    [((1, 1), 1, [2]), ((2, 1), 2, [2, 1]), ((4, 3), 4, [2, 2, 2, 1]), ((1, 4), 4, [2, 1, 1, 1]), ((7, 6), 4, [2] * 4)],
)
def test_a_joined_program_makes_as_many_passes_as_the_row_with_most_tokens_needs(tokens, num_passes, rows):
    layout = ForwardLayout.decode(4, PAGE, max_passes=4)
    lengths = np.array([0, 5, 0, 9, 0], np.int32)
    slots = np.array([3, 1, 0, 0])  # two rows are padding
    packed, columns = np.zeros(layout.size, np.int32), np.zeros((4, NUM_COLUMNS), np.int32)
    counts, slot_ids, _, ends, *_ = layout.sections
    packed[counts] = 2, 2
    packed[slot_ids] = columns[:, SLOT] = slots
    packed[ends][:2] = lengths[slots[:2]] + tokens
    sampler = SamplerState.allocate(5, VOCAB)
    sampler = sampler.with_last_token(jnp.asarray([0, 2, 0, 5, 0], jnp.int32))
    cache = jnp.int32(0), jnp.zeros(8, jnp.int32)
    state = cache, jnp.zeros((5, 4), jnp.int32), jnp.asarray(lengths), sampler
    step = {"layout": layout, "page_size": PAGE, "tier": "greedy", "target": SamplerTarget()}
    new, output = decode_steps(counting_model, state, jnp.asarray(packed), jnp.asarray(columns), next_of, **step)
    made, computed = new[0]
    assert (int(made), computed[:num_passes].tolist()) == (num_passes, rows)
    given = [min(count, 4) for count in tokens]
    assert output.counts[:2].tolist() == given  # the others are padding
    assert new[2].tolist()[1::2] == [5 + given[1], 9 + given[0]]
    for row, first in enumerate((5, 2)):
        assert output.token_ids[: given[row], row].tolist() == [(first + 1 + n) % VOCAB for n in range(given[row])]
    assert output.is_finite.all()
