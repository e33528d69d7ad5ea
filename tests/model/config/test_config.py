"""ModelConfig.from_hf: both styles of config.json, every default that matters, and errors that name the key."""

import json
import subprocess
import sys

import numpy as np
import pytest

from palladio.model.base.errors import ConfigError
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.formats.fp8 import Fp8
from palladio.model.layers.rope import attention_factor, inverse_frequencies
from palladio.model.spec.layer_spec import DenseSpec, QKNormSpec
from palladio.model.spec.norm_spec import NormSpec
from palladio.model.spec.rope_config import RopeConfig
from tests.tiny_model import tiny_config

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}

LONGROPE = {"rope_type": "longrope", "long_factor": [1.0, 2.0, 3.0, 4.0], "short_factor": [1.0] * 4}


def read(family="qwen2", generation_config=None, without=(), **overrides):
    config = tiny_config(family, **overrides)
    return ModelConfig.from_hf({k: v for k, v in config.items() if k not in without}, generation_config)


def windows(*args, **options):
    return tuple(layer.attention.window for layer in read(*args, **options).layers)


def test_imports_no_jax():
    code = "import sys, palladio.model.config.config; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sizes_and_flags():
    config = read("qwen2", dtype="bfloat16")
    assert (config.hidden_size, config.intermediate_size, config.num_layers, config.vocab_size) == (48, 80, 2, 384)
    assert (config.num_heads, config.num_kv_heads, config.head_size) == (6, 2, 8)
    (layer,) = set(config.layers)
    assert (layer.attention.qkv_bias, layer.attention.output_bias, layer.attention.qk_norm) == (True, False, None)
    assert layer.mlp == DenseSpec()
    assert config.dtype == "bfloat16"
    assert read("llama_biased").layers[0].mlp == DenseSpec(bias=True)
    assert read("llama_biased").layers[0].attention.output_bias
    assert read("qwen3").layers[0].attention.qk_norm == QKNormSpec(norm=NormSpec(eps=1e-6))
    assert read("qwen3").head_size == 32
    assert read("qwen3", without=["head_dim"]).head_size == 128


def test_missing_optional_keys_mean_what_transformers_means():
    assert read("llama3", without=["num_key_value_heads"]).num_kv_heads == 4
    assert read("qwen2", num_key_value_heads=None).num_kv_heads == 6
    assert read("mistral", num_attention_heads=8, hidden_size=64, without=["num_key_value_heads"]).num_kv_heads == 8
    assert windows("mistral", without=["sliding_window"]) == (4096, 4096)
    assert read("llama3", without=["eos_token_id"]).eos_token_ids == (2,)
    assert read("qwen2", without=["tie_word_embeddings"]).tie_word_embeddings is False


def test_both_styles_of_rope():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    old = read(rope_theta=5e5, rope_scaling=yarn)
    older = read(rope_theta=5e5, rope_scaling={**yarn, "type": "yarn", "rope_type": "yarn"})
    new = read(without=["rope_theta"], rope_parameters={**yarn, "rope_theta": 5e5})
    assert old.ropes == older.ropes == new.ropes
    assert new.ropes == (RopeConfig(theta=5e5, kind="yarn", factor=4.0, original_max_position=64),)
    assert read(rope_scaling=None).ropes == (RopeConfig(theta=1e4),)
    extended = read(max_position_embeddings=64, rope_scaling=yarn)
    assert extended.max_position_embeddings == 256


def test_frequencies():
    plain = inverse_frequencies(RopeConfig(theta=1e4), 64)
    linear = inverse_frequencies(RopeConfig(theta=1e4, kind="linear", factor=4.0), 64)
    np.testing.assert_allclose(linear, plain / 4)
    llama3 = RopeConfig(theta=1e4, kind="llama3", factor=8.0, original_max_position=512)
    ratio = plain / inverse_frequencies(llama3, 64)
    assert ratio[0] == 1
    np.testing.assert_allclose(ratio[-1], 8, rtol=1e-6)
    assert (np.diff(ratio) >= 0).all()
    yarn = RopeConfig(theta=1e4, kind="yarn", factor=8.0, original_max_position=512)
    assert attention_factor(yarn) == pytest.approx(1 + 0.1 * np.log(8))
    assert attention_factor(RopeConfig(theta=1e4, kind="yarn", factor=8.0, mscale=1.0, mscale_all_dim=1.0)) == 1


def test_sliding_windows():
    assert windows("mistral") == (12, 12)
    assert windows("mistral", sliding_window=None) == (None, None)
    assert windows("qwen2", sliding_window=12) == (None, None)
    assert windows("qwen2_windowed") == (None, 12)
    types = ["sliding_attention", "full_attention"]
    assert windows("qwen2_windowed", layer_types=types) == (12, None)
    assert windows("llama3", sliding_window=12) == (None, None)


def test_eos_tokens_of_both_files():
    assert read(eos_token_id=5, generation_config={"eos_token_id": [7, 5]}).eos_token_ids == (7, 5)
    assert read(eos_token_id=[5, 6], generation_config={"eos_token_id": 7}).eos_token_ids == (7, 5, 6)
    assert read(eos_token_id=None).eos_token_ids == ()


def test_quantization():
    assert read().quantization is None
    assert read(quantization_config=FP8).quantization == Fp8(None)
    blocks = read(quantization_config={**FP8, "weight_block_size": [128, 64]})
    assert blocks.quantization == Fp8((128, 64))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"architectures": ["Olmo2bForCausalLM"]},
            "'Olmo2bForCausalLM' is not supported; the nearest that is: Olmo2ForCausalLM; all: palladio list",
        ),
        (
            {"architectures": ["BaichuanForCausalLM"]},
            r"'BaichuanForCausalLM' is not supported \(Baichuan 2 normalizes its head, .*LlamaForCausalLM\); all: ",
        ),
        ({"architectures": None}, "architectures must be"),
        ({"hidden_act": "mish"}, "hidden_act: 'mish' is not supported; supported: silu, swish, gelu, "),
        ({"hidden_size": "big"}, "hidden_size must be a whole number"),
        ({"hidden_size": 50}, "hidden_size 50 is not a multiple of num_attention_heads 6"),
        ({"num_key_value_heads": 4}, "num_attention_heads 6 is not a multiple of num_key_value_heads 4"),
        ({"head_dim": 7}, "head_dim must be even .*7"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        (
            {"partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "partial_rotary_factor: 0.5",
        ),
        ({"rope_scaling": {"type": "proportional", "factor": 2.0}}, "rope_scaling.rope_type: 'proportional'"),
        ({"rope_scaling": {"rope_type": "proportional"}}, "rope_scaling.rope_type: 'proportional'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.long_factor is missing"),
        ({"rope_scaling": LONGROPE | {"short_factor": 4}}, "short_factor must be a list of numbers"),
        ({"rope_scaling": LONGROPE | {"short_factor": [1, 2, 3, "4"]}}, "short_factor must be a number"),
        ({"rope_scaling": LONGROPE | {"short_factor": [1.0]}}, "must have 4 numbers .* found 4 and 1"),
        ({"text_config": "small"}, "text_config must be an object"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor is missing"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_parameters.rope_theta must be"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "different layer types"),
        ({"layer_types": ["chunked_attention"] * 2}, "layer_types must list"),
        ({"layer_types": ["full_attention"]}, "each of the 2 layers"),
        ({"layer_types": ["sliding_attention"] * 2}, "use_sliding_window"),
        ({"torch_dtype": "int8"}, "dtype: 'int8'"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "bits": 4}}, "quant_method: 'bitsandbytes'"),
        ({"quantization_config": {**FP8, "fmt": "e5m2"}}, "fmt: 'e5m2'"),
        ({"quantization_config": {**FP8, "activation_scheme": "block"}}, "activation_scheme: 'block'"),
        ({"quantization_config": {**FP8, "weight_block_size": [128]}}, "weight_block_size"),
    ],
)
def test_unsupported_values_are_errors(overrides, message):
    with pytest.raises(ConfigError, match=message):
        read(**overrides)


@pytest.mark.parametrize(
    "key",
    ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "architectures"],
)
def test_missing_keys_are_named(key):
    with pytest.raises(ConfigError, match=key):
        read(without=[key])


def test_read_model_dir(tmp_path):
    with pytest.raises(ConfigError, match="is not a directory"):
        read_model_dir(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"no config\.json in"):
        read_model_dir(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json as JSON"):
        read_model_dir(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="must contain a JSON object"):
        read_model_dir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"a": 1, "rope_parameters": {"factor": 2.0, "rope_theta": 3}}))
    config, generation_config = read_model_dir(tmp_path, {"b": 2, "rope_parameters": {"factor": 4.0}})
    assert config == {"a": 1, "b": 2, "rope_parameters": {"factor": 4.0, "rope_theta": 3}}
    assert generation_config is None
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 3}')
    assert read_model_dir(tmp_path)[1] == {"eos_token_id": 3}
