"""OLMo 2 and 3: norms after attention and MLP, and of all heads together; OLMo 3 has windows on most layers."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.config.weight_tables import ATTENTION, MLP, TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, QKNormSpec
from palladio.model.spec.rope_config import RopeConfig


def _layer(hf: HfConfig, rope: RopeConfig, window: int | None) -> LayerSpec:
    norm, has_bias = hf.rms_norm("float32"), hf.flag("attention_bias", default=False)
    attention = AttentionSpec(
        rope=rope,
        scale=hf.scale,
        window=window,
        qk_norm=QKNormSpec(norm=norm, form="all_heads"),
        qkv_bias=has_bias,
        output_bias=has_bias,
    )
    mlp = DenseSpec(activation=hf.activation())
    return LayerSpec(attention=attention, mlp=mlp, norm=norm, norm_placement="post")


def _describe_olmo2(hf: HfConfig) -> DecoderSpec:
    return DecoderSpec(layers=(_layer(hf, hf.rope(), None),) * hf.num_layers, norm=hf.rms_norm("float32"))


def _describe_olmo3(hf: HfConfig) -> DecoderSpec:
    kinds = hf.alternating_types(lambda layer: (layer + 1) % 4 == 0)
    layers = {kind: _layer(hf, hf.layered_rope(kind, "rope_theta", 5e5), hf.window(kind)) for kind in {*kinds}}
    return DecoderSpec(layers=tuple(layers[kind] for kind in kinds), norm=hf.rms_norm("float32"))


FLAT_NORMS = layer_rules(
    "self_attn.",
    "attention.",
    ("q_norm.weight", "query_norm.scale", "query_scale"),
    ("k_norm.weight", "key_norm.scale", "key_scale"),
)
"""Norms of all query heads together, and of all key heads."""

_WEIGHTS = (
    *TABLES,
    *ATTENTION,
    *MLP,
    *FLAT_NORMS,
    *layer_rules(
        "",
        "",
        ("post_attention_layernorm.weight", "attention_output_norm.scale", "vector"),
        ("post_feedforward_layernorm.weight", "mlp_output_norm.scale", "vector"),
    ),
)
_DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "eos_token_id": 50279, "pad_token_id": 1}

FAMILIES = {
    "Olmo2ForCausalLM": Family(describe=_describe_olmo2, weights=_WEIGHTS, defaults=_DEFAULTS),
    "Olmo3ForCausalLM": Family(
        describe=_describe_olmo3, weights=_WEIGHTS, defaults={**_DEFAULTS, "sliding_window": 4096}
    ),
}
