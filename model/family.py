"""What a model family declares: how its config.json is to be read, and where each of its tensors goes."""

import dataclasses
from typing import Literal

Transform = Literal[
    "vector",
    "output",
    "down",
    "rows",
    "query",
    "key",
    "value",
    "query_bias",
    "key_bias",
    "value_bias",
    "gate",
    "up",
    "gate_bias",
    "up_bias",
    "transposed",
    "expert_in",
    "expert_down",
    "experts_gate",
    "experts_up",
    "experts_down",
    "shared_gate",
    "shared_up",
    "shared_down",
]
"""How a file's tensor becomes (a part of) a parameter; model/weight_transforms.py says what each does."""

Condition = Literal[
    "always",
    "qkv_bias",
    "output_bias",
    "qk_norm",
    "untied",
    "dense",
    "dense_bias",
    "sparse",
    "sparse_split",
    "sparse_stacked",
    "shared",
]
"""When a tensor exists; those from dense on are of a layer, which has a plain MLP or experts. Experts are stored each
by itself (split), or all of a layer as one tensor (stacked)."""


@dataclasses.dataclass(frozen=True)
class WeightRule:
    """One line of a weight table.

    Attributes:
        name: the tensor's name in the checkpoint; `{layer}` stands for each layer's number, `{expert}` for each
            expert's.
        param: path of our parameter, with the same `{layer}`.
        transform: how the tensor becomes the parameter, or its part of a fused one.
        condition: which property of the config, or of the layer, makes the tensor exist.
    """

    name: str
    param: str
    transform: Transform
    condition: Condition = "always"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertKeys:
    """What config.json says of experts, and how.

    Attributes:
        num_experts: name of their number (E).
        other_name_wins: where config.json has the number under the other of these two names too, that one counts, as in
            transformers (its attribute_map); else the other name counts only alone.
        intermediate_size: name of the F of each.
        shared_intermediate_size: name of the F of the expert that every token goes to; None: there is no such expert.
        always_renormalized: the weights of a token's experts add up to 1; else norm_topk_prob says whether they do.
        dense_layers: decoder_sparse_step and mlp_only_layers say which layers have a plain MLP; else none has.
    """

    num_experts: Literal["num_experts", "num_local_experts"]
    other_name_wins: bool
    intermediate_size: str
    shared_intermediate_size: str | None
    always_renormalized: bool
    dense_layers: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """What differs between decoder-only families.

    Attributes:
        qkv_bias: whether q, k and v have a bias; "configured": the config's attention_bias says.
        output_bias: the same for the output projection.
        mlp_bias: the same for the MLP, by the config's mlp_bias.
        qk_norm: queries and keys go through an RMS norm per head.
        head_size: when the config gives none; None: hidden size over heads.
        num_kv_heads: when the config gives none; None: as many as heads.
        sliding_window: which layers have the config's window: none, all, or those from max_window_layers on (if
            use_sliding_window is set).
        default_sliding_window: the window when the config does not mention it.
        default_max_position_embeddings: the context length when the config does not mention it.
        bos_token_id: when the config gives none.
        eos_token_id: when neither file gives one.
        weights: where each tensor goes.
        ignored: patterns (regular expressions, whole names) of tensors that carry nothing.
        experts: a mixture of them; None: every layer has a plain MLP.
        required: settings of which only one value is supported.
        default_rope_theta, default_rms_norm_eps: when the config gives none.
    """

    qkv_bias: Literal["always", "never", "configured"]
    output_bias: Literal["never", "configured"]
    mlp_bias: Literal["never", "configured"]
    qk_norm: bool
    head_size: int | None
    num_kv_heads: int | None
    sliding_window: Literal["none", "all", "upper"]
    default_sliding_window: int | None
    default_max_position_embeddings: int
    bos_token_id: int | None
    eos_token_id: int | None
    weights: tuple[WeightRule, ...]
    ignored: tuple[str, ...]
    experts: ExpertKeys | None = None
    required: tuple[tuple[str, object], ...] = ()
    default_rope_theta: float = 10000.0
    default_rms_norm_eps: float = 1e-6


def _layer_rules(part: str, module: str, *rules: tuple[str, str, Transform, Condition]) -> tuple[WeightRule, ...]:
    return tuple(
        WeightRule(f"model.layers.{{layer}}.{part}{name}", f"layers.{{layer}}.{module}{param}", transform, condition)
        for name, param, transform, condition in rules
    )


DECODER_WEIGHTS: tuple[WeightRule, ...] = (
    WeightRule("model.embed_tokens.weight", "embedding.table", "rows"),
    *_layer_rules(
        "self_attn.",
        "attention.",
        ("q_proj.weight", "qkv.kernel", "query", "always"),
        ("k_proj.weight", "qkv.kernel", "key", "always"),
        ("v_proj.weight", "qkv.kernel", "value", "always"),
        ("q_proj.bias", "qkv.bias", "query_bias", "qkv_bias"),
        ("k_proj.bias", "qkv.bias", "key_bias", "qkv_bias"),
        ("v_proj.bias", "qkv.bias", "value_bias", "qkv_bias"),
        ("q_norm.weight", "query_norm.scale", "vector", "qk_norm"),
        ("k_norm.weight", "key_norm.scale", "vector", "qk_norm"),
        ("o_proj.weight", "output.kernel", "output", "always"),
        ("o_proj.bias", "output.bias", "vector", "output_bias"),
    ),
    *_layer_rules(
        "mlp.",
        "mlp.",
        ("gate_proj.weight", "gate_up.kernel", "gate", "dense"),
        ("up_proj.weight", "gate_up.kernel", "up", "dense"),
        ("gate_proj.bias", "gate_up.bias", "gate_bias", "dense_bias"),
        ("up_proj.bias", "gate_up.bias", "up_bias", "dense_bias"),
        ("down_proj.weight", "down.kernel", "down", "dense"),
        ("down_proj.bias", "down.bias", "vector", "dense_bias"),
    ),
    *_layer_rules(
        "",
        "",
        ("input_layernorm.weight", "attention_norm.scale", "vector", "always"),
        ("post_attention_layernorm.weight", "mlp_norm.scale", "vector", "always"),
    ),
    WeightRule("model.norm.weight", "norm.scale", "vector"),
    WeightRule("lm_head.weight", "lm_head.table", "rows", "untied"),
)
"""The names that Llama gave and Qwen and Mistral kept. A tensor whose condition does not hold must not be there."""

STACKED_EXPERTS = _layer_rules(
    "mlp.",
    "mlp.",
    ("experts.gate_up_proj", "gate", "experts_gate", "sparse_stacked"),
    ("experts.gate_up_proj", "up", "experts_up", "sparse_stacked"),
    ("experts.down_proj", "down", "experts_down", "sparse_stacked"),
)
"""As transformers 5 holds them, and writes them where it is told to."""

EXPERTS: tuple[WeightRule, ...] = (
    *_layer_rules(
        "mlp.",
        "mlp.",
        ("gate.weight", "router", "transposed", "sparse"),
        ("experts.{expert}.gate_proj.weight", "gate", "expert_in", "sparse_split"),
        ("experts.{expert}.up_proj.weight", "up", "expert_in", "sparse_split"),
        ("experts.{expert}.down_proj.weight", "down", "expert_down", "sparse_split"),
        ("shared_expert.gate_proj.weight", "shared.gate_up", "shared_gate", "shared"),
        ("shared_expert.up_proj.weight", "shared.gate_up", "shared_up", "shared"),
        ("shared_expert.down_proj.weight", "shared.down", "shared_down", "shared"),
        ("shared_expert_gate.weight", "shared.gate", "transposed", "shared"),
    ),
    *STACKED_EXPERTS,
)
"""Experts as Qwen named them."""

MIXTRAL_EXPERTS: tuple[WeightRule, ...] = (
    *_layer_rules(
        "block_sparse_moe.",
        "mlp.",
        ("gate.weight", "router", "transposed", "sparse_split"),
        ("experts.{expert}.w1.weight", "gate", "expert_in", "sparse_split"),
        ("experts.{expert}.w3.weight", "up", "expert_in", "sparse_split"),
        ("experts.{expert}.w2.weight", "down", "expert_down", "sparse_split"),
    ),
    *_layer_rules("mlp.", "mlp.", ("gate.weight", "router", "transposed", "sparse_stacked")),
    *STACKED_EXPERTS,
)
"""Experts as Mixtral named them, and as transformers 5 does."""

ROTARY_BUFFERS = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
"""Old checkpoints stored this table; it is computed from the config."""
