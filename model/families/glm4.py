"""GLM-4-9B, GLM-4-0414 and GLM-4.1V: interleaved pairs of half of each head are rotated. The latter two have norms
around both sublayers."""

import dataclasses

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.config.weight_tables import ATTENTION, DOWN, FUSED_GATE_UP, PRE_NORMS, TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, NormPlacement


def _describe(hf: HfConfig, placement: NormPlacement, fraction: float = 0.5) -> DecoderSpec:
    layer = LayerSpec(
        attention=AttentionSpec(
            rope=hf.rope(is_interleaved=True, default_fraction=fraction),
            scale=hf.scale,
            qkv_bias=hf.flag("attention_bias", default=True),
        ),
        mlp=DenseSpec(activation=hf.activation()),
        norm=hf.rms_norm(),
        norm_placement=placement,
    )
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=layer.norm)


_NORMS = layer_rules(
    "",
    "",
    ("input_layernorm.weight", "attention_norm.scale", "vector"),
    ("post_self_attn_layernorm.weight", "attention_output_norm.scale", "vector"),
    ("post_attention_layernorm.weight", "mlp_norm.scale", "vector"),
    ("post_mlp_layernorm.weight", "mlp_output_norm.scale", "vector"),
)

_SHARED = (*TABLES, *ATTENTION, *FUSED_GATE_UP, *DOWN)

GLM4 = Family(
    describe=lambda hf: _describe(hf, "sandwich"),
    weights=(*_SHARED, *_NORMS),
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "pad_token_id": 151329,
        "rms_norm_eps": 1.5625e-7,
        "eos_token_id": [151329, 151336, 151338],
    },
)
GLM = dataclasses.replace(GLM4, describe=lambda hf: _describe(hf, "pre"), weights=(*_SHARED, *PRE_NORMS))
GLM4V = dataclasses.replace(
    GLM4,
    describe=lambda hf: _describe(hf, "sandwich", 1.0),
    defaults={"num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5},
)

FAMILIES = {"Glm4ForCausalLM": GLM4, "Glm4vForConditionalGeneration": GLM4V, "GlmForCausalLM": GLM}
