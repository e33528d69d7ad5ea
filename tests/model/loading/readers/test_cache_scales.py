"""Scales of a float8 KV cache: read under each name, used where the cache is float8, and refused where damaged."""

import logging
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from palladio.model.base.errors import CheckpointError
from palladio.model.config.config import ModelConfig, read_model_dir
from palladio.model.loading import orbax_weights
from palladio.model.loading.stored_config import agree_with_weights
from tests.model import quantized_checkpoints as stored
from tests.model.driver import Driver, load
from tests.model.make_goldens import prompts
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import make_checkpoint

SCALES = {"k": (0.011, 0.004), "v": (0.007, 0.002)}  # of each layer; a few numbers are beyond what they hold
NAMES = {  # by who writes them: of keys, of values
    "vLLM": ("k_scale", "v_scale"),
    "attn": ("attn.k_scale", "attn.v_scale"),
    "ModelOpt": ("k_proj.k_scale", "v_proj.v_scale"),
    "compressed-tensors": ("k_proj.output_scale", "v_proj.output_scale"),
}


def checkpoint(path: Path, names: tuple[str, str] = NAMES["vLLM"], shape: tuple[int, ...] = (1,), **more: Any) -> Path:
    """A plain one with scales. Args: more: tensors."""
    make_checkpoint(path, "qwen2")
    tensors = stored.read_all(path / stored.FILE)
    for name, scales in zip(names, SCALES.values(), strict=True):
        for layer, scale in enumerate(scales):
            tensors[f"model.layers.{layer}.self_attn.{name}"] = np.full(shape, scale, np.float32)
    write_safetensors(path / stored.FILE, tensors | more)
    return path


def logits(path: Path, kv_dtype: Any = jnp.float8_e4m3fn) -> np.ndarray:
    config, model = load(path)
    rows = Driver(config, model, 2, kv_dtype=kv_dtype).step(prompts()[:2])
    return np.concatenate([rows[number] for number in range(2)])


def test_float8_keys_and_values_are_those_of_the_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers, whose keys and values are rounded as the format says: float8(k / scale) · scale."""
    hf_oracle = pytest.importorskip("tests.model.hf_oracle")
    module = pytest.importorskip("transformers.models.qwen2.modeling_qwen2")
    torch, usual = pytest.importorskip("torch"), module.eager_attention_forward

    def rounded(states: Any, scale: float) -> Any:
        wide = np.clip(states.numpy() / np.float32(scale), -448, 448)
        return torch.from_numpy(wide.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(scale))

    def with_scales(layer: Any, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
        number = layer.layer_idx
        key, value = rounded(key, SCALES["k"][number]), rounded(value, SCALES["v"][number])
        return usual(layer, query, key, value, *args, **options)

    path = checkpoint(tmp_path / "scaled")
    make_checkpoint(tmp_path / "plain", "qwen2")
    exact, _ = hf_oracle.run(tmp_path / "plain", prompts()[:2], 1)
    monkeypatch.setattr(module, "eager_attention_forward", with_scales)
    expected = np.concatenate(hf_oracle.run(tmp_path / "plain", prompts()[:2], 1)[0])
    found, without = logits(path), logits(tmp_path / "plain")
    error = np.abs(found - expected).mean()
    assert error < 1e-4  # a number between two floats of 8 bits may go the other way
    assert np.abs(expected - np.concatenate(exact)).mean() > 20 * error
    assert np.abs(without - expected).mean() > 20 * error
    np.testing.assert_allclose(logits(path, jnp.float32), np.concatenate(exact), atol=1e-4, rtol=0)  # not used there


@pytest.mark.parametrize("writer", [name for name in NAMES if name != "vLLM"])
def test_names_of_scales(writer: str, tmp_path: Path) -> None:
    more = {"model.layers.0.self_attn.q_scale": np.ones((), np.float32)}
    _, model = load(checkpoint(tmp_path, NAMES[writer], (), **more))
    found = [(layer.attention.key_scale, layer.attention.value_scale) for layer in model.layers]
    expected = list(zip(*SCALES.values(), strict=True))
    np.testing.assert_array_equal([[float(part[0]) for part in pair] for pair in found], np.float32(expected))


def test_one_scale_for_both(tmp_path: Path) -> None:
    """As older files have it."""
    path = make_checkpoint(tmp_path, "qwen2")
    both = {f"model.layers.{layer}.self_attn.kv_scale": np.full((), 0.5 + layer, np.float32) for layer in range(2)}
    write_safetensors(path / stored.FILE, stored.read_all(path / stored.FILE) | both)
    _, model = load(path)
    pairs = [(layer.attention.key_scale, layer.attention.value_scale) for layer in model.layers]
    assert [[float(part[0]) for part in pair] for pair in pairs] == [[0.5, 0.5], [1.5, 1.5]]


def test_a_converted_checkpoint_has_them(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source")
    config = agree_with_weights(source, ModelConfig.from_hf(*read_model_dir(source)), "auto")
    orbax_weights.convert(source, tmp_path / "out", config, "float32", lambda *_: None)
    _, model = load(tmp_path / "out")
    assert float(model.layers[1].attention.value_scale[0]) == np.float32(SCALES["v"][1])


@pytest.mark.parametrize("value", [np.nan, 0.0, -1.0, np.inf])
def test_a_scale_that_is_no_positive_number_is_named(value: float, tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.v_scale"
    path = checkpoint(tmp_path, **{name: np.full((1,), value, np.float32)})
    with pytest.raises(CheckpointError, match=rf"tensor {name} in model.safetensors is .*must be a positive number"):
        load(path)


def test_a_missing_scale_is_named(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    tensors = stored.read_all(path / stored.FILE)
    del tensors["model.layers.0.self_attn.v_scale"]
    write_safetensors(path / stored.FILE, tensors)
    with pytest.raises(CheckpointError, match=r"missing keys in checkpoint .*model\.layers\.0\.self_attn\.v_scale"):
        load(path)


def test_scales_of_each_head_are_not_used_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = checkpoint(tmp_path, shape=(2, 1, 1))
    with caplog.at_level(logging.WARNING):
        config, _ = load(path)
    assert "4 scales of an 8-bit KV cache are not used, such as tensor model.layers.0.self_attn.k_scale" in caplog.text
    assert not config.layers[0].attention.has_cache_scales
