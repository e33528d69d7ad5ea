"""Tiny models of families in which some layers keep states; see tiny_families."""

from collections.abc import Mapping
from typing import Any

Shapes = dict[str, tuple[int, ...]]

_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 10,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}

UNUSED_RULES = {
    "Qwen3NextForCausalLM": {"gate_up.bias", "down.bias"},
    "Qwen3_5ForCausalLM": {"gate_up.bias", "down.bias", "router", "gate", "up", "down"}
    | {"shared.gate_up", "shared.down", "shared.gate"},
    "Qwen3_5MoeForCausalLM": {"gate_up.bias", "down.bias", "gate_up.kernel", "down.kernel"},
}

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_next": {  # three layers with states, of which the second has no experts, and one with attention
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        **_DELTA,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
        "attention_bias": False,
        "pad_token_id": 0,
    },
    "qwen3_5": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        **_DELTA,
        "attention_bias": False,
        "pad_token_id": 0,
    },
    "qwen3_5_moe": {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        **_DELTA,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
        "attention_bias": False,
        "pad_token_id": 0,
    },
}

HYBRIDS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""By model_type: see `calm`."""


def calm(weights: dict[str, Any]) -> None:
    """Changes random weights of a model whose layers keep states such that float32 tells right from wrong: what heads
    recall is normalized, however little it is. So scales of norms (to which 1 is added) are around 0, queries and keys
    are further apart from right angles, and logits no larger than those of other families."""
    for name in weights:
        if name.endswith("norm.weight") and "linear_attn" not in name:
            weights[name] -= 1
        elif "conv1d" in name:
            weights[name] *= 2
        elif name == "lm_head.weight":
            weights[name] /= 2


def weight_shapes(config: Mapping[str, Any]) -> Shapes:
    """Every tensor's name and shape."""
    D, V = config["hidden_size"], config["vocab_size"]
    shapes: Shapes = {
        "model.embed_tokens.weight": (V, D),
        "model.norm.weight": (D,),
        "lm_head.weight": (V, D),
    }
    for i in range(config["num_hidden_layers"]):
        layer = _delta_net(config) if (i + 1) % config.get("full_attention_interval", 4) else _attention(config)
        is_sparse = "num_experts" in config and i not in config.get("mlp_only_layers", ())
        layer |= _experts(config) if is_sparse else _mlp("mlp.", D, config["intermediate_size"])
        layer |= {"input_layernorm.weight": (D,), "post_attention_layernorm.weight": (D,)}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _attention(config: Mapping[str, Any]) -> Shapes:
    D, N, K, H = (config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    shapes: Shapes = {
        "q_proj.weight": (2 * N * H, D),
        "k_proj.weight": (K * H, D),
        "v_proj.weight": (K * H, D),
        "o_proj.weight": (D, N * H),
        "q_norm.weight": (H,),
        "k_norm.weight": (H,),
    }
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def _mlp(part: str, D: int, F: int) -> Shapes:
    return {f"{part}{name}_proj.weight": (D, F) if name == "down" else (F, D) for name in ("gate", "up", "down")}


def _experts(config: Mapping[str, Any]) -> Shapes:
    D, E, F = config["hidden_size"], config["num_experts"], config["moe_intermediate_size"]
    shapes: Shapes = {"mlp.gate.weight": (E, D), "mlp.shared_expert_gate.weight": (1, D)}
    for number in range(E):
        shapes |= _mlp(f"mlp.experts.{number}.", D, F)
    return shapes | _mlp("mlp.shared_expert.", D, config["shared_expert_intermediate_size"])


def _delta_net(config: Mapping[str, Any]) -> Shapes:
    D, dk, dv = config["hidden_size"], config["linear_key_head_dim"], config["linear_value_head_dim"]
    K, N = config["linear_num_key_heads"], config["linear_num_value_heads"]
    shapes: Shapes = {
        "conv1d.weight": (2 * K * dk + N * dv, 1, config["linear_conv_kernel_dim"]),
        "A_log": (N,),
        "dt_bias": (N,),
        "norm.weight": (dv,),
        "out_proj.weight": (D, N * dv),
    }
    if config["model_type"] == "qwen3_next":
        shapes |= {"in_proj_qkvz.weight": (2 * K * dk + 2 * N * dv, D), "in_proj_ba.weight": (2 * N, D)}
    else:
        shapes |= {"in_proj_qkv.weight": (2 * K * dk + N * dv, D), "in_proj_z.weight": (N * dv, D)}
        shapes |= {"in_proj_b.weight": (N, D), "in_proj_a.weight": (N, D)}
    return {f"linear_attn.{name}": shape for name, shape in shapes.items()}
