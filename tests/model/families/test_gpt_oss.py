"""gpt-oss: what its config.json says, experts whose gate and up come in turns, sinks over devices, and 4 bits."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.base.sharding import make_abstract_mesh, make_mesh
from palladio.model.cache.groups import CacheGroups
from palladio.model.config.config import ModelConfig
from palladio.model.layers.moe import choose_experts
from palladio.model.layers.rope import attention_factor
from palladio.model.loading.layout.parameters import Parameters
from palladio.model.loading.layout.relayout import relayout, stored_shape
from palladio.model.loading.layout.tensor_layout import TensorLayout
from palladio.model.loading.layout.weight_transforms import part_of
from palladio.model.loading.load_model import weight_bytes
from palladio.model.spec.layer_spec import ClampedGate, RouterSpec, SparseSpec
from tests.model import quantized_checkpoints as stored
from tests.model.driver import load, numbers
from tests.model.format_cases import gpt_oss_checkpoint
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import make_checkpoint, tiny_config

PUBLISHED = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "eos_token_id": 200002,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 8,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}


@pytest.mark.parametrize(("layers", "experts", "billions"), [(24, 32, 20.91), (36, 128, 116.83)])
def test_published_configs(layers: int, experts: int, billions: float) -> None:
    types = ["sliding_attention", "full_attention"] * (layers // 2)
    sizes = {"num_hidden_layers": layers, "num_local_experts": experts, "layer_types": types}
    config = ModelConfig.from_hf(PUBLISHED | sizes).for_context(131072)
    assert [layer.attention.window for layer in config.layers[:2]] == [128, None]
    assert len(set(config.layers)) == len(CacheGroups.of(config).groups) == 2
    (rope,) = config.ropes
    assert (rope.truncate, rope.theta) == (False, 150000.0)
    assert attention_factor(rope) == pytest.approx(1.3466, abs=1e-4)
    mlp = config.layers[0].mlp
    assert isinstance(mlp, SparseSpec)
    assert mlp.router == RouterSpec(renormalize=True, bias="logits")
    assert mlp.activation == ClampedGate(sharpness=1.702, limit=7.0)
    by_path = Parameters.of(TensorLayout.of(config, 1), jnp.bfloat16, make_mesh(1)).by_path
    weights = {name: param for name, (_, param) in by_path.items() if not name.endswith(".scales")}
    assert sum(np.prod(param.shape) for param in weights.values()) / 1e9 == pytest.approx(billions, abs=0.01)
    in_4_bits = {name.removesuffix(".values") for name, param in weights.items() if param.dtype == jnp.int4}
    assert in_4_bits == {f"layers.{n}.mlp.{part}" for n in range(layers) for part in ("gate", "up", "down")}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"swiglu_limit": 0}, "swiglu_limit must be a number greater than 0"),
        ({"sliding_window": None}, "sliding_window is missing"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok 7 is greater than num_local_experts 6"),
    ],
)
def test_bad_configs_name_the_key(overrides: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_hf(tiny_config("gpt_oss", **overrides))


def test_where_a_stored_tensor_lies(tmp_path: Path) -> None:
    """Plain matrices have their inputs first; of the outputs, even ones are the gate's, odd ones up's."""
    path = make_checkpoint(tmp_path, "gpt_oss")
    _, model = load(path)
    tensors, mlp = load_file(path / "model.safetensors"), model.layers[2].mlp
    both, bias = (tensors[f"model.layers.2.mlp.experts.gate_up_proj{end}"] for end in ("", "_bias"))
    np.testing.assert_array_equal(mlp.gate.values[...], both[..., ::2])
    np.testing.assert_array_equal(mlp.up.values[...], both[..., 1::2])
    np.testing.assert_array_equal(mlp.gate_bias[...], bias[..., ::2])
    np.testing.assert_array_equal(mlp.up_bias[...], bias[..., 1::2])
    np.testing.assert_array_equal(mlp.down.values[...], tensors["model.layers.2.mlp.experts.down_proj"])
    np.testing.assert_array_equal(model.layers[2].attention.sinks[...], tensors["model.layers.2.self_attn.sinks"])


@pytest.mark.parametrize("num_shards", [1, 2, 4, 8])
def test_sinks_are_with_their_heads(num_shards: int) -> None:
    """6 heads, 3 of keys, padded and copied: as a file's tensor and as a converted one."""
    layout = TensorLayout.of(ModelConfig.from_hf(tiny_config("gpt_oss", num_key_value_heads=3)), num_shards)
    parameters = Parameters.of(layout, jnp.float32, make_abstract_mesh(num_shards))
    (name,) = (name for name in parameters.slots if name == "layers.0.attention.sinks")
    (shape, axes) = parameters.slots[name].values.shape, ("query_heads",)
    values, found = np.arange(1.0, 7.0), np.zeros(shape)
    part_of("sinks", shape, layout).copy(values, (slice(None),), found)
    wanted = np.zeros((len(layout.places), layout.group))
    for number, place in enumerate(layout.places):
        if place is not None:
            wanted[number, : place.num_queries] = values[place.first_query :][: place.num_queries]
    np.testing.assert_array_equal(found, wanted.ravel())
    assert stored_shape(shape, axes, layout) == (6,)
    np.testing.assert_array_equal(relayout(jnp.asarray(values), axes, layout), found)


def test_shares_are_among_the_chosen() -> None:
    """The largest logits, bias included, and their softmax."""
    rng = np.random.default_rng(1)
    x, router, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, 16), (16, 12), (12,)))
    weights, chosen = choose_experts(x, router, 4, RouterSpec(renormalize=True, bias="logits"), jnp.asarray(bias))
    logits = x.astype(np.float64) @ router + bias
    expected = np.argsort(-logits)[:, :4]
    np.testing.assert_array_equal(chosen, expected)
    np.testing.assert_allclose(weights, jax.nn.softmax(np.take_along_axis(logits, expected, 1)), rtol=1e-5)


def test_4_bits_stay_4_bits(tmp_path: Path) -> None:
    """With sizes that no device's tiles divide: 96 columns of 5 experts; and dense where that is asked for."""
    path = gpt_oss_checkpoint(tmp_path, num_local_experts=5, intermediate_size=96)
    _, model = load(path)
    assert "fp4 W4A16, a scale per 32 inputs" in weight_bytes(model)
    tensors, found, prefix = load_file(path / "wide" / stored.FILE), numbers(model), "model.layers.1.mlp.experts."
    both, down = (tensors[f"{prefix}{name}_proj"] for name in ("gate_up", "down"))
    for name, wanted in (("gate", both[..., ::2]), ("up", both[..., 1::2]), ("down", down)):
        np.testing.assert_array_equal(found[f"layers.1.mlp.{name}"], wanted)
    widened = load(path, quantization="dequantize")[1]
    assert "fp4" not in weight_bytes(widened)
    np.testing.assert_array_equal(numbers(widened)["layers.1.mlp.up"], found["layers.1.mlp.up"])


def test_plain_experts_are_quantized_while_they_load(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "gpt_oss")
    plain = numbers(load(path)[1])
    found = numbers(load(path, quantization="int8")[1])
    for name in ("gate", "up", "down"):
        wanted = plain[f"layers.1.mlp.{name}"]
        largest = np.abs(wanted).max(axis=1, keepdims=True)  # of an output's inputs
        assert np.all(np.abs(found[f"layers.1.mlp.{name}"] - wanted) <= largest / 254 * 1.001)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "gpt_oss")
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    tensors[name] = np.ascontiguousarray(tensors[name].swapaxes(1, 2))
    write_safetensors(path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=rf"{name} in .* requires \(6, 48, 40\)"):
        load(path)
