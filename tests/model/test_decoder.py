"""The residual loop: layers that are alike are one piece of work for the tracer, whatever their number."""

import jax
import jax.numpy as jnp
import pytest

from palladio.model.config import ModelConfig
from palladio.model.decoder import DecoderLayer
from palladio.model.forward_batch import ForwardBatch
from palladio.model.functional import flatten_model, unflatten_model
from palladio.model.kv_cache import CacheLayout
from palladio.model.loading.load_model import abstract_model
from palladio.model.sharding import make_mesh
from palladio.pallas_kernels.choice import Kernels
from tests.tiny_model import tiny_config


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
