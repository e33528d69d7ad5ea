"""Random checkpoints of real models' shapes, written with NumPy alone, for measuring without a download."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from palladio.flags.default_model import default_model_path

HALF_BILLION: dict[str, Any] = {  # Qwen2.5-0.5B's shape
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
}
GEMMA3_4B: dict[str, Any] = {  # the text model
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "vocab_size": 262208,
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 1024,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}

DEEPSEEK_V3: dict[str, Any] = {  # without quantization_config
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "first_k_dense_replace": 3,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V2_LITE: dict[str, Any] = DEEPSEEK_V3 | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "first_k_dense_replace": 1,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
    },
}

QWEN3_30B: dict[str, Any] = {  # Qwen3-30B-A3B's shape
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 151645,
}
GPT_OSS_20B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "rope_theta": 150000.0,
    "torch_dtype": "bfloat16",
    "eos_token_id": 200002,
}
GPT_OSS_120B = GPT_OSS_20B | {"num_hidden_layers": 36, "num_local_experts": 128}
QWEN3_NEXT_80B: dict[str, Any] = {  # Qwen3-Next-80B-A3B's shape
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "eos_token_id": 151645,
    "torch_dtype": "bfloat16",
}


def make_checkpoint(name: str, folder: Path) -> Path:
    """The checkpoint called "tiny" (the embedded default model) or "0.5b", under `folder`, made if not there."""
    if name == "tiny":
        return default_model_path()
    path = folder / "models" / f"random-{name}"
    if (path / "model.safetensors").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(path, HALF_BILLION["vocab_size"])
    default = json.loads((default_model_path() / "config.json").read_text())
    ids = {key: default[key] for key in ("bos_token_id", "eos_token_id")}  # of its tokenizer, which this one extends
    (path / "config.json").write_text(json.dumps(HALF_BILLION | ids, indent=2) + "\n")
    (path / "generation_config.json").write_text(json.dumps(ids | {"pad_token_id": ids["bos_token_id"]}) + "\n")
    draft = path / "model.safetensors.part"
    save_file(_weights(HALF_BILLION), draft, metadata={"format": "pt"})
    draft.rename(path / "model.safetensors")
    return path


def _write_tokenizer(path: Path, vocab_size: int) -> None:
    """The default tokenizer, with made-up words for the other ids so that each of them has a text."""
    default = default_model_path()
    tokenizer = json.loads((default / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    used = set(vocab.values()) | {token["id"] for token in tokenizer["added_tokens"]}
    vocab.update({f"Ġw{number}": number for number in range(vocab_size) if number not in used})
    (path / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (path / name).write_text((default / name).read_text(encoding="utf-8"), encoding="utf-8")


def _weights(config: dict[str, Any]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    width, ffw = config["hidden_size"], config["intermediate_size"]
    keys = width // config["num_attention_heads"] * config["num_key_value_heads"]

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape, dtype=np.float32) * 0.02).astype(ml_dtypes.bfloat16)

    def ones() -> np.ndarray:
        return np.ones(width, ml_dtypes.bfloat16)

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], width), "model.norm.weight": ones()}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", keys, width),
            ("self_attn.v_proj", keys, width),
            ("self_attn.o_proj", width, width),
            ("mlp.gate_proj", ffw, width),
            ("mlp.up_proj", ffw, width),
            ("mlp.down_proj", width, ffw),
        ):
            tensors[f"{prefix}{name}.weight"] = matrix(rows, columns)
            if name[:11] in ("self_attn.q", "self_attn.k", "self_attn.v"):
                tensors[f"{prefix}{name}.bias"] = matrix(rows)
        tensors |= {f"{prefix}input_layernorm.weight": ones(), f"{prefix}post_attention_layernorm.weight": ones()}
    return tensors
