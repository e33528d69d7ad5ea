"""Tiny models of the families whose layers differ from Llama's: config.json and the tensors of a checkpoint.

Sizes are such that each rule shows: windows and original contexts are shorter than most test prompts, heads are no
divisor of the hidden size, and there are layers of each kind.
"""

from collections.abc import Mapping
from typing import Any

from tests import tiny_gpt_oss, tiny_hybrids, tiny_latent, tiny_others, tiny_relatives

Shapes = dict[str, tuple[int, ...]]

_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.5, 2.0, 3.5, 6.0],
}

CONFIGS: dict[str, dict[str, Any]] = {
    **tiny_hybrids.CONFIGS,
    **tiny_relatives.CONFIGS,
    **tiny_latent.CONFIGS,
    **tiny_gpt_oss.CONFIGS,
    **tiny_others.CONFIGS,
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "query_pre_attn_scalar": 20,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 12,
        "sliding_window_pattern": 3,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "tie_word_embeddings": True,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "num_hidden_layers": 3,
        "head_dim": 16,
        "query_pre_attn_scalar": 20,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 12,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
        "tie_word_embeddings": True,
    },
    "phi3": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "sliding_window": 12,
        "original_max_position_embeddings": 16,
        "rope_scaling": _LONGROPE,
        "pad_token_id": 0,
    },
    "phi4_mini": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "original_max_position_embeddings": 256,  # more than any test's context
        "partial_rotary_factor": 0.75,
        "rope_scaling": {**_LONGROPE, "short_factor": [1.0, 1.3, 1.6], "long_factor": [2.0, 3.0, 4.0]},
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    },
    "olmo2": {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "pad_token_id": 0},
    "olmo3": {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "sliding_window": 12,
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        "pad_token_id": 0,
    },
    "granite": {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "attention_bias": True,
        "mlp_bias": True,
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.6,
        "logits_scaling": 2.5,
    },
    "smollm3": {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "num_hidden_layers": 3,
        "no_rope_layer_interval": 2,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    },
    "cohere": {
        "architectures": ["CohereForCausalLM"],
        "model_type": "cohere",
        "use_qk_norm": True,
        "attention_bias": True,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.4,
        "tie_word_embeddings": True,
    },
    "cohere2": {
        "architectures": ["Cohere2ForCausalLM"],
        "model_type": "cohere2",
        "num_hidden_layers": 3,
        "sliding_window": 12,
        "sliding_window_pattern": 2,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.4,
        "tie_word_embeddings": True,
    },
    "glm4": {
        "architectures": ["Glm4ForCausalLM"],
        "model_type": "glm4",
        "head_dim": 16,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "pad_token_id": 0,
    },
    "glm4_moe": {  # a layer with a plain MLP, then those of experts, in groups
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_hidden_layers": 3,
        "head_dim": 16,
        "use_qk_norm": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
        "pad_token_id": 0,
    },
    "starcoder2": {
        "architectures": ["Starcoder2ForCausalLM"],
        "model_type": "starcoder2",
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": 1e-5,
        "use_bias": True,
        "sliding_window": 12,
        "tie_word_embeddings": True,
    },
}

SEEDS = {
    **tiny_others.SEEDS,
    "olmo2": "6 ",
    "smollm3": "1 ",
    "cohere": "1 ",
    "gemma2": "16 ",
    "gemma3_text": "1 ",
    "starcoder2": "74 ",
    "qwen3_moe": "1 ",
}
"""By model_type: chosen so that greedy tokens do not repeat themselves too soon."""

TABLE_FACTORS = {"gemma2": 0.3, "gemma3_text": 0.3, **tiny_others.TABLE_FACTORS}
"""By model_type, for the same purpose: Gemma multiplies embeddings, and a tied head would favour the token before."""

_BIASED, _UNTIED = {"attention_bias": True}, {"tie_word_embeddings": False}
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    **tiny_others.VARIANTS,
    "gemma3": (_BIASED, _UNTIED),
    "gemma2": (_BIASED, _UNTIED),
    "olmo2": (_BIASED,),
    "olmo3": (_BIASED,),
    "smollm3": ({**_BIASED, "mlp_bias": True}, _UNTIED),
    "cohere": (_UNTIED,),
    "cohere2": (_BIASED, _UNTIED),
    "starcoder2": (_UNTIED,),
    "deepseek_v3": ({"q_lora_rank": None},),
    "glm4_moe_lite": (_BIASED, {"q_lora_rank": None}),
}
"""Keys of config.json with which a family has tensors that it has not as above."""

_MLP_BIAS = {"gate_up.bias", "down.bias"}
_LLAMA_ONLY = {*_MLP_BIAS, "qkv.bias", "output.bias", "query_norm.scale", "key_norm.scale"}
UNUSED_RULES = {
    **tiny_hybrids.UNUSED_RULES,
    **tiny_others.UNUSED_RULES,
    "Gemma3ForCausalLM": _MLP_BIAS,
    "Gemma2ForCausalLM": _MLP_BIAS,
    "Phi3ForCausalLM": {"output.bias", "down.bias"},
    "Olmo2ForCausalLM": _MLP_BIAS,
    "Olmo3ForCausalLM": _MLP_BIAS,
    "GraniteForCausalLM": {"query_norm.scale", "key_norm.scale"},
    "GraniteMoeForCausalLM": {"query_norm.scale", "key_norm.scale"},
    "MiniMaxM2ForCausalLM": {"qkv.bias", "output.bias"},
    "MinistralForCausalLM": _LLAMA_ONLY,
    "Ministral3ForCausalLM": _LLAMA_ONLY,
    "InternLM3ForCausalLM": {"query_norm.scale", "key_norm.scale"},
    "SmolLM3ForCausalLM": {"query_norm.scale", "key_norm.scale"},
    "CohereForCausalLM": _MLP_BIAS,
    "Cohere2ForCausalLM": {*_MLP_BIAS, "query_norm.scale", "key_norm.scale"},
    "Glm4ForCausalLM": {"output.bias", "down.bias"},
    "Glm4MoeForCausalLM": {*_MLP_BIAS, "output.bias"},
    "DeepseekV2ForCausalLM": {*_MLP_BIAS, "router_bias"},
    "DeepseekV3ForCausalLM": _MLP_BIAS,
    "Glm4MoeLiteForCausalLM": _MLP_BIAS,
    "Mistral4ForCausalLM": {*_MLP_BIAS, "router_bias", "query.kernel"},
}
"""Parameters that no model of an architecture has, though a rule names them: weight tables are shared."""

_NORM_BIAS = ("starcoder2", "nemotron")
_NO_OUTPUT_BIAS = ("glm4", "glm4_moe")


def weight_shapes(config: Mapping[str, Any]) -> Shapes:
    """Every tensor's name and shape, of one of the families above."""
    D, V, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    shapes: Shapes = {"model.embed_tokens.weight": (V, D), "model.norm.weight": (D,)}
    types = config.get("mlp_layer_types") or ["sparse"] * layers
    if config["model_type"] in _NORM_BIAS:
        shapes["model.norm.bias"] = (D,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (V, D)
    layer = _attention(config) | _norms(config)
    for i in range(layers):
        is_sparse = "n_routed_experts" in config and i >= config.get("first_k_dense_replace", 0)
        mlp = _experts(config) if is_sparse and types[i] == "sparse" else _mlp(config)
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in (layer | mlp).items()}
    return shapes


def _latent_attention(config: Mapping[str, Any]) -> Shapes:
    D, N, L, R = (config[key] for key in ("hidden_size", "num_attention_heads", "kv_lora_rank", "qk_rope_head_dim"))
    plain, value, rank = config["qk_nope_head_dim"], config["v_head_dim"], config["q_lora_rank"]
    down = {"kv_a_proj_with_mqa": (L + R, D), "o_proj": (D, N * value)}
    shapes: Shapes = {"self_attn.kv_a_layernorm.weight": (L,), "self_attn.kv_b_proj.weight": (N * (plain + value), L)}
    if rank is None:
        shapes["self_attn.q_proj.weight"] = (N * (plain + R), D)
    else:
        down["q_a_proj"] = (rank, D)
        shapes |= {"self_attn.q_a_layernorm.weight": (rank,), "self_attn.q_b_proj.weight": (N * (plain + R), rank)}
    return shapes | _biased("self_attn.", down, config.get("attention_bias", False))


def _attention(config: Mapping[str, Any]) -> Shapes:
    if "kv_lora_rank" in config:
        return _latent_attention(config)
    D, N, K = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    H = config.get("head_dim") or D // N
    kind = config["model_type"]
    has_bias = any(config.get(key, False) for key in ("attention_bias", "use_bias", "qkv_bias", "use_qkv_bias"))
    if kind == "phi3":
        return {"self_attn.qkv_proj.weight": ((N + 2 * K) * H, D), "self_attn.o_proj.weight": (D, N * H)}
    shapes = _biased("self_attn.", {"q_proj": (N * H, D), "k_proj": (K * H, D), "v_proj": (K * H, D)}, has_bias)
    shapes |= _biased("self_attn.", {"o_proj": (D, N * H)}, has_bias and kind not in _NO_OUTPUT_BIAS)
    by_kind: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "gemma3_text": ((H,), (H,)),
        "olmo2": ((N * H,), (K * H,)),
        "olmo3": ((N * H,), (K * H,)),
        "minimax_m2": ((N * H,), (K * H,)),
        "glm4_moe": ((H,), (H,)),
    }
    if config.get("use_qk_norm", False):
        by_kind["cohere"] = (N, H), (K, H)
    if kind in by_kind:
        shapes["self_attn.q_norm.weight"], shapes["self_attn.k_norm.weight"] = by_kind[kind]
    return shapes


def _mlp(config: Mapping[str, Any]) -> Shapes:
    D, F, kind = config["hidden_size"], config["intermediate_size"], config["model_type"]
    if kind == "gpt_oss":
        return tiny_gpt_oss.mlp_and_sinks(config)
    if kind == "starcoder2":
        return _biased("mlp.", {"c_fc": (F, D), "c_proj": (D, F)}, config["use_bias"])
    if kind == "nemotron":
        return _biased("mlp.", {"up_proj": (F, D), "down_proj": (D, F)}, config["mlp_bias"])
    if kind == "granitemoe":
        E, part = config["num_local_experts"], "block_sparse_moe."
        return {
            f"{part}router.layer.weight": (E, D),
            f"{part}input_linear.weight": (E, 2 * F, D),
            f"{part}output_linear.weight": (E, D, F),
        }
    if kind == "minimax_m2":
        E, part = config["num_local_experts"], "block_sparse_moe."
        shapes: Shapes = {f"{part}gate.weight": (E, D), f"{part}e_score_correction_bias": (E,)}
        for name, shape in {"w1": (F, D), "w2": (D, F), "w3": (F, D)}.items():
            shapes |= {f"{part}experts.{number}.{name}.weight": shape for number in range(E)}
        return shapes
    if kind in ("phi3", "glm4"):
        return {"mlp.gate_up_proj.weight": (2 * F, D), "mlp.down_proj.weight": (D, F)}
    projections = {"gate_proj": (F, D), "up_proj": (F, D), "down_proj": (D, F)}
    return _biased("mlp.", projections, config.get("mlp_bias", config.get("bias", False)))


def _experts(config: Mapping[str, Any]) -> Shapes:
    D, E, F = config["hidden_size"], config["n_routed_experts"], config["moe_intermediate_size"]
    sizes = {f"experts.{number}": F for number in range(E)} | {"shared_experts": F * config["n_shared_experts"]}
    shapes: Shapes = {"mlp.gate.weight": (E, D)}
    if config["model_type"] not in ("deepseek_v2", "mistral4"):
        shapes["mlp.gate.e_score_correction_bias"] = (E,)
    for name, size in sizes.items():
        shapes |= {f"mlp.{name}.{part}_proj.weight": (size, D) for part in ("gate", "up")}
        shapes[f"mlp.{name}.down_proj.weight"] = (D, size)
    return shapes


def _norms(config: Mapping[str, Any]) -> Shapes:
    kind, before, middle = config["model_type"], "input_layernorm", "post_attention_layernorm"
    names = {
        "cohere": (before,),
        "cohere2": (before,),
        "olmo2": (middle, "post_feedforward_layernorm"),
        "olmo3": (middle, "post_feedforward_layernorm"),
        "glm4": (before, middle, "post_self_attn_layernorm", "post_mlp_layernorm"),
        "gemma2": (before, middle, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        "gemma3_text": (before, middle, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    }
    shapes: Shapes = {f"{name}.weight": (config["hidden_size"],) for name in names.get(kind, (before, middle))}
    return shapes | {f"{name}.bias": (config["hidden_size"],) for name in (before, middle) if kind in _NORM_BIAS}


def _biased(part: str, projections: Mapping[str, tuple[int, ...]], has_bias: bool) -> Shapes:
    shapes: Shapes = {f"{part}{name}.weight": shape for name, shape in projections.items()}
    return shapes | {f"{part}{name}.bias": shape[:1] for name, shape in projections.items() if has_bias}
