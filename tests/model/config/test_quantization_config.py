"""--quantization against config.json: which names fit which format, and what they make of its weights."""

import math
from typing import Any

import pytest

from palladio.model.base.errors import ConfigError
from palladio.model.config.config import ModelConfig
from palladio.model.config.quantization_flag import MADE, QUANTIZATIONS, QuantizationFlag
from palladio.model.formats.stored_format import matches
from tests.model.format_cases import AWQ, FLOAT, FOUR, GPTQ, MODELOPT, ct
from tests.tiny_model import tiny_config

FORMATS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "fp8": {"quant_method": "fp8"},
    "fp8 blocks": {"quant_method": "fp8", "weight_block_size": [32, 16]},
    "modelopt": MODELOPT,
    "awq": AWQ,
    "gptq": GPTQ,
    "gptq act order": GPTQ | {"desc_act": True},
    "ct int8": ct("int-quantized", num_bits=8, strategy="channel"),
    "ct float8": ct("float-quantized", **FLOAT, strategy="channel"),
    "ct 4 bits": ct("pack-quantized", **FOUR),
    "mxfp4": {"quant_method": "mxfp4"},
}
FITTING = {  # beside dequantize, which fits all but plain ones
    "plain": set(MADE),
    "fp8": {"fp8", "w8a8_fp8", "fbgemm_fp8"},
    "fp8 blocks": {"fp8", "w8a8_fp8", "fbgemm_fp8"},
    "modelopt": {"fp8", "w8a8_fp8", "modelopt", "modelopt_fp8"},
    "awq": {"awq", "awq_marlin", "moe_wna16", "int4"},
    "gptq": {"gptq", "gptq_marlin", "moe_wna16", "int4"},
    "gptq act order": {"gptq", "gptq_marlin", "moe_wna16"},
    "ct int8": {"compressed-tensors", "compressed_tensors", "int8", "w8a8_int8"},
    "ct float8": {"compressed-tensors", "compressed_tensors", "fp8", "w8a8_fp8"},
    "ct 4 bits": {"compressed-tensors", "compressed_tensors", "int4"},
    "mxfp4": {"mxfp4"},
}


@pytest.mark.parametrize("form", FORMATS)
def test_names_that_fit_a_format(form: str) -> None:
    """Those of SGLang and vLLM for it, and those of the bits that it has."""
    family = "qwen3_moe" if form == "mxfp4" else "qwen2"
    config = ModelConfig.from_hf(tiny_config(family, quantization_config=FORMATS[form]))
    fitting = FITTING[form] | (set() if form == "plain" else {"dequantize"})
    for name in set(QUANTIZATIONS) - fitting:
        with pytest.raises(ConfigError, match=rf"--quantization (w8a8_…|{name}): the checkpoint (is|has) "):
            config.with_quantization(name)
    for name in fitting:
        kinds = config.with_quantization(name).weight_kinds
        if name.startswith("w8a8"):
            assert {kind.activation_bits for kind in kinds.all} == {8}
        elif form != "plain":
            assert kinds == (type(kinds)() if name == "dequantize" else config.weight_kinds)
    assert config.with_quantization(None).weight_kinds == config.weight_kinds


@pytest.mark.parametrize(
    ("other", "usual"),
    [
        (AWQ | {"version": "GEMM"}, AWQ),
        ({key: value for key, value in MODELOPT.items() if key != "quant_method"}, MODELOPT),
        (
            {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "exclude_modules": ["*down_proj"]}},
            MODELOPT | {"ignore": ["*down_proj"]},
        ),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 16, "zero_point": True, "version": "GEMM"}, AWQ),
        (AWQ | {"bits": 4.0, "group_size": 16.0}, AWQ),
        (
            GPTQ | {"bits": 4.0, "group_size": 16.0, "dynamic": {".*down_proj": {"bits": 8.0}}},
            GPTQ | {"dynamic": {".*down_proj": {"bits": 8}}},
        ),
        (ct("pack-quantized", num_bits=4.0, strategy="group", group_size=16.0), ct("pack-quantized", **FOUR)),
        (
            {"quant_method": "fp8", "weight_block_size": [32.0, 16.0]},
            {"quant_method": "fp8", "weight_block_size": [32, 16]},
        ),
    ],
)
def test_other_forms_of_a_format(other: dict[str, Any], usual: dict[str, Any]) -> None:
    """That tools write, and other servers read."""
    found, expected = (ModelConfig.from_hf(tiny_config("qwen2", quantization_config=each)) for each in (other, usual))
    assert found.weight_kinds == expected.weight_kinds
    assert expected.weight_kinds.kind is not None


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        (
            AWQ | {"group_size": 16.5},
            r"^quantization_config\.group_size must be a whole number of at least 1, found 16\.5",
        ),
        (GPTQ | {"bits": 4.5}, r"^quantization_config\.bits must be a whole number"),
        (GPTQ | {"group_size": "16"}, r"^quantization_config\.group_size must be a whole number"),
        (ct("pack-quantized", num_bits=math.inf), r"config_groups\.group_0\.weights\.num_bits must be a whole number"),
        ({"quant_method": "fp8", "weight_block_size": [32.5, 16]}, r"weight_block_size must be two numbers"),
    ],
)
def test_numbers_that_are_not_whole_are_named(quantization: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_hf(tiny_config("qwen2", quantization_config=quantization))


@pytest.mark.parametrize(
    ("pattern", "modules"),
    [
        ("model.layers.1", {"model.layers.1.mlp.down_proj", "model.layers.1.mlp.gate"}),
        ("layers.1", {"model.layers.1.mlp.down_proj", "model.layers.1.mlp.gate"}),
        ("gate", {"model.layers.1.mlp.gate"}),
        ("mlp.gate_proj", {"model.layers.10.mlp.gate_proj"}),
        (
            "model.layers.1*",
            {"model.layers.1.mlp.down_proj", "model.layers.1.mlp.gate", "model.layers.10.mlp.gate_proj"},
        ),
        (r"re:.*layers\.1\.", {"model.layers.1.mlp.down_proj", "model.layers.1.mlp.gate"}),
        ("proj", set()),
        (".", set()),
    ],
)
def test_a_pattern_names_whole_parts(pattern: str, modules: set[str]) -> None:
    names = ["model.layers.1.mlp.down_proj", "model.layers.1.mlp.gate", "model.layers.10.mlp.gate_proj", "lm_head"]
    assert {name for name in names if matches((pattern,), name)} == modules


def test_4_bits_are_too_few_for_tables() -> None:
    kinds = MADE["int4"]
    found = [kinds.of(name) for name in ("layers.3.mlp.down.kernel", "embedding.table", "lm_head.table")]
    assert [kind and kind.name for kind in found] == [
        "int4 W4A16, a scale per 128 inputs",
        "int8 W8A16, a scale per channel",
        "int8 W8A16, a scale per channel",
    ]


def test_kinds_by_module() -> None:
    """The first pattern that names a module; the others are as the first word says."""
    config = ModelConfig.from_hf(tiny_config("qwen2"))
    text = r"int4,lm_head=dense,re:.*layers\.1\.mlp=fp8,down_proj=int8"
    kinds = config.with_quantization(text).weight_kinds
    names = ["layers.0.mlp.gate_up.kernel", "layers.0.mlp.down.kernel", "layers.1.mlp.down.kernel"]
    names += ["layers.1.mlp.gate_up.kernel", "layers.1.attention.qkv.kernel", "embedding.table", "lm_head.table"]
    found = [(kind.storage if (kind := kinds.of(name)) else None) for name in names]
    assert found == ["int4", "int8", "float8_e4m3fn", "float8_e4m3fn", "int4", "int8", None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int4,lm_head", "=lm_head must be MODULE=KIND, with a KIND of int8, "),
        ("int4,lm_head=int3", "lm_head=int3 must be MODULE=KIND"),
        ("int4,re:(=int8", r"re:\( is not a regular expression"),
        ("awq,lm_head=int8", "kinds of modules go with one of int8, .* not awq"),
        ("int4,nothing=int8", "nothing matches no module that can be quantized"),
        ("int4,k_proj=int8", r"q_proj, model\.layers\.0\.self_attn\.k_proj, .* are one projection here"),
    ],
)
def test_wrong_kinds_by_module(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_hf(tiny_config("qwen2")).with_quantization(text)
    with pytest.raises(ConfigError, match="quantized already"):
        ModelConfig.from_hf(tiny_config("qwen2", quantization_config=AWQ)).with_quantization("int4,lm_head=int8")
    assert QuantizationFlag.of("int4,a=b=int8").modules == (("a=b", "int8"),)
