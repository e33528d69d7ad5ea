"""A tiny gpt-oss: config.json, and the parameters of layers other than attention's projections."""

from collections.abc import Mapping
from typing import Any

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt_oss": {  # clamps that bite; sinks, biases of everything, windows by turns
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "intermediate_size": 20,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": 12,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 0.9,
        "attention_bias": True,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 4,
            "beta_slow": 1,
            "truncate": False,
        },
        "pad_token_id": 0,
    },
}


def mlp_and_sinks(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return shapes of sinks, router and experts, whose matrices have their inputs first."""
    D, E, F = config["hidden_size"], config["num_local_experts"], config["intermediate_size"]
    experts = {
        "gate_up_proj": (E, D, 2 * F),
        "gate_up_proj_bias": (E, 2 * F),
        "down_proj": (E, F, D),
        "down_proj_bias": (E, D),
    }
    return {
        "self_attn.sinks": (config["num_attention_heads"],),
        "mlp.router.weight": (E, D),
        "mlp.router.bias": (E,),
        **{f"mlp.experts.{name}": shape for name, shape in experts.items()},
    }
