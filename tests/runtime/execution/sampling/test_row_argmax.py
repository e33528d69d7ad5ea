"""The argmax of a CPU is jnp.argmax: for ties, infinities, NaN and any width; and who uses it on which platform."""

import shutil

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.cpu_native import library
from palladio.pallas_kernels.target import Target
from palladio.runtime.execution.sampling.row_argmax import (
    native_argmax,
    row_argmax,
    row_argmax_of_computed,
    rows_are_finite,
)
from palladio.runtime.execution.sampling.sampler_state import SamplerState
from tests import compile_cache
from tests.properties import examples
from tests.runtime.execution.sampling.sampler_oracle import jit_sample, make_batch

WIDTHS = (1, 127, 129, 521, 1000, 5003, 5005)  # some are prime; of long rows XLA:CPU's maximum leaves NaN out
LARGEST = float(jnp.finfo(jnp.bfloat16).max)
VALUES = (-np.inf, -LARGEST, -3.5, -0.0, 0.0, 1e-30, 2.0, LARGEST, np.inf, np.nan)
jit_argmax, jit_computed, jit_finite = jax.jit(row_argmax), jax.jit(row_argmax_of_computed), jax.jit(rows_are_finite)
plain = jax.jit(lambda x: jnp.argmax(x, axis=-1))


@examples(60, long=2000)
@hypothesis.given(
    width=st.sampled_from(WIDTHS),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16]),
    palette=st.lists(st.sampled_from(VALUES), min_size=1, max_size=4, unique_by=str),
    odds=st.sampled_from([1.0, 0.01, 0.0003]),
    seed=st.integers(0, 2**32 - 1),
)
def test_few_values_in_many_places_give_what_numpy_finds(width, dtype, palette, odds, seed):
    """Of few values most rows have ties, within a block and between blocks; rare ones stand in few places."""
    weights = np.array([1.0] + [odds] * (len(palette) - 1))
    drawn = np.random.default_rng(seed).choice(np.array(palette), (5, width), p=weights / weights.sum())
    values = jnp.asarray(drawn, dtype)
    largest = np.asarray(values, np.float32)
    np.testing.assert_array_equal(jit_argmax(values), plain(values))
    np.testing.assert_array_equal(jit_argmax(values), largest.argmax(axis=-1))
    np.testing.assert_array_equal(jit_finite(values), np.isfinite(largest.max(axis=-1)))
    has_nan = np.isnan(largest).any(axis=-1)
    np.testing.assert_array_equal(jit_computed(values)[~has_nan], plain(values)[~has_nan])
    assert ((jit_computed(values) >= 0) & (jit_computed(values) < width)).all()


@pytest.mark.parametrize("width", [1, 127, 521, 1000])
def test_the_largest_is_found_in_every_column(width):
    values = np.random.default_rng(width).normal(size=(width, width)).astype(np.float32)
    values[np.arange(width), np.arange(width)] = 100.0
    np.testing.assert_array_equal(jit_argmax(values), np.arange(width))


@pytest.mark.parametrize("at", [0, 127, 128, 2500, 4999])
def test_one_nan_among_many_numbers_is_found(at):
    values = np.random.default_rng(at).normal(size=(3, 5000)).astype(np.float32)
    values[1, at] = np.nan
    assert jit_argmax(values)[1] == at
    assert jit_finite(values).tolist() == [True, False, True]


@pytest.mark.parametrize("tier", ["greedy", "random"])
@pytest.mark.parametrize(
    ("best", "expected"),
    [
        ({100: 9.0, 101: 9.0, 300: 9.0}, 100),
        ({127: 9.0, 128: 9.0}, 127),
        ({400: 9.0, 399: 9.0, 512: 9.0}, 399),
        ({130: -0.0, 140: 0.0, 700: 0.0}, 130),  # -0 equals 0
        ({700: 0.0, 710: -0.0}, 700),
    ],
    ids=str,
)
def test_a_greedy_row_takes_the_lowest_of_equals_in_its_block_and_between_blocks(tier, best, expected):
    logits = np.full((2, 777), -5.0, np.float32)
    logits[:, list(best)] = list(best.values())
    batch = make_batch({"temperature": 0.0}, {"top_k": 1})
    assert jit_sample(logits, SamplerState.allocate(2, 777), batch, tier=tier)[0].token_ids.tolist() == [expected] * 2


@pytest.mark.parametrize("function", [row_argmax, row_argmax_of_computed, rows_are_finite])
@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
def test_other_platforms_than_a_cpu_run_one_plain_reduction(function, platform):
    traced = jax.jit(function).trace(jax.ShapeDtypeStruct((2, 1280), jnp.float32))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert (text.count("stablehlo.reduce(") == 1) == (platform != "cpu")


@pytest.mark.skipif(
    not any(map(shutil.which, library.COMPILERS)) or not Target.of(jax.devices("cpu")[0]).kind,
    reason="needs a C++ compiler, and AVX2 at least",
)
@pytest.mark.parametrize("width", [1, 15, 16, 100, 2048])
def test_the_native_argmax_is_numpys(width):
    library.load(compile_cache.native_folder())
    rng = np.random.default_rng(width)
    palette = np.array([-np.inf, -3.0, -0.0, 0.0, 2.0, np.inf, np.nan], np.float32)
    values = rng.choice(palette, (400, width), p=[0.1, 0.3, 0.2, 0.2, 0.18, 0.01, 0.01])
    values[:200] = rng.permuted(np.tile(np.arange(width, dtype=np.float32), (200, 1)), axis=1)
    ids, are_finite = native_argmax(jnp.asarray(values))
    np.testing.assert_array_equal(ids, values.argmax(axis=-1))
    np.testing.assert_array_equal(are_finite, np.isfinite(values.max(axis=-1)))
