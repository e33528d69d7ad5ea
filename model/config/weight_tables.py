"""The tables of weights that several families share."""

import dataclasses

from palladio.model.config.weight_rules import WeightRule, layer_rules

TABLES: tuple[WeightRule, ...] = (
    WeightRule("model.embed_tokens.weight", "embedding.table", "rows"),
    WeightRule("model.norm.weight", "norm.scale", "vector"),
    WeightRule("lm_head.weight", "lm_head.table", "rows"),
)
"""Tensors before and after the layers."""

CLASSES: tuple[WeightRule, ...] = (
    WeightRule("score.weight", "score.table", "vector"),
    WeightRule("score.bias", "score.bias", "vector"),
)
"""The head of a model that classifies."""

OUTPUT: tuple[WeightRule, ...] = layer_rules(
    "self_attn.",
    "attention.",
    ("o_proj.weight", "output.kernel", "output"),
    ("o_proj.bias", "output.bias", "vector"),
)
"""Attention's projection back."""

CACHE_SCALES: tuple[WeightRule, ...] = layer_rules(
    "self_attn.", "attention.", ("k_scale", "key_scale", "vector"), ("v_scale", "value_scale", "vector")
)
"""Scales of a float8 cache, in checkpoints of any format."""

ATTENTION: tuple[WeightRule, ...] = (
    *layer_rules(
        "self_attn.",
        "attention.",
        ("q_proj.weight", "qkv.kernel", "query"),
        ("k_proj.weight", "qkv.kernel", "key"),
        ("v_proj.weight", "qkv.kernel", "value"),
        ("q_proj.bias", "qkv.bias", "query_bias"),
        ("k_proj.bias", "qkv.bias", "key_bias"),
        ("v_proj.bias", "qkv.bias", "value_bias"),
    ),
    *OUTPUT,
)
"""Queries, keys and values as separate tensors, and the projection back."""

LATENT_ATTENTION: tuple[WeightRule, ...] = layer_rules(
    "self_attn.",
    "attention.",
    ("q_proj.weight", "query.kernel", "latent_query"),
    ("q_a_proj.weight", "query_down.kernel", "matrix"),
    ("q_a_proj.bias", "query_down.bias", "vector"),
    ("q_a_layernorm.weight", "query_norm.scale", "vector"),
    ("q_b_proj.weight", "query_up.kernel", "latent_query"),
    ("kv_a_proj_with_mqa.weight", "row.kernel", "latent_row"),
    ("kv_a_proj_with_mqa.bias", "row.bias", "latent_row_bias"),
    ("kv_a_layernorm.weight", "row_norm.scale", "vector"),
    ("kv_b_proj.weight", "key_up", "latent_keys"),
    ("kv_b_proj.weight", "value_up", "latent_values"),
    ("o_proj.weight", "output.kernel", "latent_output"),
    ("o_proj.bias", "output.bias", "vector"),
)
"""Latent attention."""

GATED_ATTENTION: tuple[WeightRule, ...] = (
    *layer_rules(
        "self_attn.",
        "attention.",
        ("q_proj.weight", "qkv.kernel", "gated_query"),
        ("q_proj.weight", "qkv.kernel", "query_gate"),
        ("k_proj.weight", "qkv.kernel", "key"),
        ("v_proj.weight", "qkv.kernel", "value"),
        ("o_proj.weight", "output.kernel", "output"),
    ),
)
"""Each query head's queries, and after them the gates of its results."""

DELTA_NET: tuple[WeightRule, ...] = layer_rules(
    "linear_attn.",
    "attention.",
    ("conv1d.weight", "key_filter", "delta_key_filter"),
    ("conv1d.weight", "value_filter", "delta_value_filter"),
    ("A_log", "log_decay", "delta_heads"),
    ("dt_bias", "decay_bias", "delta_heads"),
    ("norm.weight", "norm.scale", "vector"),
    ("out_proj.weight", "back.kernel", "delta_output"),
)
"""A gated delta rule, without the projections into it."""

FUSED_DELTA_NET: tuple[WeightRule, ...] = (
    *layer_rules(
        "linear_attn.",
        "attention.",
        ("in_proj_qkvz.weight", "keys.kernel", "delta_fused_keys"),
        ("in_proj_qkvz.weight", "values.kernel", "delta_fused_values"),
        ("in_proj_ba.weight", "rates", "delta_fused_rates"),
    ),
    *DELTA_NET,
)
"""The projections as two tensors, key head after key head."""

SPLIT_DELTA_NET: tuple[WeightRule, ...] = (
    *layer_rules(
        "linear_attn.",
        "attention.",
        ("in_proj_qkv.weight", "keys.kernel", "delta_keys"),
        ("in_proj_qkv.weight", "values.kernel", "delta_values"),
        ("in_proj_z.weight", "values.kernel", "delta_gates"),
        ("in_proj_b.weight", "rates", "delta_shares"),
        ("in_proj_a.weight", "rates", "delta_decays"),
    ),
    *DELTA_NET,
)
"""The projections as four tensors, each of all heads."""

FUSED_QKV: tuple[WeightRule, ...] = layer_rules(
    "self_attn.",
    "attention.",
    ("qkv_proj.weight", "qkv.kernel", "fused_query"),
    ("qkv_proj.weight", "qkv.kernel", "fused_key"),
    ("qkv_proj.weight", "qkv.kernel", "fused_value"),
)
"""Queries, keys and values as one tensor."""

HEAD_NORMS: tuple[WeightRule, ...] = layer_rules(
    "self_attn.",
    "attention.",
    ("q_norm.weight", "query_norm.scale", "vector"),
    ("k_norm.weight", "key_norm.scale", "vector"),
)
"""One scale for all heads."""

DOWN: tuple[WeightRule, ...] = layer_rules(
    "mlp.",
    "mlp.",
    ("down_proj.weight", "down.kernel", "down"),
    ("down_proj.bias", "down.bias", "vector"),
)
"""The MLP's projection back."""

MLP: tuple[WeightRule, ...] = (
    *layer_rules(
        "mlp.",
        "mlp.",
        ("gate_proj.weight", "gate_up.kernel", "gate"),
        ("up_proj.weight", "gate_up.kernel", "up"),
        ("gate_proj.bias", "gate_up.bias", "gate_bias"),
        ("up_proj.bias", "gate_up.bias", "up_bias"),
    ),
    *DOWN,
)
"""Gate and up as separate tensors, and the projection back."""

FUSED_GATE_UP: tuple[WeightRule, ...] = layer_rules(
    "mlp.",
    "mlp.",
    ("gate_up_proj.weight", "gate_up.kernel", "fused_gate"),
    ("gate_up_proj.weight", "gate_up.kernel", "fused_up"),
)
"""Gate and up as one tensor."""

PRE_NORMS: tuple[WeightRule, ...] = layer_rules(
    "",
    "",
    ("input_layernorm.weight", "attention_norm.scale", "vector"),
    ("post_attention_layernorm.weight", "mlp_norm.scale", "vector"),
)
"""Norms before attention, and before the MLP."""

LAYER_NORM_BIASES: tuple[WeightRule, ...] = (
    *layer_rules(
        "",
        "",
        ("input_layernorm.bias", "attention_norm.bias", "vector"),
        ("post_attention_layernorm.bias", "mlp_norm.bias", "vector"),
    ),
    WeightRule("model.norm.bias", "norm.bias", "vector"),
)
"""Norms before attention and MLP, and the last norm."""

DECODER_WEIGHTS: tuple[WeightRule, ...] = (*TABLES, *ATTENTION, *HEAD_NORMS, *MLP, *PRE_NORMS)
"""The names of Llama, which Qwen and Mistral use, too."""

STACKED_EXPERTS = layer_rules(
    "mlp.",
    "mlp.",
    ("experts.gate_up_proj", "gate", "experts_gate", "stacked"),
    ("experts.gate_up_proj", "up", "experts_up", "stacked"),
    ("experts.down_proj", "down", "experts_down", "stacked"),
)
"""Experts as transformers 5 keeps them in memory, and writes them on request."""

EXPERTS: tuple[WeightRule, ...] = (
    *layer_rules(
        "mlp.",
        "mlp.",
        ("gate.weight", "router", "transposed"),
        ("experts.{expert}.gate_proj.weight", "gate", "expert_in", "split"),
        ("experts.{expert}.up_proj.weight", "up", "expert_in", "split"),
        ("experts.{expert}.down_proj.weight", "down", "expert_down", "split"),
        ("shared_expert.gate_proj.weight", "shared.gate_up", "shared_gate"),
        ("shared_expert.up_proj.weight", "shared.gate_up", "shared_up"),
        ("shared_expert.down_proj.weight", "shared.down", "shared_down"),
        ("shared_expert_gate.weight", "shared.gate", "transposed"),
    ),
    *STACKED_EXPERTS,
)
"""Experts by Qwen's names."""

MOE_EXPERTS: tuple[WeightRule, ...] = (
    *layer_rules(
        "mlp.",
        "mlp.",
        ("gate.weight", "router", "transposed"),
        ("gate.e_score_correction_bias", "router_bias", "vector"),
        ("experts.{expert}.gate_proj.weight", "gate", "expert_in", "split"),
        ("experts.{expert}.up_proj.weight", "up", "expert_in", "split"),
        ("experts.{expert}.down_proj.weight", "down", "expert_down", "split"),
        ("shared_experts.gate_proj.weight", "shared.gate_up", "shared_gate"),
        ("shared_experts.up_proj.weight", "shared.gate_up", "shared_up"),
        ("shared_experts.down_proj.weight", "shared.down", "shared_down"),
    ),
    *STACKED_EXPERTS,
)
"""Experts by the names of DeepSeek and GLM."""

MIXTRAL_EXPERTS: tuple[WeightRule, ...] = (
    *layer_rules(
        "block_sparse_moe.",
        "mlp.",
        ("gate.weight", "router", "transposed", "split"),
        ("experts.{expert}.w1.weight", "gate", "expert_in", "split"),
        ("experts.{expert}.w3.weight", "up", "expert_in", "split"),
        ("experts.{expert}.w2.weight", "down", "expert_down", "split"),
    ),
    *layer_rules("mlp.", "mlp.", ("gate.weight", "router", "transposed", "stacked")),
    *STACKED_EXPERTS,
)
"""Experts by the names of Mixtral and transformers 5."""

_PAIRED_MATRICES = layer_rules(
    "mlp.experts.",
    "mlp.",
    ("gate_up_proj", "gate", "paired_gate"),
    ("gate_up_proj", "up", "paired_up"),
    ("down_proj", "down", "experts_down"),
)
PAIRED_EXPERTS: tuple[WeightRule, ...] = (
    *(dataclasses.replace(rule, inputs_first=True) for rule in _PAIRED_MATRICES),
    *layer_rules(
        "mlp.",
        "mlp.",
        ("router.weight", "router", "transposed"),
        ("router.bias", "router_bias", "vector"),
        ("experts.gate_up_proj_bias", "gate_bias", "paired_gate_bias"),
        ("experts.gate_up_proj_bias", "up_bias", "paired_up_bias"),
        ("experts.down_proj_bias", "down_bias", "experts_down_bias"),
    ),
)
"""Experts as in gpt-oss: alternating columns of gate and up, and biases."""

SINKS: tuple[WeightRule, ...] = layer_rules("self_attn.", "attention.", ("sinks", "sinks", "sinks"))
"""The sink of each query head."""

ROTARY_BUFFERS = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
"""Old checkpoints stored this table; it is computed from the config."""
