"""Phi-1, 1.5 and 2: attention and MLP side by side after one LayerNorm, biases everywhere, and a head with a bias."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import WeightRule, layer_rules
from palladio.model.config.weight_tables import ATTENTION, TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, QKNormSpec
from palladio.model.spec.norm_spec import NormSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.no_windows()
    norm = NormSpec(kind="layer", eps=hf.number("layer_norm_eps"), scaling="float32", bias=True)
    layer = LayerSpec(
        attention=AttentionSpec(
            rope=hf.rope(default_fraction=0.5),
            scale=hf.scale,
            qk_norm=QKNormSpec(norm=norm) if hf.flag("qk_layernorm", default=False) else None,
            qkv_bias=True,
            output_bias=True,
        ),
        mlp=DenseSpec(activation=hf.activation(default="gelu_new"), is_gated=False, bias=True),
        norm=norm,
        norm_placement="parallel",
    )
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=norm, head_bias=True)


_LAYER = layer_rules(
    "",
    "",
    ("input_layernorm.weight", "attention_norm.scale", "vector"),
    ("input_layernorm.bias", "attention_norm.bias", "vector"),
    ("self_attn.q_layernorm.weight", "attention.query_norm.scale", "vector"),
    ("self_attn.q_layernorm.bias", "attention.query_norm.bias", "vector"),
    ("self_attn.k_layernorm.weight", "attention.key_norm.scale", "vector"),
    ("self_attn.k_layernorm.bias", "attention.key_norm.bias", "vector"),
    ("self_attn.dense.weight", "attention.output.kernel", "output"),
    ("self_attn.dense.bias", "attention.output.bias", "vector"),
    ("mlp.fc1.weight", "mlp.up.kernel", "inner"),
    ("mlp.fc1.bias", "mlp.up.bias", "inner_bias"),
    ("mlp.fc2.weight", "mlp.down.kernel", "down"),
    ("mlp.fc2.bias", "mlp.down.bias", "vector"),
)
_REST = (
    WeightRule("model.final_layernorm.weight", "norm.scale", "vector"),
    WeightRule("model.final_layernorm.bias", "norm.bias", "vector"),
    WeightRule("lm_head.bias", "head_bias.bias", "rows_bias"),
)
_QKV = tuple(rule for rule in ATTENTION if ".qkv." in rule.param)

FAMILIES = {
    "PhiForCausalLM": Family(
        describe=_describe,
        weights=(TABLES[0], TABLES[2], *_QKV, *_LAYER, *_REST),
        defaults={
            "max_position_embeddings": 2048,
            "layer_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    )
}
