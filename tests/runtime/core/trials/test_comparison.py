"""What a trial takes for right: rounding, and nothing that is larger."""

import jax.numpy as jnp
import numpy as np
import pytest

from palladio.runtime.core.trials.comparison import BOUNDS, compare

ROWS = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_rounding_is_right(dtype):
    rounded = ROWS.astype(jnp.dtype(dtype)).astype(np.float32) * np.float32(1 + float(jnp.finfo(dtype).eps) / 4)
    assert compare([rounded], [ROWS], dtype).text == ""


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows * 1.01,
        lambda rows: np.where(np.arange(64)[:, None] == 63, np.nan, rows),
        lambda rows: np.where(np.arange(64)[:, None] == 63, np.inf, rows),
        lambda rows: np.where(np.arange(64)[:, None] == 63, rows * 1.01, rows),
        lambda rows: np.where(np.arange(128) == 5, 0, rows),
        lambda rows: np.roll(rows, 1, axis=0),
    ],
)
def test_what_is_wrong(dtype, change):
    rounded = ROWS.astype(jnp.dtype(dtype)).astype(np.float32)
    found = compare([ROWS, change(rounded)], [ROWS, ROWS], dtype)
    assert found.text
    assert found.error > found.bound


def test_whole_numbers_are_equal_or_wrong():
    places = np.arange(12, dtype=np.int32).reshape(4, 3)
    assert compare([places], [places], "bfloat16").text == ""
    assert compare([places + 1], [places], "bfloat16").error == float("inf")


def test_rows_of_zeros_are_compared():
    zeros = np.zeros((2, 8), np.float32)
    assert compare([zeros], [zeros], "bfloat16").text == ""
    assert compare([zeros + 1], [zeros], "bfloat16").text
    assert compare([], [], "bfloat16").text == ""
