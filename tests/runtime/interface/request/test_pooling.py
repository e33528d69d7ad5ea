"""Pooling: what a checkpoint's files ask for, and the pool program against numpy."""

import json

import jax
import numpy as np
import pytest

from palladio.runtime.execution.batch.batch_builder import ForwardLayout
from palladio.runtime.execution.steps.pooler import pool_step
from palladio.runtime.interface.errors import ConfigError
from palladio.runtime.interface.request.embedding import Pooling
from palladio.runtime.scheduling.batch.buckets import PrefillBucket

D, SLOTS = 5, 6
LAYOUT = ForwardLayout.prefill(PrefillBucket(16, 4), 4, (4,))


def write(folder, pooling=None, modules=None):
    if modules is not None:
        entries = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (kind, path) in enumerate(modules)]
        (folder / "modules.json").write_text(json.dumps(entries))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


PREFIX = "sentence_transformers.models."
TRANSFORMER, POOLING = (f"{PREFIX}Transformer", ""), (f"{PREFIX}Pooling", "1_Pooling")
NORMALIZE = (f"{PREFIX}Normalize", "2_Normalize")
LAST = {"word_embedding_dimension": 8, "pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}


@pytest.mark.parametrize(
    ("pooling", "modules", "expected"),
    [
        (None, None, Pooling("last", True)),
        (LAST, None, Pooling("last", True)),
        ({"pooling_mode_mean_tokens": True, "include_prompt": True}, None, Pooling("mean", True)),
        (LAST, [TRANSFORMER, POOLING, NORMALIZE], Pooling("last", True)),
        ({"pooling_mode_mean_tokens": True}, [TRANSFORMER, POOLING], Pooling("mean", False)),
        ({"pooling_mode_cls_token": True}, [TRANSFORMER, POOLING, NORMALIZE], Pooling("cls", True)),
        ({"pooling_mode": "mean"}, [TRANSFORMER, POOLING, NORMALIZE], Pooling("mean", True)),
        (None, [TRANSFORMER], Pooling("last", False)),
        ({"pooling_mode_max_tokens": True}, [TRANSFORMER, NORMALIZE], Pooling("last", True)),  # no part of the model
    ],
)
def test_what_a_checkpoint_asks_for(tmp_path, pooling, modules, expected):
    assert Pooling.of(write(tmp_path, pooling, modules)) == expected


@pytest.mark.parametrize(
    ("pooling", "modules", "message"),
    [
        ({"pooling_mode_max_tokens": True}, None, r"1_Pooling/config.json: pooling_mode_max_tokens is not supported"),
        ({"pooling_mode": "weightedmean"}, None, r"1_Pooling/config.json: pooling_mode 'weightedmean'"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, None, "one of .* found pooling_mode_mean"),
        ({"pooling_mode_mean_tokens": False}, None, "one of .* found none"),
        ([], None, r"1_Pooling/config.json must be a JSON object"),
        (None, [TRANSFORMER, (f"{PREFIX}Dense", "2_Dense")], r"modules.json: type '.*Dense' is not supported"),
        (None, [(5, "")], r"modules.json must be a list of objects"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, pooling, modules, message):
    with pytest.raises(ConfigError, match=message):
        Pooling.of(write(tmp_path, pooling, modules))


def test_a_file_that_is_no_json(tmp_path):
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(ConfigError, match=r"cannot read .*modules.json as JSON"):
        Pooling.of(tmp_path)


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
    return tuple(map(np.array, step(pooled, hidden, pack(rows), layout=LAYOUT, pooling=pooling)))


def state(pooling):
    """Full of what an earlier owner of the slots left."""
    return np.full((SLOTS, D if pooling.reads_all else 0), 1e9, np.float32)


def whole(hidden, pooling):
    vector = {"last": hidden[-1], "mean": hidden.mean(0), "cls": hidden[0]}[pooling.method]
    return vector / np.linalg.norm(vector) if pooling.normalizes else vector


POOLINGS = [Pooling(method, normalizes) for method in ("last", "mean", "cls") for normalizes in (True, False)]


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
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
        np.testing.assert_allclose(vector, whole(texts[slot], pooling), atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_what_is_not_finite_stays_in_its_row(pooling):
    hidden = np.ones((LAYOUT.num_tokens, D), np.float32)
    hidden[4, 2] = np.inf
    _, vectors = pool(state(pooling), hidden, [(2, 0, 4), (3, 0, 1), (4, 0, 3)], pooling)
    assert [bool(np.isfinite(vector).all()) for vector in vectors[:3]] == [True, False, True]


def test_a_vector_of_zeros_is_not_divided_by_zero():
    hidden = np.zeros((LAYOUT.num_tokens, D), np.float32)
    _, vectors = pool(state(POOLINGS[0]), hidden, [(2, 0, 4)], POOLINGS[0])
    np.testing.assert_array_equal(vectors[0], np.zeros(D))
