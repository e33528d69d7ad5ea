"""Models whose layers keep states: what config.json may say, how large states are, and what a layer's slots hold."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.base.errors import ConfigError
from palladio.model.base.sharding import make_abstract_mesh, make_mesh
from palladio.model.cache.groups import Place
from palladio.model.cache.kv_cache import CacheLayout
from palladio.model.config.config import ModelConfig
from palladio.model.functional import num_bytes
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.spec.layer_spec import AttentionSpec, DeltaSpec
from palladio.runtime.core.plan.memory import DeviceMemory, MemoryNeeds, plan_memory
from tests.model.driver import Driver, load
from tests.model.make_goldens import prompts
from tests.tiny_model import make_checkpoint, tiny_config

PUBLISHED = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
TWO_LAYERS = {"num_hidden_layers": 2, "full_attention_interval": 2}  # one with a state, one without
MIB = 2**20


def read(family: str = "qwen3_next", **overrides: Any) -> ModelConfig:
    return ModelConfig.from_hf(tiny_config(family, **overrides))


def test_layers_with_and_without_states() -> None:
    config = read()
    assert [layer.keeps_state for layer in config.layers] == [True, True, True, False]
    assert len(set(config.layers)) == 3, "one of the states has no experts"
    kinds = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    assert [layer.keeps_state for layer in read(layer_types=kinds).layers] == [False, True, True, False]
    assert [layer.keeps_state for layer in read(full_attention_interval=2).layers] == [True, False, True, False]
    attention = config.layers[3].attention
    assert isinstance(attention, AttentionSpec)
    assert (attention.has_gate, isinstance(config.layers[0].attention, DeltaSpec)) == (True, True)
    places = CacheLayout.of(read(layer_types=kinds), page_size=16, dtype=jnp.float32).groups.places
    assert places == [Place(0, 0), Place(1, 2), Place(1, 3), Place(0, 1)]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"layer_types": ["linear_attention"] * 4}, "layer_types: models without any full_attention"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types must list full_attention or linear_attention"),
        ({"linear_num_value_heads": 5}, "linear_num_value_heads 5 is not a multiple of linear_num_key_heads 2"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be at least 2"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim must be a whole number of at least 1"),
        ({"attention_bias": True}, "attention_bias: True is not supported"),
    ],
)
def test_what_config_json_may_not_say(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**overrides)


@pytest.mark.parametrize(("num_shards", "num_ranks", "share"), [(1, 1, 1), (8, 1, 8), (16, 1, 16), (4, 2, 4)])
def test_the_states_of_the_published_sizes(num_shards: int, num_ranks: int, share: int) -> None:
    """36 layers of 2 MiB and 48 KiB a request, divided over the devices that share the heads."""
    mesh = make_abstract_mesh(num_shards, num_ranks)
    config = TensorLayout.of(read(**PUBLISHED), num_shards).config
    cache = CacheLayout.of(config, page_size=16, dtype=jnp.bfloat16, num_slots=5, state_dtype=jnp.bfloat16)
    pool = cache.abstract(2, mesh)
    leaves = jax.tree.leaves(cache.states(pool))
    assert (len(cache.pages(pool)), len(leaves)) == (12, 2 * 36)
    size = sum(num_bytes(leaf.sharding.shard_shape(leaf.shape), leaf.dtype) for leaf in leaves)
    assert size == 5 * 36 * (2 * MIB + 48 * 1024) // share
    assert all(leaf.shape[0] == num_ranks * 5 for leaf in leaves)


def test_heads_that_do_not_divide_are_placed_as_kv_heads_are() -> None:
    layout = TensorLayout.of(read(), 4)  # of two key heads, each with three value heads
    assert layout.config.delta is not None
    assert (layout.config.delta.num_key_heads, layout.config.delta.group) == (4, 2)
    assert "key heads of layers with states: 2 stored as 4" in layout.table()


def test_the_plan_has_a_line_for_states() -> None:
    sizes: dict[str, Any] = {"bytes_per_page": MIB, "page_size": 16, "wanted_tokens": None, "useful_tokens": 10**6}
    needs = MemoryNeeds(platform="tpu", weights=100 * MIB, state=MIB, layer_states=300 * MIB, fraction=None, **sizes)
    memory = DeviceMemory(1000 * MIB, 1000 * MIB)
    plan = plan_memory(memory, needs, 0)
    assert plan.report.layer_states == 300 * MIB
    assert plan.report.planned <= plan.report.usable
    assert any(line.startswith("  states") and "300.0 MiB" in line for line in plan.table())
    with pytest.raises(Exception, match=r"states of layers 300.0 MiB \(fewer with --max-running-requests\)"):
        plan_memory(DeviceMemory(400 * MIB, 400 * MIB), needs, 0)


def test_a_row_of_padding_changes_no_state(tmp_path: Any) -> None:
    """Neither rows of nobody, in steps of both kinds, nor requests that take no part; and the scratch slot stays
    zeros."""
    config, model = load(make_checkpoint(tmp_path, "qwen3_5", **TWO_LAYERS))
    driver, chosen = Driver(config, model, 3), prompts()[5:8]
    driver.step(chosen)
    cache = CacheLayout.of(config, page_size=16, dtype=jnp.float32, num_slots=4)

    def slots() -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(cache.states(driver.cache))]

    before = slots()
    assert all(np.abs(leaf[1:]).max(axis=tuple(range(1, leaf.ndim))).min() > 0 for leaf in before)
    for kind, tokens in (("decode", [[], [5], []]), ("prefill", [[], [5, 6, 7], []])):
        driver.step(tokens, kind=kind)
        after = slots()
        for old, new in zip(before, after, strict=True):
            np.testing.assert_array_equal(new[[0, 1, 3]], old[[0, 1, 3]])
            assert (new[2] != old[2]).any()
        assert all((leaf[0] == 0).all() for leaf in after)
        before = after


def test_two_chunks_equal_one(tmp_path: Any) -> None:
    config, model = load(make_checkpoint(tmp_path, "qwen3_5", **TWO_LAYERS))
    whole = Driver(config, model, 9).step(prompts())
    driver = Driver(config, model, 9)
    parts = (driver.step([p[:17] for p in prompts()]), driver.step([p[17:] for p in prompts()]))
    for b in range(len(prompts())):
        chunked = np.concatenate([part[b] for part in parts if b in part])
        np.testing.assert_allclose(chunked, whole[b], atol=5e-5, rtol=0)


@pytest.mark.slow
def test_quantized_weights_leave_the_recurrence_as_it_is(tmp_path: Any) -> None:
    config, model = load(make_checkpoint(tmp_path, "qwen3_next"), quantization="int8", mesh=make_mesh(1))
    plain_config, plain = load(tmp_path)
    layer, same = model.layers[0].attention, plain.layers[0].attention
    for name in ("rates", "key_filter", "value_filter", "log_decay", "decay_bias"):
        np.testing.assert_array_equal(getattr(layer, name)[...], getattr(same, name)[...])
    both = [Driver(c, m, 1).step([prompts()[7]])[0] for c, m in ((config, model), (plain_config, plain))]
    assert np.corrcoef(both[0].ravel(), both[1].ravel())[0, 1] > 0.98
