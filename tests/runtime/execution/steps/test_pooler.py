"""The pool program against numpy: texts in chunks, and what stands beside them."""

import jax
import numpy as np
import pytest

from palladio.model.pooling.pooling_spec import Dense, Normalize, PoolingSpec, VectorNorm
from palladio.runtime.execution.batch.batch_builder import ForwardLayout
from palladio.runtime.execution.steps.pooler import pool_step
from palladio.runtime.scheduling.batch.buckets import PrefillBucket

D, SLOTS = 5, 6
LAYOUT = ForwardLayout.prefill(PrefillBucket(16, 4), 4, (4,))
METHODS = ("last", "mean", "cls", "max", "mean_sqrt_len", "weighted_mean")
STEPS = (Dense("2_Dense", 3 * D, 4), VectorNorm("3_LayerNorm", 4), Normalize())
SEVERAL = PoolingSpec(("cls", "weighted_mean", "last"), STEPS)


def pack(rows):
    """A step's vector of rows (slot, start, length)."""
    packed = np.zeros(LAYOUT.size, np.int32)
    counts, slots, starts, ends, _, _ = LAYOUT.sections
    packed[counts] = len(rows), 0
    slot_ids, first, lengths = zip(*rows, strict=True)
    columns = slot_ids, first, np.add(first, lengths)
    for column, values in zip((slots, starts, ends), columns, strict=True):
        packed[column][: len(rows)] = values
    return packed


def pool(pooled, hidden, rows, pooling):
    step = jax.jit(pool_step, static_argnames=("layout", "pooling"))
    arrays = step(pooled, hidden, pack(rows), layout=LAYOUT, pooling=pooling, weights=weights(pooling))
    return tuple(map(np.array, arrays))


def weights(pooling):
    rng = np.random.default_rng(1)
    return tuple(rng.standard_normal(shape).astype(np.float32) for _, _, shape in pooling.tensors)


def state(pooling):
    """Full of what an earlier owner of the slots left."""
    return np.full((SLOTS, D * pooling.num_carried), 1e9, np.float32)


def pooled_by(method, hidden):
    places = np.arange(1, len(hidden) + 1)[:, None]
    return {
        "last": hidden[-1],
        "mean": hidden.mean(0),
        "cls": hidden[0],
        "max": hidden.max(0),
        "mean_sqrt_len": hidden.sum(0) / len(hidden) ** 0.5,
        "weighted_mean": (hidden * places).sum(0) / places.sum(),
    }[method]


def whole(hidden, pooling):
    vector = np.concatenate([pooled_by(method, hidden) for method in pooling.methods])
    if pooling is SEVERAL:
        matrix, bias, scale, shift = weights(pooling)
        vector = np.tanh(matrix @ vector + bias)
        vector = (vector - vector.mean()) / np.sqrt(vector.var() + 1e-5) * scale + shift
    return vector / np.linalg.norm(vector) if pooling.normalizes else vector


POOLINGS = [PoolingSpec((method,), (Normalize(),) * length) for method in METHODS for length in (0, 1)] + [SEVERAL]


@pytest.mark.parametrize("pooling", POOLINGS, ids=lambda pooling: f"{pooling.name}{len(pooling.steps)}")
def test_ragged_rows_over_several_steps(pooling):
    """Three texts, in chunks of their own; what stands in the padding does not matter."""
    rng = np.random.default_rng(0)
    texts = {3: rng.standard_normal((9, D)), 1: rng.standard_normal((1, D)), 5: rng.standard_normal((14, D))}
    steps = [[(3, 0, 4), (1, 0, 1), (5, 0, 7)], [(5, 7, 1), (3, 4, 5)], [(5, 8, 6)]]
    pooled, got = state(pooling), {}
    for rows in steps:
        hidden = np.full((LAYOUT.num_tokens, D), np.nan, np.float32)
        parts = [texts[slot][start : start + count] for slot, start, count in rows]
        hidden[: sum(map(len, parts))] = np.concatenate(parts)
        pooled, vectors = pool(pooled, hidden, rows, pooling)
        got |= {slot: vectors[i] for i, (slot, start, count) in enumerate(rows) if start + count == len(texts[slot])}
    assert got.keys() == texts.keys()
    for slot, vector in got.items():
        np.testing.assert_allclose(vector, whole(texts[slot], pooling), atol=5e-6)


@pytest.mark.parametrize("pooling", POOLINGS[::2], ids=lambda pooling: pooling.name)
def test_what_is_not_finite_stays_in_its_row(pooling):
    hidden = np.ones((LAYOUT.num_tokens, D), np.float32)
    hidden[4, 2] = np.inf
    _, vectors = pool(state(pooling), hidden, [(2, 0, 4), (3, 0, 1), (4, 0, 3)], pooling)
    assert [bool(np.isfinite(vector).all()) for vector in vectors[:3]] == [True, False, True]


def test_a_vector_of_zeros_is_not_divided_by_zero():
    hidden, pooling = np.zeros((LAYOUT.num_tokens, D), np.float32), PoolingSpec()
    _, vectors = pool(state(pooling), hidden, [(2, 0, 4)], pooling)
    np.testing.assert_array_equal(vectors[0], np.zeros(D))
