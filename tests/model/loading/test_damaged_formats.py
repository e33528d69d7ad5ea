"""Damaged and unsupported quantized checkpoints: one line names the tensor or the key, and the remedy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palladio.model.base.errors import CheckpointError, ConfigError
from palladio.model.config.config import ModelConfig
from tests.model import quantized_checkpoints as stored
from tests.model.driver import load
from tests.model.format_cases import AWQ, FOUR, GPTQ, checkpoint, ct, stacked_checkpoint
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import make_checkpoint, tiny_config, write_json


def damaged(path: Path, name: str, change: Callable[[np.ndarray], np.ndarray | None]) -> Path:
    tensors = stored.read_all(path / stored.FILE)
    found = change(tensors.pop(name))
    write_safetensors(path / stored.FILE, tensors if found is None else {**tensors, name: found})
    return path


UP = "model.layers.1.mlp.up_proj."
OTHERS = {"targets": ["re:.*other"], "weights": {"type": "int", **FOUR}}  # that there are not


def broken(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array.flat[3] = value
    return array


@pytest.mark.parametrize(
    ("case", "name", "change", "message"),
    [
        ("awq", "qweight", lambda a: a[:-1], r"up_proj\.qweight .* has 47 inputs, which groups of 16 do not divide"),
        ("awq", "qzeros", lambda a: a[:, :-1], r"up_proj\.qzeros .* has shape \(3, 9\); .* needs \(3, 10\)"),
        (
            "awq",
            "scales",
            lambda a: None,
            r"up_proj\.qweight .* is quantized, but .*up_proj\.scales is missing: .* again",
        ),
        ("awq", "scales", lambda a: broken(a, np.nan), r"up_proj\.scales .* scales that are not finite"),
        (
            "awq",
            "scales",
            lambda a: a[:1],
            r"up_proj\.scales .* has shape \(1, 80\); .* needs \(3, 80\): quantiz.* download it again",
        ),
        (
            "awq",
            "qweight",
            lambda a: a.astype(np.int64),
            r"qweight .* has dtype I64; .* needs I32: .* download it again",
        ),
        ("gptq 8 bits by channel", "qweight", lambda a: a[:0], r"up_proj\.qweight .* has shape \(0, 80\), .* again"),
        (
            "ct float8",
            "weight",
            lambda a: a[:0],
            r"up_proj\.weight .* has shape \(0, 48\), and so no .* download it again",
        ),
        ("awq", "qweight", lambda a: a.reshape(-1), r"up_proj\.qweight .* has shape \(480,\)"),
        (
            "gptq 8 bits by channel",
            "qzeros",
            lambda a: broken(a, 0),
            r"zero points other than 128, .* set sym to false in config\.json, or in quantize_config\.json",
        ),
        ("gptq", "g_idx", lambda a: a[::-1], r"up_proj\.g_idx .* set desc_act to true in config\.json, or in quant"),
        ("gptq act order", "g_idx", lambda a: broken(a, 99), r"up_proj\.g_idx .* groups outside of 0 … 2: .* again"),
        (
            "ct act order",
            "weight_g_idx",
            lambda a: broken(a, 99),
            r"up_proj\.weight_g_idx .* outside of 0 … 2: .* again",
        ),
        ("gptq act order", "g_idx", lambda a: None, r"up_proj\.g_idx is missing"),
        ("ct 4 bits with zeros", "weight_zero_point", lambda a: None, r"up_proj\.weight_zero_point is missing"),
        (
            "ct 4 bits with zeros",
            "weight_packed",
            lambda a: a[:, :-1],
            r"up_proj\.weight_packed .* has 40 inputs, which groups",
        ),
        (
            "ct 4 bits",
            "weight_shape",
            lambda a: np.asarray([80, 56]),
            r"up_proj\.weight_shape .* is \[80, 56\], but .*up_proj\.weight_packed .* has \[80, 48\]: .* again",
        ),
        ("ct int8", "weight_scale", lambda a: broken(a, np.inf), r"up_proj\.weight_scale .* not finite"),
        (
            "ct float8",
            "weight_scale",
            lambda a: None,
            r"up_proj\.weight .* is float8, but its scale .* incomplete, down",
        ),
        ("ct float8", "weight_scale", lambda a: broken(a, np.nan), r"up_proj\.weight_scale .* not finite"),
        ("ct float8", "weight", lambda a: broken(a, np.nan), r"up_proj\.weight .* has weights that are NaN: .*again"),
        ("ct float8", "weight", lambda a: broken(a, -np.nan), r"up_proj\.weight .* has weights that are NaN"),
        (
            "ct float8 in blocks",
            "weight_scale",
            lambda a: a[:-1],
            r"up_proj\.weight_scale .* has shape \(2, 3\); .* needs \(3, 3\): weight_block_size .* download it again",
        ),
        (
            "ct float8",
            "weight_scale",
            lambda a: a.astype(np.int32),
            r"weight_scale .* has dtype I32; scales of .* need F32 .* download it again",
        ),
        (
            "ct 4 bits in bytes",
            "weight",
            lambda a: broken(a, 9),
            r"up_proj\.weight .* outside of -8 … 7, those of 4 bits: .* download it again",
        ),
        ("ct 4 bits in bytes", "weight_zero_point", lambda a: broken(a, -9), r"weight_zero_point .* outside of -8 … 7"),
    ],
)
def test_damaged_checkpoints_are_named(case: str, name: str, change: Any, message: str, tmp_path: Path) -> None:
    path = damaged(checkpoint(tmp_path, case), UP + name, change)
    with pytest.raises(CheckpointError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("exponent", "message"),
    [(255, r"scales that are NaN \(255\)"), (253, r"scales that are not finite, or over 1e\+35: .* download it again")],
)
def test_experts_with_a_scale_that_is_no_number(exponent: int, message: str, tmp_path: Path) -> None:
    """2¹²⁶ is a number, but six times it is none."""
    name = "model.layers.1.mlp.experts.down_proj_scales"
    path = damaged(stacked_checkpoint(tmp_path, "mxfp4"), name, lambda array: broken(array, exponent))
    with pytest.raises(CheckpointError, match=rf"experts\.down_proj_scales .* {message}"):
        load(path)


@pytest.mark.parametrize(
    ("name", "value", "quantization"),
    [
        (f"{UP}weight", np.nan, "int4"),
        (f"{UP}weight", np.inf, "w8a8_fp8"),
        ("model.embed_tokens.weight", -np.inf, "int8"),
    ],
)
def test_weights_of_which_no_bits_can_be_made(name: str, value: float, quantization: str, tmp_path: Path) -> None:
    """Once the whole channel, or group, became NaN."""
    path = damaged(make_checkpoint(tmp_path, "qwen2"), name, lambda array: broken(array, value))
    with pytest.raises(CheckpointError, match=rf"{name} in .* has weights that are NaN or infinite, .* download it"):
        load(path, quantization=quantization)


@pytest.mark.parametrize(
    ("case", "weights", "end", "message"),
    [
        ("ct 4 bits with zeros", {"symmetric": True}, None, r"weight_zero_point .* other than 0, .* set it to false"),
        ("ct 4 bits", {}, "weight_g_idx", r'up_proj\.weight_g_idx .* order of its own, .* set actorder to "group" in'),
    ],
)
def test_tensors_that_config_json_does_not_know(
    case: str, weights: dict[str, Any], end: str | None, message: str, tmp_path: Path
) -> None:
    """compressed-tensors: numbers would be others without them. Without effect, they may be there."""
    path = checkpoint(tmp_path, case)
    config = json.loads((path / "config.json").read_text())
    write_json(path / "config.json", config | {"quantization_config": ct("pack-quantized", **FOUR | weights)})
    if end is not None:
        groups = (np.arange(48) // 16).astype(np.int32)
        tensors = stored.read_all(path / stored.FILE) | {UP + end: groups}
        write_safetensors(path / stored.FILE, tensors)
        load(path)
        write_safetensors(path / stored.FILE, tensors | {UP + end: groups[::-1].copy()})
    with pytest.raises(CheckpointError, match=message):
        load(path)


@pytest.mark.parametrize("case", ["awq", "gptq", "ct 4 bits", "ct 4 bits with zeros"])
def test_groups_of_another_size_that_are_as_many(case: str, tmp_path: Path) -> None:
    """48 inputs are 3 groups of 16, or two of 18 and one of 12. Of GPTQ's, `g_idx` tells, which not all files have."""
    path = checkpoint(tmp_path, case)
    text = (path / "config.json").read_text()
    assert '"group_size": 16' in text
    (path / "config.json").write_text(text.replace('"group_size": 16', '"group_size": 18'))
    tensors = stored.read_all(path / stored.FILE)
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(".g_idx")}
    write_safetensors(path / stored.FILE, kept)
    with pytest.raises(
        CheckpointError, match=r"q_proj\.\w+ in .* has 48 inputs, which groups of 18 do not divide: quan"
    ):
        load(path)
    if case == "gptq":
        write_safetensors(path / stored.FILE, tensors)
        with pytest.raises(CheckpointError, match=r"g_idx .* has an order of its own"):
            load(path)


@pytest.mark.parametrize("stored_form", ["gptq", "gptq_v2"])
def test_zero_points_of_gptqs_other_form(stored_form: str, tmp_path: Path) -> None:
    """Which with sym set to false would load, and be one off."""
    path = checkpoint(tmp_path, "gptq 8 bits by channel")
    config = json.loads((path / "config.json").read_text())
    asked = "gptq" if stored_form == "gptq_v2" else "gptq_v2"
    if stored_form == "gptq_v2":
        ones = np.int32(0x01010101)
        tensors = stored.read_all(path / stored.FILE)
        zeros = {name: tensor + ones for name, tensor in tensors.items() if name.endswith(".qzeros")}
        write_safetensors(path / stored.FILE, tensors | zeros)
    config["quantization_config"]["checkpoint_format"] = asked
    write_json(path / "config.json", config)
    with pytest.raises(CheckpointError, match=rf"qzeros .* set checkpoint_format to {stored_form} in config\.json"):
        load(path)


@pytest.mark.parametrize("case", ["ct 8 bits packed", "ct int8"])
def test_whole_numbers_where_config_json_says_floats(case: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path, case)
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace('"type": "int"', '"type": "float"'))
    with pytest.raises(CheckpointError, match=r"q_proj\.weight\w* in .* has dtype I\d+, but type in .* is float: quan"):
        load(path)


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("gptq", {"dynamic": {"-:.*up_proj": {}}}, "quantization_config.dynamic says that it is not"),
        ("ct 4 bits", {"config_groups": dict.fromkeys("ab", OTHERS)}, "no target in config_groups names its module"),
    ],
)
def test_quantized_modules_of_which_config_json_says_nothing(
    case: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path, case)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] |= change
    write_json(path / "config.json", config)
    with pytest.raises(
        CheckpointError, match=rf"_proj\.\w+ in .* is quantized, but {message}: quant.* download it again"
    ):
        load(path)


def test_biases_of_layers_that_have_none(tmp_path: Path) -> None:
    """AutoGPTQ writes zeros for each layer that it quantizes."""
    path, name = checkpoint(tmp_path, "gptq"), "model.layers.1.mlp.up_proj.bias"
    tensors = stored.read_all(path / stored.FILE) | {name: np.zeros(80, np.float16)}
    write_safetensors(path / stored.FILE, tensors)
    load(path)
    write_safetensors(path / stored.FILE, tensors | {name: broken(tensors[name], 0.5)})
    with pytest.raises(CheckpointError, match=r"up_proj\.bias in .* is a bias that is not 0, and the model has none"):
        load(path)


@pytest.mark.parametrize(("case", "end"), [("awq", "qweight"), ("ct float8", "weight_scale")])
def test_quantized_tensors_without_a_word_in_config_json(case: str, end: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path, case)
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]
    write_json(path / "config.json", config)
    with pytest.raises(CheckpointError, match=rf"{end} in .* but config\.json has no quantization_config: download"):
        load(path)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        (
            {"quant_method": "bitsandbytes"},
            "quant_method: 'bitsandbytes' is not supported; supported: fp8, ",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo: 'NVFP4' is not supported in ModelOpt"),
        (ct("nvfp4-pack-quantized", num_bits=4, type="float"), "format: 'nvfp4-pack-quantized' is not supported"),
        (
            {
                **ct("mixed-precision", num_bits=4),
                "config_groups": {"a": {"format": "nvfp4-pack-quantized", "weights": {"num_bits": 4, "type": "float"}}},
            },
            "config_groups.a.format: 'nvfp4-pack-quantized' is not supported",
        ),
        (
            ct("pack-quantized", num_bits=3),
            "group_0.weights.num_bits: 3 of type 'int' is not supported; supported: 8 of",
        ),
        (ct("pack-quantized", num_bits=4, strategy="tensor_group"), "strategy: 'tensor_group' is not supported"),
        (ct("pack-quantized", **FOUR) | {"transform_config": {"a": 1}}, "transform_config: .* is not supported"),
        (ct("pack-quantized", **FOUR) | {"ignore": ["re:("]}, "ignore: .* is not a regular expression"),
        (GPTQ | {"bits": 3}, "bits: 3 is not supported in GPTQ"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format: 'marlin' is not supported"),
        (GPTQ | {"group_size": 0}, "group_size must be a whole number of at least 1"),
        (GPTQ | {"dynamic": ["a"]}, "dynamic must be an object"),
        (AWQ | {"bits": 8}, "bits: 8 is not supported; only 4"),
        (AWQ | {"version": "gemv"}, "version: 'gemv' is not supported; only 'gemm'"),
        (AWQ | {"zero_point": False}, "zero_point: False is not supported"),
    ],
)
def test_formats_that_are_not_supported(quantization: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_hf(tiny_config("qwen2", quantization_config=quantization))
