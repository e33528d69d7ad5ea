"""Row argmax is jnp.argmax by each backend: for ties, infinities, NaN and any width; and what a platform runs."""

import dataclasses
import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.pallas_kernels.cpu_native import calls, library
from palladio.pallas_kernels.row_argmax import row_argmax
from palladio.pallas_kernels.row_argmax.xla import argmax, argmax_of_computed, rows_are_finite
from palladio.pallas_kernels.target import Target
from tests import compile_cache
from tests.native_forms import needs_compiler
from tests.properties import examples

WIDTHS = (1, 127, 129, 521, 1000, 5003, 5005)  # some are prime; of long rows XLA:CPU's maximum leaves NaN out
LARGEST = float(jnp.finfo(jnp.bfloat16).max)
VALUES = (-np.inf, -LARGEST, -3.5, -0.0, 0.0, 1e-30, 2.0, LARGEST, np.inf, np.nan)
CPU = Target("cpu", "avx2")
NATIVE = dataclasses.replace(CPU, is_native=True)
jit_both = jax.jit(row_argmax)
jit_computed = jax.jit(functools.partial(row_argmax, is_computed=True))
plain = jax.jit(lambda x: jnp.argmax(x, axis=-1))


@examples(40, long=2000)
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
    np.testing.assert_array_equal(plain(values), largest.argmax(axis=-1))
    token_ids, are_finite = jit_both(values)
    np.testing.assert_array_equal(token_ids, plain(values))
    np.testing.assert_array_equal(are_finite, np.isfinite(largest.max(axis=-1)))
    has_nan = np.isnan(largest).any(axis=-1)
    token_ids, are_finite = jit_computed(values)
    np.testing.assert_array_equal(token_ids[~has_nan], plain(values)[~has_nan])
    np.testing.assert_array_equal(are_finite, np.isfinite(largest.max(axis=-1)))
    assert ((token_ids >= 0) & (token_ids < width)).all()


@pytest.mark.parametrize("width", [1, 127, 521, 1000])
def test_the_largest_is_found_in_every_column(width):
    values = np.random.default_rng(width).normal(size=(width, width)).astype(np.float32)
    values[np.arange(width), np.arange(width)] = 100.0
    np.testing.assert_array_equal(jit_both(values)[0], np.arange(width))


@pytest.mark.parametrize("at", [0, 127, 128, 2500, 4999])
def test_one_nan_among_many_numbers_is_found(at):
    values = np.random.default_rng(at).normal(size=(3, 5000)).astype(np.float32)
    values[1, at] = np.nan
    for backend in ("xla", "reference"):
        token_ids, are_finite = row_argmax(values, backend=backend)
        assert token_ids[1] == at
        assert are_finite.tolist() == [True, False, True]


@pytest.mark.parametrize("function", [argmax, argmax_of_computed, rows_are_finite])
@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
def test_other_platforms_than_a_cpu_run_one_plain_reduction(function, platform):
    traced = jax.jit(function).trace(jax.ShapeDtypeStruct((2, 1280), jnp.float32))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert (text.count("stablehlo.reduce(") == 1) == (platform != "cpu")


def test_what_a_program_does_not_use_is_not_computed():
    values = jax.ShapeDtypeStruct((2, 1280), jnp.float32)
    used = [jax.jit(lambda x, number=number: row_argmax(x)[number]).lower(values) for number in (0, 1)]
    alone = [jax.jit(function).lower(values) for function in (argmax, rows_are_finite)]
    counts = [[each.as_text().count("stablehlo.reduce(") for each in programs] for programs in (used, alone)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("target", "is_native"),
    [(NATIVE, True), (CPU, False), (Target("tpu", "v6e"), False), (Target("gpu", "9.0"), False)],
    ids=str,
)
def test_auto_takes_the_native_one_where_it_is_loaded(target, is_native):
    text = jax.jit(functools.partial(row_argmax, target=target)).lower(jnp.zeros((2, 8))).as_text()
    assert (calls.ROW_ARGMAX in text) == is_native


def test_what_cannot_be_computed_is_refused():
    with pytest.raises(NotImplementedError):
        row_argmax(jnp.zeros((2, 8)), backend="cpu_native", target=CPU)
    for values, backend in ((jnp.zeros(8), "auto"), (jnp.zeros((2, 8)), "no-such-backend")):
        with pytest.raises(ValueError, match="row"):
            row_argmax(values, backend=backend)


@needs_compiler
@pytest.mark.parametrize("width", [1, 15, 16, 100, 2048])
def test_the_native_argmax_is_numpys(width):
    library.load(compile_cache.native_folder())
    rng = np.random.default_rng(width)
    palette = np.array([-np.inf, -3.0, -0.0, 0.0, 2.0, np.inf, np.nan], np.float32)
    values = rng.choice(palette, (400, width), p=[0.1, 0.3, 0.2, 0.2, 0.18, 0.01, 0.01])
    values[:200] = rng.permuted(np.tile(np.arange(width, dtype=np.float32), (200, 1)), axis=1)
    ids, are_finite = row_argmax(jnp.asarray(values), backend="cpu_native", target=NATIVE)
    np.testing.assert_array_equal(ids, values.argmax(axis=-1))
    np.testing.assert_array_equal(are_finite, np.isfinite(values.max(axis=-1)))
