"""Tiny models of further dense families, and of one mixture: config.json and tensors. For sizes see
tests/tiny_families.py."""

from collections.abc import Callable, Mapping
from typing import Any

Shapes = dict[str, tuple[int, ...]]

CONFIGS: dict[str, dict[str, Any]] = {
    "seed_oss": {
        "architectures": ["SeedOssForCausalLM"],
        "model_type": "seed_oss",
        "head_dim": 16,
        "attention_bias": True,
        "attention_out_bias": False,
        "mlp_bias": False,
        "pad_token_id": 0,
    },
    "ernie4_5": {
        "architectures": ["Ernie4_5ForCausalLM"],
        "model_type": "ernie4_5",
        "head_dim": 16,
        "use_bias": True,
        "pad_token_id": 0,
    },
    "ernie4_5_moe": {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "model_type": "ernie4_5_moe",
        "num_hidden_layers": 3,
        "moe_num_experts": 8,
        "moe_k": 3,
        "moe_intermediate_size": 20,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 1,
        "moe_layer_interval": 1,
        "use_bias": False,
        "pad_token_id": 0,
    },
    "hunyuan": {
        "architectures": ["HunYuanDenseV1ForCausalLM"],
        "model_type": "hunyuan_v1_dense",
        "head_dim": 16,
        "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1},
        "pad_token_id": 0,
    },
    "exaone4": {
        "architectures": ["Exaone4ForCausalLM"],
        "model_type": "exaone4",
        "num_hidden_layers": 3,
        "sliding_window": 12,
        "sliding_window_pattern": 3,
    },
    "glm": {
        "architectures": ["GlmForCausalLM"],
        "model_type": "glm",
        "head_dim": 16,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "pad_token_id": 0,
    },
    "olmoe": {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "intermediate_size": 20,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
        "pad_token_id": 0,
    },
    "apertus": {
        "architectures": ["ApertusForCausalLM"],
        "model_type": "apertus",
        "hidden_act": "xielu",
        "rope_theta": None,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "pad_token_id": 0,
    },
    "arcee": {
        "architectures": ["ArceeForCausalLM"],
        "model_type": "arcee",
        "hidden_act": "relu2",
        "attention_bias": True,
        "mlp_bias": True,
    },
    "gemma": {
        "architectures": ["GemmaForCausalLM"],
        "model_type": "gemma",
        "head_dim": 16,
        "hidden_act": "gelu",  # which stands for the approximation by tanh, in this family
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    },
    "stablelm": {
        "architectures": ["StableLmForCausalLM"],
        "model_type": "stablelm",
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "use_qkv_bias": True,
    },
    "gpt_neox": {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "rotary_pct": 0.5,
        "rotary_emb_base": 5000,
        "use_parallel_residual": True,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_inner": 80,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    },
    "phi": {
        "architectures": ["PhiForCausalLM"],
        "model_type": "phi",
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
    },
}

REPACKED: dict[str, dict[str, Any]] = {
    "mimo": {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
    }
}
"""Families that transformers has no class for: MiMo is Qwen 2 with more tensors."""

MODEL_TYPES = frozenset(config["model_type"] for config in (CONFIGS | REPACKED).values())

SEEDS = {
    "gpt2": "1 ",
    "phi": "13 ",
    "gpt_neox": "32 ",
    "stablelm": "1 ",
    "exaone4": "1 ",
    "olmoe": "5 ",
    "apertus": "2 ",
}
TABLE_FACTORS = {
    **dict.fromkeys(("gemma", "arcee", "stablelm", "gpt_neox", "gpt2", "phi", "exaone4", "olmoe", "apertus"), 0.3)
}

_BIASED, _UNTIED = {"attention_bias": True}, {"tie_word_embeddings": False}
VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "seed_oss": ({"attention_out_bias": True, "mlp_bias": True},),
    "hunyuan": (_BIASED, {"rope_scaling": None}),
    "exaone4": ({"sliding_window": None, "layer_types": ["full_attention"] * 3},),
    "olmoe": (_BIASED, {"norm_topk_prob": True}),
    "apertus": (_BIASED, {"hidden_act": "relu2"}),
    "gemma": ({**_BIASED, **_UNTIED, "hidden_act": "relu"},),
    "stablelm": ({"use_parallel_residual": True},),
    "gpt_neox": ({"attention_bias": False, "use_parallel_residual": False},),
    "gpt2": (_UNTIED, {"scale_attn_weights": False}),
    "phi": ({"qk_layernorm": True},),
}

_MLP_BIAS = {"gate_up.bias", "down.bias"}
_NORMS = {"query_norm.scale", "key_norm.scale"}
UNUSED_RULES = {
    "SeedOssForCausalLM": _NORMS,
    "Ernie4_5ForCausalLM": _NORMS,
    "Ernie4_5_MoeForCausalLM": {*_MLP_BIAS, "qkv.bias", "output.bias"},
    "HunYuanDenseV1ForCausalLM": _MLP_BIAS,
    "Exaone4ForCausalLM": {*_MLP_BIAS, "qkv.bias", "output.bias"},
    "GlmForCausalLM": {"output.bias", "down.bias"},
    "OlmoeForCausalLM": {"shared.gate_up", "shared.down", "shared.gate"},
    "ApertusForCausalLM": {"up.bias", "down.bias"},
    "GemmaForCausalLM": {*_MLP_BIAS, *_NORMS},
    "StableLmForCausalLM": {*_MLP_BIAS, "output.bias"},
    "MiMoForCausalLM": {*_MLP_BIAS, *_NORMS, "output.bias"},
}
"""Parameters that no model of an architecture has, though a rule names them: weight tables are shared."""


def weight_shapes(config: Mapping[str, Any]) -> Shapes:
    """Every tensor's name and shape."""
    if config["model_type"] == "gpt2":
        return _gpt2(config)
    if config["model_type"] == "gpt_neox":
        return _gpt_neox(config)
    D, V = config["hidden_size"], config["vocab_size"]
    N, K = config["num_attention_heads"], config["num_key_value_heads"]
    H, kind = config.get("head_dim") or D // N, config["model_type"]
    has_biases, bias_of_output = _biases(config)
    layer: Shapes = {}
    for part, shape, has_bias in (
        ("q_proj", (N * H, D), has_biases),
        ("k_proj", (K * H, D), has_biases),
        ("v_proj", (K * H, D), has_biases),
        ("dense" if kind == "phi" else "o_proj", (D, N * H), bias_of_output),
    ):
        layer |= _linear(f"self_attn.{part}", shape, has_bias=has_bias)
    layer |= _norms(config, H)
    shapes: Shapes = {"model.embed_tokens.weight": (V, D)}
    for number in range(config["num_hidden_layers"]):
        is_sparse = number == config.get("moe_layer_start_index")
        mlp = _ernie_experts(config) if is_sparse else _MLPS.get(kind, _gated)(config)
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in (layer | mlp).items()}
    last = "model.final_layernorm" if kind == "phi" else "model.norm"
    shapes |= _norm(last, D, has_bias=kind in ("phi", "stablelm"))
    if kind == "phi":
        shapes["lm_head.bias"] = (V,)
    if kind == "mimo":
        part = "model.mtp_layers.0"
        shapes |= {f"{part}.input_proj.weight": (D, 2 * D), f"{part}.final_layernorm.weight": (D,)}
    return shapes if config["tie_word_embeddings"] else shapes | {"lm_head.weight": (V, D)}


def _biases(config: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether queries, keys and values have a bias, and whether the projection back has."""
    kind = config["model_type"]
    if kind == "phi":
        return True, True
    if kind == "stablelm":
        return config["use_qkv_bias"], False
    if kind == "seed_oss":
        return config["attention_bias"], config["attention_out_bias"]
    has_bias = config.get("use_bias", config.get("attention_bias", False))
    return has_bias, has_bias and kind not in ("glm", "mimo")


def _norms(config: Mapping[str, Any], H: int) -> Shapes:
    """Norms of a layer, those of queries and keys included."""
    kind, D = config["model_type"], config["hidden_size"]
    N, K = config["num_attention_heads"], config["num_key_value_heads"]
    usual = ("input_layernorm", "post_attention_layernorm")
    names = {
        "exaone4": ("post_attention_layernorm", "post_feedforward_layernorm"),
        "apertus": ("attention_layernorm", "feedforward_layernorm"),
        "phi": usual[:1],
    }.get(kind, usual[:1] if config.get("use_parallel_residual") else usual)
    shapes: Shapes = {}
    for name in names:
        shapes |= _norm(name, D, has_bias=kind in ("phi", "stablelm"))
    if kind in ("exaone4", "apertus", "olmoe"):
        sizes = (N * H, K * H) if kind == "olmoe" else (H, H)
        shapes |= {"self_attn.q_norm.weight": (sizes[0],), "self_attn.k_norm.weight": (sizes[1],)}
    if kind == "hunyuan_v1_dense":
        shapes |= {"self_attn.query_layernorm.weight": (H,), "self_attn.key_layernorm.weight": (H,)}
    if config.get("qk_layernorm"):
        shapes |= _norm("self_attn.q_layernorm", H, has_bias=True) | _norm("self_attn.k_layernorm", H, has_bias=True)
    return shapes


def _gated(config: Mapping[str, Any]) -> Shapes:
    D, F = config["hidden_size"], config["intermediate_size"]
    has_bias = config.get("use_bias", config.get("mlp_bias", False))
    parts = {"gate_proj": (F, D), "up_proj": (F, D), "down_proj": (D, F)}
    return {k: v for name, shape in parts.items() for k, v in _linear(f"mlp.{name}", shape, has_bias=has_bias).items()}


def _plain(config: Mapping[str, Any]) -> Shapes:
    D, F = config["hidden_size"], config["intermediate_size"]
    into, back = ("fc1", "fc2") if config["model_type"] == "phi" else ("up_proj", "down_proj")
    has_bias = config["model_type"] == "phi" or config.get("mlp_bias", False)
    shapes = _linear(f"mlp.{into}", (F, D), has_bias=has_bias) | _linear(f"mlp.{back}", (D, F), has_bias=has_bias)
    if config["hidden_act"] == "xielu":
        shapes |= {"mlp.act_fn.alpha_p": (1,), "mlp.act_fn.alpha_n": (1,), "mlp.act_fn.beta": (), "mlp.act_fn.eps": ()}
    return shapes


def _experts(config: Mapping[str, Any]) -> Shapes:
    D, E, F = config["hidden_size"], config["num_experts"], config["intermediate_size"]
    shapes: Shapes = {"mlp.gate.weight": (E, D)}
    for number in range(E):
        shapes |= {f"mlp.experts.{number}.{part}_proj.weight": (F, D) for part in ("gate", "up")}
        shapes[f"mlp.experts.{number}.down_proj.weight"] = (D, F)
    return shapes


def _ernie_experts(config: Mapping[str, Any]) -> Shapes:
    D, E, F = config["hidden_size"], config["moe_num_experts"], config["moe_intermediate_size"]
    sizes = {f"experts.{number}": F for number in range(E)} | {"shared_experts": F * config["moe_num_shared_experts"]}
    shapes: Shapes = {"mlp.gate.weight": (E, D), "mlp.moe_statics.e_score_correction_bias": (1, E)}
    for name, size in sizes.items():
        shapes |= {f"mlp.{name}.{part}_proj.weight": (size, D) for part in ("gate", "up")}
        shapes[f"mlp.{name}.down_proj.weight"] = (D, size)
    return shapes


def _fused(config: Mapping[str, Any]) -> Shapes:
    D, F = config["hidden_size"], config["intermediate_size"]
    return {"mlp.gate_up_proj.weight": (2 * F, D), "mlp.down_proj.weight": (D, F)}


_MLPS: dict[str, Callable[[Mapping[str, Any]], Shapes]] = {
    "apertus": _plain,
    "arcee": _plain,
    "phi": _plain,
    "olmoe": _experts,
    "glm": _fused,
}


def _gpt2(config: Mapping[str, Any]) -> Shapes:
    """Matrices have their inputs first."""
    D, V, F = config["hidden_size"], config["vocab_size"], config["n_inner"]
    rows = config["max_position_embeddings"]
    shapes: Shapes = {"transformer.wte.weight": (V, D), "transformer.wpe.weight": (rows, D)}
    for number in range(config["num_hidden_layers"]):
        part = f"transformer.h.{number}."
        shapes |= _norm(f"{part}ln_1", D, has_bias=True) | _norm(f"{part}ln_2", D, has_bias=True)
        for name, (inputs, outputs) in {
            "attn.c_attn": (D, 3 * D),
            "attn.c_proj": (D, D),
            "mlp.c_fc": (D, F),
            "mlp.c_proj": (F, D),
        }.items():
            shapes |= {f"{part}{name}.weight": (inputs, outputs), f"{part}{name}.bias": (outputs,)}
    shapes |= _norm("transformer.ln_f", D, has_bias=True)
    return shapes if config["tie_word_embeddings"] else shapes | {"lm_head.weight": (V, D)}


def _gpt_neox(config: Mapping[str, Any]) -> Shapes:
    """Queries, keys and values are one tensor, head after head."""
    D, V, F = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    shapes: Shapes = {"gpt_neox.embed_in.weight": (V, D)} | _norm("gpt_neox.final_layer_norm", D, has_bias=True)
    has_bias = config.get("attention_bias", True)
    for number in range(config["num_hidden_layers"]):
        part = f"gpt_neox.layers.{number}."
        shapes |= _norm(f"{part}input_layernorm", D, has_bias=True)
        shapes |= _norm(f"{part}post_attention_layernorm", D, has_bias=True)
        shapes |= _linear(f"{part}attention.query_key_value", (3 * D, D), has_bias=has_bias)
        shapes |= _linear(f"{part}attention.dense", (D, D), has_bias=has_bias)
        shapes |= _linear(f"{part}mlp.dense_h_to_4h", (F, D), has_bias=True)
        shapes |= _linear(f"{part}mlp.dense_4h_to_h", (D, F), has_bias=True)
    return shapes if config["tie_word_embeddings"] else shapes | {"embed_out.weight": (V, D)}


def _linear(name: str, shape: tuple[int, ...], *, has_bias: bool) -> Shapes:
    shapes: Shapes = {f"{name}.weight": shape}
    return shapes | {f"{name}.bias": shape[:1]} if has_bias else shapes


def _norm(name: str, size: int, *, has_bias: bool) -> Shapes:
    return _linear(name, (size,), has_bias=has_bias)
