"""How chunks are cut into blocks of queries: every token once, in windows that begin where copies can."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.ragged_paged_attention.inputs.plan import plan_blocks


@pytest.mark.parametrize("align", [1, 16])
@pytest.mark.parametrize(
    ("lengths", "num_decodes", "padding"),
    [
        ([1, 1, 40, 3, 2, 70], 2, 5),
        ([32, 64], 0, 0),
        ([5], 0, 27),
        ([1, 1], 2, 14),
        ([3] * 11, 0, 0),
        ([0, 7, 0], 0, 1),
    ],
)
def test_every_token_is_in_one_block(lengths, num_decodes, padding, align):
    B, block = len(lengths), 32
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    T = int(starts[-1]) + padding
    kv_len = np.array(lengths, np.int32) + 10
    planned = jax.jit(plan_blocks, static_argnums=(3, 4, 5))
    plan = planned(jnp.asarray(starts), jnp.asarray(kv_len), jnp.int32(num_decodes), T, block, align)
    plan = jax.tree.map(np.asarray, plan)
    num_blocks = int(plan.num_blocks[0])
    assert num_blocks <= plan.request.shape[0]
    owner, position = np.full(T, -1), np.full(T, -1)
    end_before = 0
    for i in range(num_blocks):
        first, count, request = (int(x[i]) for x in (plan.first_token, plan.count, plan.request))
        assert count > 0
        assert first % align + count <= block  # within the window
        assert first >= end_before  # in the order of their tokens
        assert (owner[first : first + count] == -1).all()
        owner[first : first + count] = request
        position[first : first + count] = int(plan.position[i]) + np.arange(count)
        end_before = first + count
    expected = np.repeat([*range(B), -1], [*lengths, padding])
    expected[: starts[num_decodes]] = -1
    np.testing.assert_array_equal(owner, expected)
    own = np.flatnonzero(owner >= 0)
    np.testing.assert_array_equal(position[own], 10 + own - starts[owner[own]])
    assert (np.asarray(plan.count)[num_blocks:] == 0).all()
