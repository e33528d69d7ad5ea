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
]
"""How a file's tensor becomes (a part of) a parameter; model/weight_transforms.py says what each does."""

Condition = Literal["always", "qkv_bias", "output_bias", "mlp_bias", "qk_norm", "untied"]


@dataclasses.dataclass(frozen=True)
class WeightRule:
    """One line of a weight table.

    Attributes:
        name: the tensor's name in the checkpoint; `{layer}` stands for each layer's number.
        param: path of our parameter, with the same `{layer}`.
        transform: how the tensor becomes the parameter, or its part of a fused one.
        condition: which property of the config makes the tensor exist.
    """

    name: str
    param: str
    transform: Transform
    condition: Condition = "always"


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
        ("gate_proj.weight", "gate_up.kernel", "gate", "always"),
        ("up_proj.weight", "gate_up.kernel", "up", "always"),
        ("gate_proj.bias", "gate_up.bias", "gate_bias", "mlp_bias"),
        ("up_proj.bias", "gate_up.bias", "up_bias", "mlp_bias"),
        ("down_proj.weight", "down.kernel", "down", "always"),
        ("down_proj.bias", "down.bias", "vector", "mlp_bias"),
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

ROTARY_BUFFERS = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
"""Old checkpoints stored this table; it is computed from the config."""
