"""Prompt log-probabilities by chunks, and the two-level top-k, against sorting."""

import functools

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from palladio.runtime.execution.sampling.scoring import score_tokens, token_logprobs, top_k_exact
from tests.properties import examples

D = 16


def case(T, V, seed=0):
    rng = np.random.default_rng(seed)
    head = rng.normal(size=(D, V)).astype(np.float32)
    return head, rng.normal(size=(T, D)).astype(np.float32), rng.integers(0, V, T).astype(np.int32)


def score(hidden, head, targets, chunk=16):
    """Of rows that all belong to one slot, which asks for the id 3."""
    asked, slots = jnp.full((1, 1), 3, jnp.int32), jnp.zeros(len(targets), jnp.int32)
    return score_tokens(lambda rows: rows @ head, hidden, targets, asked, slots, chunk=chunk)


@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.slow), 4, 16, 64])
@pytest.mark.parametrize("T", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (15, 16)), 17])
def test_scores_match_float64(T, chunk):
    head, hidden, targets = case(T, 700)
    logprobs, top_ids, top_logprobs, asked = jax.jit(functools.partial(score, chunk=chunk))(hidden, head, targets)
    logits = hidden.astype(np.float64) @ head
    exact = logits - scipy.special.logsumexp(logits, axis=-1, keepdims=True)
    np.testing.assert_allclose(logprobs, exact[np.arange(T), targets], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(top_ids, np.argsort(-logits, axis=-1)[:, :20])
    np.testing.assert_allclose(top_logprobs, -np.sort(-exact, axis=-1)[:, :20], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(asked, exact[:, 3:4], rtol=1e-4, atol=1e-4)


def test_each_row_has_the_ids_that_its_slot_asks_for():
    head, hidden, targets = case(11, 300)
    asked_ids, slots = np.array([[0, 0], [7, 299], [5, 7]], np.int32), np.array([2, 1, 1, 2, 0, 1, 2, 2, 1, 1, 2])
    *_, asked = score_tokens(
        lambda rows: rows @ head, jnp.array(hidden), jnp.array(targets), jnp.array(asked_ids), jnp.array(slots), chunk=4
    )
    logits = hidden.astype(np.float64) @ head
    exact = logits - scipy.special.logsumexp(logits, axis=-1, keepdims=True)
    np.testing.assert_allclose(asked, np.take_along_axis(exact, asked_ids[slots], 1), rtol=1e-4, atol=1e-4)


def test_target_and_top_are_the_same_float():
    head, hidden, _ = case(20, 3000)
    best = (hidden @ head).argmax(-1).astype(np.int32)
    logprobs, top_ids, top_logprobs, _ = score(jnp.array(hidden), head, jnp.array(best), chunk=8)
    np.testing.assert_array_equal(top_ids[:, 0], best)
    np.testing.assert_array_equal(logprobs, top_logprobs[:, 0])


def test_the_whole_logits_are_never_alive():
    T, V, chunk = 256, 5000, 16
    head, hidden, targets = case(T, V)
    lowered = jax.jit(functools.partial(score, chunk=chunk)).lower(hidden, head, targets)
    memory = lowered.compile().memory_analysis()
    assert memory.temp_size_in_bytes < T * V * 4 / 2


def test_bfloat16_logits_are_scored_in_float32():
    head, hidden, targets = case(4, 64)
    head, hidden = jnp.array(head, jnp.bfloat16), jnp.array(hidden, jnp.bfloat16)
    logprobs, _, top_logprobs, asked = score(hidden, head, jnp.array(targets))
    assert logprobs.dtype == top_logprobs.dtype == asked.dtype == jnp.float32


@pytest.mark.parametrize("V", [1, 19, 20, 128, 10_000, 10_240, 20_480, 30_001])
def test_top_k_is_exact_with_ties(V):
    values = np.random.default_rng(V).integers(0, 40, (3, V)).astype(np.float32)
    top_values, top_ids = jax.jit(top_k_exact, static_argnums=1)(values, 20)
    order = np.argsort(-values, axis=-1, kind="stable")[:, :20]
    width = order.shape[1]
    np.testing.assert_array_equal(top_ids[:, :width], order)
    np.testing.assert_array_equal(top_values[:, :width], np.take_along_axis(values, order, 1))
    assert (top_values[:, width:] == -np.inf).all()
    assert (top_ids[:, width:] >= V).all()


@examples(100)
@hypothesis.given(
    hypothesis.extra.numpy.arrays(
        np.float32,
        (2, 1500),
        elements=st.sampled_from([0.0, 1.0, 2.0, -np.inf, 5.0]),
        fill=st.sampled_from([0.0, -np.inf]),
    )
)
def test_two_levels_equal_a_stable_sort(values):
    top_values, top_ids = jax.jit(top_k_exact, static_argnums=1)(values, 2)  # 12 blocks: over 4 * 2, so two levels
    order = np.argsort(-values, axis=-1, kind="stable")[:, :2]
    np.testing.assert_array_equal(top_ids, order)
    np.testing.assert_array_equal(top_values, np.take_along_axis(values, order, 1))


def test_masked_ids_have_no_probability():
    logits = np.full((1, 30), -np.inf, np.float32)
    logits[0, :2] = [1.0, 2.0]
    asked_ids = jnp.array([[29, 1]])
    logprobs, top_ids, top_logprobs, asked = token_logprobs(jnp.array(logits), jnp.array([29]), asked_ids)
    assert asked[0].tolist() == [-np.inf, top_logprobs[0, 0]]
    assert logprobs[0] == -np.inf
    assert top_ids[0, :3].tolist() == [1, 0, 2]
    assert np.isfinite(top_logprobs[0, :2]).all()
    assert (top_logprobs[0, 2:] == -np.inf).all()
