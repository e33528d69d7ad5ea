"""Tiny models of families that differ little from others: config.json. For sizes see tests/tiny_families.py."""

from collections.abc import Mapping
from typing import Any

REPACKED: dict[str, dict[str, Any]] = {
    "internlm2": {
        "architectures": ["InternLM2ForCausalLM"],
        "model_type": "internlm2",
        "bias": True,
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
    },
    "mistral4": {
        "architectures": ["Mistral4ForCausalLM"],
        "model_type": "mistral4",
        "num_key_value_heads": 6,
        "q_lora_rank": 20,
        "kv_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 12,
        "v_head_dim": 10,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.7,
        "first_k_dense_replace": 1,
        "attention_bias": True,
        "rope_theta": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 4.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.7,
        },
    },
}
"""Families that transformers has no class for, or none that its automatic classes know: Llama in other tensors, and the
text model of Mistral Small 4."""

CONFIGS: dict[str, dict[str, Any]] = {
    "granitemoe": {
        "architectures": ["GraniteMoeForCausalLM"],
        "model_type": "granitemoe",
        "intermediate_size": 28,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "attention_bias": True,
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.6,
        "logits_scaling": 2.5,
    },
    "minimax_m2": {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "intermediate_size": 20,
        "head_dim": 16,
        "rotary_dim": 8,
        "num_local_experts": 12,
        "num_experts_per_tok": 3,
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
    },
    "ministral": {
        "architectures": ["MinistralForCausalLM"],
        "model_type": "ministral",
        "num_hidden_layers": 3,
        "head_dim": 16,
        "sliding_window": 12,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "ministral3": {
        "architectures": ["Ministral3ForCausalLM"],
        "model_type": "ministral3",
        "head_dim": 16,
        "rope_theta": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 4.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.7,
        },
    },
    "nemotron": {
        "architectures": ["NemotronForCausalLM"],
        "model_type": "nemotron",
        "hidden_act": "relu2",
        "norm_eps": 1e-4,
        "head_dim": 16,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "internlm3": {
        "architectures": ["InternLM3ForCausalLM"],
        "model_type": "internlm3",
        "head_dim": 16,
        "qkv_bias": True,
        "bias": True,
        "rope_scaling": {"rope_type": "dynamic", "factor": 6.0},
    },
}


def internlm2_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor's name and shape."""
    D, V, F = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    N, K = config["num_attention_heads"], config["num_key_value_heads"]
    H = D // N
    shapes: dict[str, tuple[int, ...]] = {"model.tok_embeddings.weight": (V, D), "model.norm.weight": (D,)}
    layer = {
        "attention.wqkv": ((N + 2 * K) * H, D),
        "attention.wo": (D, N * H),
        "feed_forward.w1": (F, D),
        "feed_forward.w2": (D, F),
        "feed_forward.w3": (F, D),
        "attention_norm": (D,),
        "ffn_norm": (D,),
    }
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
        biased = ("attention.wqkv", "attention.wo") if config["bias"] else ()
        shapes |= {f"model.layers.{number}.{name}.bias": layer[name][:1] for name in biased}
    return shapes | {"output.weight": (V, D)}
