"""Tiny checkpoints in Hugging Face's format, made by numpy alone: the same bytes anywhere, with or without torch.

`make_checkpoint(directory, "qwen2")` writes config.json, generation_config.json and model.safetensors. transformers
itself loads them (tests/model/hf_oracle.py), so they are what a real checkpoint of the family is.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tests import tiny_families, tiny_hybrids, tiny_others, tiny_relatives

VOCAB_SIZE = 384

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen2_tied": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2_yarn": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    },
    "qwen2_windowed": {  # the upper layer only
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 12,
        "max_window_layers": 1,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32, "attention_bias": False},
    "llama3": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "llama_biased": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "num_key_value_heads": 1,
        "sliding_window": 12,  # less than most test prompts
    },
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": 8,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "norm_topk_prob": True,
    },
    "qwen2_moe": {  # a layer with a plain MLP, then one of experts
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 28,
        "shared_expert_intermediate_size": 36,
        "decoder_sparse_step": 2,
        "norm_topk_prob": False,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 36,
        "sliding_window": 12,
    },
    **tiny_families.CONFIGS,
}


def make_checkpoint(directory: Path, family: str, **overrides: Any) -> Path:
    """Writes a tiny float32 checkpoint; `overrides` replace keys of config.json. Returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    config = tiny_config(family, **overrides)
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", {"eos_token_id": [2, 1], "temperature": 0.7})
    save_file(tiny_weights(config), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def tiny_config(family: str, **overrides: Any) -> dict[str, Any]:
    """Return the content of config.json."""
    return {**_COMMON, **(FAMILIES | tiny_relatives.REPACKED | tiny_others.REPACKED)[family], **overrides}


def tiny_weights(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Random float32 weights under the names of Hugging Face, each a function of its name and shape."""
    seed = tiny_families.SEEDS.get(config["model_type"], "")
    weights = {name: random_weight(f"{seed}{name}", shape) for name, shape in weight_shapes(config).items()}
    if config["model_type"] in tiny_hybrids.HYBRIDS:
        tiny_hybrids.calm(weights)
    if config["model_type"] in tiny_families.TABLE_FACTORS:
        name = next(name for name in weights if name.endswith(("embed_tokens.weight", "wte.weight", "embed_in.weight")))
        weights[name] *= np.float32(tiny_families.TABLE_FACTORS[config["model_type"]])
    return weights


def weight_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor's name and shape."""
    if config["model_type"] == "internlm2":
        return tiny_relatives.internlm2_shapes(config)
    if config["model_type"] in tiny_hybrids.HYBRIDS:
        return tiny_hybrids.weight_shapes(config)
    if config["model_type"] in tiny_others.MODEL_TYPES:
        return tiny_others.weight_shapes(config)
    of_families = [other["architectures"] for other in tiny_families.CONFIGS.values()]
    if config["model_type"] == "mistral4" or config["architectures"] in of_families:
        return tiny_families.weight_shapes(config)
    D, V = config["hidden_size"], config["vocab_size"]
    N, K = config["num_attention_heads"], config["num_key_value_heads"]
    H = config.get("head_dim") or D // N
    kind = config["model_type"]
    qkv_bias = config.get("qkv_bias", kind.startswith("qwen2")) or config.get("attention_bias", False)
    layer: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (D,), "post_attention_layernorm.weight": (D,)}
    for name, (rows, columns), bias in (
        ("self_attn.q_proj", (N * H, D), qkv_bias),
        ("self_attn.k_proj", (K * H, D), qkv_bias),
        ("self_attn.v_proj", (K * H, D), qkv_bias),
        ("self_attn.o_proj", (D, N * H), config.get("attention_bias", False)),
    ):
        layer[f"{name}.weight"] = (rows, columns)
        if bias:
            layer[f"{name}.bias"] = (rows,)
    if kind.startswith("qwen3"):
        layer |= {"self_attn.q_norm.weight": (H,), "self_attn.k_norm.weight": (H,)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, D)}
    for number in range(config["num_hidden_layers"]):
        both = layer | _mlp_shapes(config, number)
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in both.items()}
    shapes["model.norm.weight"] = (D,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (V, D)
    return shapes


def _mlp_shapes(config: Mapping[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
    """Return shapes of a layer's MLP, or of its experts, by the names of published checkpoints."""
    D, F, kind = config["hidden_size"], config["intermediate_size"], config["model_type"]
    E, small = config.get("num_experts", 0), config.get("moe_intermediate_size", 0)
    shapes: dict[str, tuple[int, ...]] = {}
    if kind == "mixtral":
        for number in range(config["num_local_experts"]):
            name = f"block_sparse_moe.experts.{number}"
            shapes |= {f"{name}.w1.weight": (F, D), f"{name}.w2.weight": (D, F), f"{name}.w3.weight": (F, D)}
        return shapes | {"block_sparse_moe.gate.weight": (config["num_local_experts"], D)}
    is_sparse = E > 0 and (layer + 1) % config.get("decoder_sparse_step", 1) == 0
    if not is_sparse or layer in config.get("mlp_only_layers", ()):
        for name, shape in {"gate_proj": (F, D), "up_proj": (F, D), "down_proj": (D, F)}.items():
            shapes[f"mlp.{name}.weight"] = shape
            if config.get("mlp_bias", False):
                shapes[f"mlp.{name}.bias"] = shape[:1]
        return shapes
    sizes = {f"mlp.experts.{number}": small for number in range(E)}
    if kind == "qwen2_moe":
        sizes["mlp.shared_expert"] = config["shared_expert_intermediate_size"]
        shapes["mlp.shared_expert_gate.weight"] = (1, D)
    for name, size in sizes.items():
        shapes |= {f"{name}.{part}_proj.weight": (size, D) for part in ("gate", "up")}
        shapes[f"{name}.down_proj.weight"] = (D, size)
    return shapes | {"mlp.gate.weight": (E, D)}


def to_bfloat16(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value.astype(ml_dtypes.bfloat16) for name, value in weights.items()}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def random_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return random values that depend on nothing else."""
    # RandomState, not default_rng: its stream is frozen, and the goldens depend on it.
    rng = np.random.RandomState(zlib.crc32(name.encode()))
    values = rng.standard_normal(shape)
    if not shape:
        values *= 0.5
    elif name.endswith("wpe.weight"):  # large: else each token would follow from the one before it alone
        values *= 6.0
    elif name.endswith("norm.weight") or ".ln_" in name:  # of Gemma too, which adds 1 to it
        values = 1.0 + 0.2 * values
    elif name.endswith(".bias"):
        values *= 0.2
    else:  # lively: every layer moves the logits. GPT-2 stores the inputs first
        values *= 1.5 * (shape[0] if ".h." in name else shape[-1]) ** -0.5
    return values.astype(np.float32)
