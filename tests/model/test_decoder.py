"""The residual loop: layers that are alike are one piece of work for the tracer, whatever their number; and what may
stand in the place of ids and positions."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.base.sharding import make_mesh
from palladio.model.cache.forward_batch import ForwardBatch
from palladio.model.cache.kv_cache import CacheLayout
from palladio.model.config.config import ModelConfig
from palladio.model.decoder import DecoderLayer
from palladio.model.functional import flatten_model, unflatten_model
from palladio.model.loading.load_model import abstract_model
from palladio.pallas_kernels.choice import Kernels
from tests.model.driver import Driver, load
from tests.tiny_model import make_checkpoint, tiny_config


@pytest.mark.parametrize(
    ("family", "kinds"), [("qwen3", 1), ("qwen2_windowed", 2), ("gemma3", 2), ("cohere2", 2), ("granite", 1)]
)
def test_layers_that_are_alike_are_traced_once(family: str, kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    traced, call = [], DecoderLayer.__call__

    def count(layer, *args):
        traced.append(layer)
        return call(layer, *args)

    monkeypatch.setattr(DecoderLayer, "__call__", count)
    config = ModelConfig.from_hf(tiny_config(family, num_hidden_layers=7, max_window_layers=3))
    model = abstract_model(config, dtype=jnp.float32, mesh=make_mesh(1), kernels=Kernels("reference"))
    structure, leaves = flatten_model(model)
    layout = CacheLayout.of(config, page_size=16, dtype=jnp.float32)
    cache, num_tables = layout.abstract(8, make_mesh(1)), layout.groups.num_tables

    @jax.jit
    def step(leaves, cache, batch):
        return unflatten_model(structure, leaves)(batch, cache)

    ids, scalar = jax.ShapeDtypeStruct((4,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
    table = jax.ShapeDtypeStruct((4, 8), jnp.int32)
    starts = jax.ShapeDtypeStruct((5,), jnp.int32)
    batch = ForwardBatch(
        ids, ids, starts, ids, (table,) * num_tables, (ids,) * num_tables, ids, ids, scalar, scalar, kind="decode"
    )
    lowered = step.lower(leaves, cache, batch).as_text()
    assert len(traced) == kinds
    assert lowered.count("func.func private @_call_layer") == kinds
    assert lowered.count("call @_call_layer") == 7


def test_rows_and_rotary_positions(tmp_path: Path) -> None:
    config, model = load(make_checkpoint(tmp_path, "gemma2"))
    assert config.embedding_scale != 1
    driver = Driver(config, model, 6)
    ids = np.random.default_rng(0).integers(3, config.vocab_size - 3, 20).tolist()
    rows = model.embedding.embed(jnp.array(ids)) * config.embedding_scale

    def with_rows(batch: ForwardBatch) -> ForwardBatch:
        number = jnp.arange(batch.token_ids.shape[0])
        places = jnp.where((number >= 4) & (number < 17), number, -1)
        blank = jnp.where(places < 0, batch.token_ids, 0)
        return dataclasses.replace(batch, token_ids=blank, embeds=rows, embed_rows=places)

    def turned(factor: int, offset: int):
        def change(batch: ForwardBatch) -> ForwardBatch:
            return dataclasses.replace(batch, rotary_positions=factor * batch.positions + offset)

        return change

    def logits(sequence: int, change=lambda batch: batch) -> np.ndarray:
        """Of a chunk, and of a second one that reads the first one's keys from the cache."""
        given = [[] for _ in range(6)]
        given[sequence] = ids
        first = driver.step(given, change=change)[sequence]
        given[sequence] = [5, 6]
        later = turned(1, 7) if sequence == 3 else lambda batch: batch
        return np.concatenate([first, driver.step(given, change=later)[sequence]])

    expected = logits(0)
    np.testing.assert_allclose(logits(1, with_rows), expected, atol=1e-4)
    np.testing.assert_allclose(logits(2, turned(1, 0)), expected, atol=1e-5)
    np.testing.assert_allclose(logits(3, turned(1, 7)), expected, atol=1e-3, err_msg="only differences count")
    assert np.abs(logits(4, turned(3, 0)) - expected).max() > 1e-2
