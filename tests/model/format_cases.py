"""Tiny checkpoints in each format of quantized ones: how each is made, what config.json says, and the kind."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.model import quantized_checkpoints as stored
from tests.model.safetensors_writer import write_safetensors
from tests.tiny_model import make_checkpoint

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False, "desc_act": False}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None, "ignore": ["lm_head"]}
FP8 = {"quant_method": "fp8", "activation_scheme": "static"}


def ct(form: str, **weights: Any) -> dict[str, Any]:
    """quantization_config of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": {"type": "int", "symmetric": True, **weights}}
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
    return {**config, "ignore": ["lm_head"]}


FLOAT = {"num_bits": 8, "type": "float"}
FOUR = {"num_bits": 4, "strategy": "group", "group_size": 16}
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "awq": (stored.awq, AWQ, "int4 W4A16, a scale per 16 inputs and zero points"),
    "gptq": (stored.gptq, GPTQ, "int4 W4A16, a scale per 16 inputs and zero points"),
    "gptq v2": (
        functools.partial(stored.gptq, less=0),
        GPTQ | {"checkpoint_format": "gptq_v2"},
        "int4 W4A16, a scale per 16 inputs and zero points",
    ),
    "gptq with a short group": (
        functools.partial(stored.gptq, group=64),
        GPTQ | {"group_size": 64},
        "int4 W4A16, a scale per 64 inputs and zero points",
    ),
    "gptq 8 bits by channel": (
        functools.partial(stored.gptq, bits=8, group=None, sym=True),
        GPTQ | {"bits": 8, "group_size": -1, "sym": True},
        "int8 W8A16, a scale per channel",
    ),
    "gptq 8 bits with zeros": (
        functools.partial(stored.gptq, bits=8),
        GPTQ | {"bits": 8},
        "int8 W8A16, a scale per 16 inputs and zero points",
    ),
    "gptq act order": (functools.partial(stored.gptq, order=True), GPTQ | {"desc_act": True}, "float32"),
    "ct 4 bits": (stored.ct_packed, ct("pack-quantized", **FOUR), "int4 W4A16, a scale per 16 inputs"),
    "ct 4 bits with zeros": (
        functools.partial(stored.ct_packed, sym=False),
        ct("pack-quantized", **FOUR | {"symmetric": False}),
        "int4 W4A16, a scale per 16 inputs and zero points",
    ),
    "ct 4 bits by channel, with zeros": (
        functools.partial(stored.ct_packed, group=None, sym=False),
        ct("pack-quantized", num_bits=4, strategy="channel", symmetric=False),
        "int4 W4A16, a scale per channel and zero points",
    ),
    "ct act order": (
        functools.partial(stored.ct_packed, sym=False, order=True),
        ct("pack-quantized", **FOUR | {"symmetric": False, "actorder": "group"}),
        "float32",
    ),
    "ct 8 bits packed": (
        functools.partial(stored.ct_packed, bits=8, group=None),
        ct("pack-quantized", num_bits=8, strategy="channel"),
        "int8 W8A16, a scale per channel",
    ),
    "ct int8": (
        stored.ct_int8,
        ct("int-quantized", num_bits=8, strategy="channel", symmetric=False),
        "int8 W8A16, a scale per channel and zero points",
    ),
    "ct 4 bits in bytes": (
        functools.partial(stored.ct_int8, bits=4),
        ct("int-quantized", num_bits=4, strategy="channel", symmetric=False),
        "int4 W4A16, a scale per channel and zero points",
    ),
    "ct float8 by tensor": (
        functools.partial(stored.float8, form="tensor", static=True),
        ct("float-quantized", **FLOAT, strategy="tensor"),
        "fp8 W8A16, a scale per channel",
    ),
    "ct float8": (stored.float8, ct("float-quantized", **FLOAT, strategy="channel"), "fp8 W8A16, a scale per channel"),
    "ct float8 in blocks": (
        functools.partial(stored.float8, form="block"),
        ct("float-quantized", **FLOAT, strategy="block", block_structure=[32, 16]),
        "fp8 W8A16, a scale per 16 inputs",
    ),
    "modelopt": (
        functools.partial(stored.float8, form="tensor", static=True),
        MODELOPT,
        "fp8 W8A16, a scale per channel",
    ),
    "fp8 with static activations": (
        functools.partial(stored.float8, form="tensor", static=True),
        FP8,
        "fp8 W8A16, a scale per channel",
    ),
}


def checkpoint(path: Path, case: str, family: str = "qwen2", **overrides: Any) -> Path:
    make, quantization, _ = CASES[case]
    return stored.rewrite(
        make_checkpoint(path, family, **overrides), lambda name, rng, shape: make(rng, shape), quantization
    )


STACKED: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "mxfp4": (stored.mxfp4, {"quant_method": "mxfp4"}, "fp4 W4A16, a scale per 32 inputs"),
    "float8 by tensor": (
        functools.partial(stored.float8, form="tensor"),
        {"quant_method": "fp8"},
        "fp8 W8A16, a scale per channel",
    ),
    "float8 in blocks": (
        functools.partial(stored.float8, form="block"),
        {"quant_method": "fp8", "weight_block_size": [32, 16]},
        "fp8 W8A16, a scale per 16 inputs",
    ),
}


def stacked_checkpoint(path: Path, case: str, **overrides: Any) -> Path:
    """With the experts of a layer in one tensor, and only they quantized. Args: overrides: of mxfp4, whose model is a
    gpt-oss."""
    make, quantization, _ = STACKED[case]
    if case == "mxfp4":
        return gpt_oss_checkpoint(path, **overrides)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_experts": 4, "moe_intermediate_size": 32}
    tensors = load_file(make_checkpoint(path, "qwen3_moe", **sizes) / stored.FILE)
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."

        def taken(part: str, prefix: str = prefix) -> np.ndarray:
            return np.stack([tensors.pop(f"{prefix}{expert}.{part}_proj.weight") for expert in range(4)])

        tensors[f"{prefix}gate_up_proj"] = np.concatenate([taken("gate"), taken("up")], axis=1)
        tensors[f"{prefix}down_proj"] = taken("down")
    write_safetensors(path / stored.FILE, tensors)

    def suffixed(name: str, rng: np.random.Generator, shape: tuple[int, ...]) -> stored.Stored:
        made, wide = stored.experts_of(make, rng, shape)
        return {end.replace("weight", ""): tensor for end, tensor in made.items()}, wide

    return stored.rewrite(path, suffixed, quantization, lambda name: ".experts." in name)


def gpt_oss_checkpoint(path: Path, **overrides: Any) -> Path:
    """Make a checkpoint as published: 4-bit matrices have their outputs first, plain ones their inputs."""
    make, quantization, _ = STACKED["mxfp4"]
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 32, "num_local_experts": 4}

    def quantized(name: str, rng: np.random.Generator, shape: tuple[int, ...]) -> stored.Stored:
        E, size, out = shape
        made, wide = stored.experts_of(make, rng, (E, out, size))
        return made, wide.swapaxes(1, 2)

    make_checkpoint(path, "gpt_oss", **sizes | overrides)
    return stored.rewrite(
        path, quantized, quantization, lambda name: name.endswith((".experts.gate_up_proj", ".experts.down_proj"))
    )
