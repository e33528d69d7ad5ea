"""Which short requests share a step of the TPU kernel: every real row is in one step, with others of its block."""

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.ragged_paged_attention.tpu.tpu_grid import SHORT, GridPlan

BLOCK, TOGETHER, PAGE, LONGEST = 8, 4, 32, 2 * SHORT


def _plan(lengths, num_rows, longest=LONGEST):
    table = np.arange(len(lengths) * 40).reshape(len(lengths), 40)
    args = (jnp.asarray(lengths, jnp.int32), jnp.int32(num_rows), jnp.asarray(table, jnp.int32))
    return GridPlan.of_rows(*args, PAGE, BLOCK, TOGETHER, longest)


def _steps(plan):
    """Rows of each step."""
    rows = np.stack(plan.shared.rows, axis=1)
    sizes = np.asarray(plan.shared.num_rows)
    return [rows[i, : sizes[i]].tolist() for i in range(int(plan.blocks.num_blocks[0]))]


def test_short_requests_of_a_block_share_grid_steps_and_long_ones_have_their_own():
    lengths = [5, 300, 128, 129, 64, 1, 2, 3, 4, 500, 600, 700, 800, 900, 901, 902]
    assert _steps(_plan(lengths, 16)) == [[0, 2, 4, 5], [1], [3], [6, 7], [8], [9], [10], [11], [12], [13], [14], [15]]
    assert _steps(_plan(lengths, 7)) == [[0, 2, 4, 5], [1], [3], [6]]
    assert _steps(_plan(lengths, 0)) == []


def test_two_requests_of_up_to_256_keys_share_a_grid_step():
    lengths = [129, 5, 256, 257, 200, 128, 130, 200, 256, 1, 700, 2, 3, 4, 5, 6]
    assert _steps(_plan(lengths, 16)) == [[0, 2], [1, 5], [3], [4, 6], [7], [8], [9, 11, 12, 13], [10], [14, 15]]
    first = [[0], [1, 5], [2], [3], [4], [6], [7]]
    assert _steps(_plan(lengths, 16, SHORT)) == [*first, [8], [9, 11, 12, 13], [10], [14, 15]]


@pytest.mark.parametrize("seed", range(8))
def test_every_real_row_is_in_one_grid_step(seed):
    rng = np.random.default_rng(seed)
    num_rows = int(rng.integers(0, 65))
    lengths = np.where(rng.random(64) < seed / 7, rng.integers(1, LONGEST + 1, 64), rng.integers(1, 1000, 64))
    lengths[num_rows:] = 0
    plan = _plan(lengths, num_rows)
    steps = _steps(plan)
    assert sorted(row for step in steps for row in step) == list(range(num_rows))
    blocks = [step[0] // BLOCK for step in steps]
    assert blocks == sorted(blocks)  # each is brought once
    for i, step in enumerate(steps):
        assert {row // BLOCK for row in step} == {blocks[i]}
        kinds = set(-(-lengths[step] // SHORT))
        assert len(step) == 1 or (kinds <= {1, 2} and len(kinds) == 1 and len(step) <= TOGETHER // kinds.pop())
        found = (int(x[i]) for x in (plan.blocks.request, plan.blocks.position, plan.blocks.count))
        assert tuple(found) == (step[0], lengths[step[0]] - 1, 1)
        assert [int(rows[i]) for rows in plan.shared.rows] == step + [step[0]] * (TOGETHER - len(step))
    # A block leaves no step out that could be saved.
    for block in range(64 // BLOCK):
        mine = [len(step) for step, of in zip(steps, blocks, strict=True) if of == block]
        own = lengths[block * BLOCK : min((block + 1) * BLOCK, max(num_rows, block * BLOCK))]
        short, longer = int((own <= SHORT).sum()), int(((own > SHORT) & (own <= LONGEST)).sum())
        assert sum(mine) - len(mine) == short - -(-short // TOGETHER) + longer // 2
    np.testing.assert_array_equal(
        plan.shared.pages, (np.arange(64)[:, None] * 40 + np.arange(LONGEST // PAGE)).reshape(-1)
    )
    assert (np.asarray(plan.blocks.count)[len(steps) :] == 0).all()


def test_no_two_requests_share_where_it_is_not_wanted():
    plan = GridPlan.of_rows(jnp.asarray([3, 4]), jnp.int32(2), jnp.zeros((2, 8), jnp.int32), PAGE, 1, 1, 0)
    assert plan.shared is None
    assert plan.blocks.request.tolist() == [0, 1]
