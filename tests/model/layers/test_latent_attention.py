"""Latent attention in a model: sizes and scales by config.json, pairs taken apart, one row a token on every device."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from palladio.model.base.errors import ConfigError
from palladio.model.base.sharding import make_abstract_mesh, make_mesh
from palladio.model.cache.kv_cache import CacheLayout
from palladio.model.cache.latent_cache import LatentCacheSpec
from palladio.model.config.config import ModelConfig
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.spec.layer_spec import LatentSpec
from palladio.runtime.execution.state.device_state import bytes_per_device
from tests.model.driver import Driver, load
from tests.model.loading.layout.test_tensor_layout import check_meshes
from tests.tiny_model import make_checkpoint, tiny_config, tiny_weights

# As DeepSeek publishes them; V3.1 and R1 are the same.
V3 = {
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
}


def read(family: str = "deepseek_v3", **overrides: Any) -> ModelConfig:
    return ModelConfig.from_hf(tiny_config(family, **overrides))


def attention(config: ModelConfig) -> LatentSpec:
    (found,) = {layer.attention for layer in config.layers}
    assert isinstance(found, LatentSpec)
    return found


def test_config() -> None:
    config = read(**V3)
    sizes = config.latent
    assert sizes is not None
    assert (sizes.query_size, sizes.row_size, sizes.query_rank, config.head_size) == (192, 576, 1536, 64)
    assert read("deepseek_v2").latent == dataclasses.replace(read().latent, query_rank=None)
    assert attention(config).norm.eps == attention(read("kimi_k2")).norm.eps == 1e-6
    assert read("kimi_k2").norm.eps == 1e-2
    assert config.max_position_embeddings == 163840


def test_yarn_raises_the_scale_twice() -> None:
    """Queries and keys are both multiplied; the factor on cos and sin is another one."""
    factor = 0.1 * math.log(40) + 1
    assert attention(read(**V3)).scale == pytest.approx(192**-0.5 * factor**2)
    assert attention(read("deepseek_v2_groups")).scale == pytest.approx(20**-0.5)  # without yarn
    without = {**V3["rope_scaling"], "mscale_all_dim": 0}
    assert attention(read(**{**V3, "rope_scaling": without})).scale == pytest.approx(192**-0.5)


def test_the_cache_of_the_published_sizes() -> None:
    """1,280 bytes a token, layer and device, on however many devices; each of them has all of it."""
    config = read(**V3)
    for num_shards, num_ranks in ((1, 1), (8, 1), (32, 1), (8, 4)):
        layout = TensorLayout.of(config, num_shards)
        cache = CacheLayout.of(layout.config, page_size=16, dtype=jnp.bfloat16)
        assert isinstance(cache.spec, LatentCacheSpec)
        array = cache.spec.array(1, make_abstract_mesh(num_shards, num_ranks))
        assert array.shape == (num_ranks, 16, 640)
        assert bytes_per_device(array) == 16 * 1280
    assert TensorLayout.of(config, 8).table()[0] == "latent KV cache: all of it on each of 8 devices"
    assert TensorLayout.of(config, 1).table() == []


def test_a_step_keeps_one_row_a_token_and_copies_no_cache(tmp_path: Path) -> None:
    """What the compiler says: in float32 a page of 16 tokens more is 16 · 2,560 bytes of arguments a layer, without
    temporary memory, and all of it is written in place."""
    sizes = {name: V3[name] for name in ("kv_lora_rank", "qk_rope_head_dim")}
    config, model = load(make_checkpoint(tmp_path, "deepseek_v3", num_hidden_layers=1, **sizes))
    found = []
    for max_len in (160, 480):
        driver = Driver(config, model, 2, max_len=max_len)
        lowered: list[Any] = []
        run = driver._step
        driver._step = lambda *args, run=run, lowered=lowered: (lowered.append(run.lower(*args)), run(*args))[1]
        driver.step([[1], [2]], kind="decode")
        found.append((driver.cache[0].shape[0], lowered[0].compile().memory_analysis()))
    (few, less), (many, more) = found
    num_bytes = (many - few) * 16 * 2560 * config.num_layers
    assert more.argument_size_in_bytes - less.argument_size_in_bytes - num_bytes < 4096  # tables are wider, too
    assert more.argument_size_in_bytes - less.argument_size_in_bytes >= num_bytes
    assert more.alias_size_in_bytes - less.alias_size_in_bytes == num_bytes
    assert more.temp_size_in_bytes - less.temp_size_in_bytes < 16 * 2560


def test_pairs_are_taken_apart_while_loading(tmp_path: Path) -> None:
    _, model = load(make_checkpoint(tmp_path, "deepseek_v3"))
    stored, layer = tiny_weights(tiny_config("deepseek_v3")), model.layers[1].attention
    prefix = "model.layers.1.self_attn."
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    row = stored[f"{prefix}kv_a_proj_with_mqa.weight"]
    np.testing.assert_array_equal(layer.row.kernel.values[...], np.concatenate([row[:24], row[24:][order]]).T)
    query = stored[f"{prefix}q_b_proj.weight"].reshape(6, 20, 20)  # [N, plain + R, rank]
    query = np.concatenate([query[:, :12], query[:, 12:][:, order]], axis=1)
    np.testing.assert_array_equal(layer.query_up.kernel.values[...], query.transpose(2, 0, 1))
    expanding = stored[f"{prefix}kv_b_proj.weight"].reshape(6, 22, 24)
    np.testing.assert_array_equal(layer.key_up[...], expanding[:, :12])
    np.testing.assert_array_equal(layer.value_up[...], expanding[:, 12:])
    halves, _ = load(tmp_path, {"rope_interleave": False})
    assert halves.latent is not None
    assert halves.latent.rotated_order == tuple(range(8))


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        ("deepseek_v3", {"num_key_value_heads": 3}, "num_key_value_heads 3 must be num_attention_heads 6"),
        ("deepseek_v3", {"kv_lora_rank": 0}, "kv_lora_rank must be a whole number of at least 1"),
        ("deepseek_v3", {"q_lora_rank": "none"}, "q_lora_rank must be a whole number"),
        ("deepseek_v3", {"qk_rope_head_dim": 7}, "must be even"),
        ("deepseek_v3", {"rope_interleave": 1}, "rope_interleave must be true or false"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method: 'noaux_tc' is not supported; only greedy and group"),
        ("deepseek_v2", {"mlp_bias": True}, "mlp_bias: True is not supported"),
        (
            "glm4_moe_lite",
            {"mlp_layer_types": ["sparse"]},
            "mlp_layer_types must list dense or sparse for each of the 2",
        ),
    ],
)
def test_bad_configs_name_the_key(family: str, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(family, **overrides)


def test_four_devices_with_heads_that_do_not_divide(tmp_path: Path) -> None:
    """5 heads in 8 places; every device writes and keeps every row."""
    make_checkpoint(tmp_path, "glm4_moe_lite", num_hidden_layers=1, mlp_layer_types=["dense"])
    check_meshes(str(tmp_path), [1, 4])


def test_layers_of_one_kind_are_lowered_once(tmp_path: Path) -> None:
    config, model = load(make_checkpoint(tmp_path, "deepseek_v3", num_hidden_layers=4))
    driver, texts = Driver(config, model, 1, mesh=make_mesh(1)), []
    run = driver._step

    def lower(leaves: Any, cache: Any, batch: Any) -> Any:
        texts.append(jax.jit(run).lower(leaves, cache, batch).as_text())
        return np.zeros((len(batch.token_ids), 1)), cache

    driver._step = lower
    driver.step([[1, 2, 3]])
    assert texts[0].count("func.func private @_call_layer") == 2  # one without experts, one with them
