"""GTE: rotation, norms of the residual sums and gated MLPs, as transformers has it (GteModel)."""

from palladio.model.config.bert_parts import EMBEDDINGS, POOLER_HEAD, UNUSED, layer_norm, num_types
from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.spec.encoder_spec import EncoderSpec
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    norm, types = layer_norm(hf), num_types(hf, 1)
    layer = LayerSpec(
        attention=AttentionSpec(rope=hf.rope(), scale=hf.scale, qkv_bias=True, output_bias=True),
        mlp=DenseSpec(activation=hf.activation(default="gelu"), output_bias=True),
        norm=norm,
        norm_placement="sums",
    )
    encoder = EncoderSpec(num_types=types, embedding_norm=norm, reads_types=types > 1)
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=norm, encoder=encoder)


_LAYERS = layer_rules(
    "",
    "",
    ("attention.qkv_proj.weight", "attention.qkv.kernel", "fused_query"),
    ("attention.qkv_proj.weight", "attention.qkv.kernel", "fused_key"),
    ("attention.qkv_proj.weight", "attention.qkv.kernel", "fused_value"),
    ("attention.qkv_proj.bias", "attention.qkv.bias", "fused_query_bias"),
    ("attention.qkv_proj.bias", "attention.qkv.bias", "fused_key_bias"),
    ("attention.qkv_proj.bias", "attention.qkv.bias", "fused_value_bias"),
    ("attention.o_proj.weight", "attention.output.kernel", "output"),
    ("attention.o_proj.bias", "attention.output.bias", "vector"),
    ("attn_ln.weight", "attention_output_norm.scale", "vector"),
    ("attn_ln.bias", "attention_output_norm.bias", "vector"),
    ("mlp.up_gate_proj.weight", "mlp.gate_up.kernel", "later_gate"),
    ("mlp.up_gate_proj.weight", "mlp.gate_up.kernel", "earlier_up"),
    ("mlp.down_proj.weight", "mlp.down.kernel", "down"),
    ("mlp.down_proj.bias", "mlp.down.bias", "vector"),
    ("mlp_ln.weight", "mlp_output_norm.scale", "vector"),
    ("mlp_ln.bias", "mlp_output_norm.bias", "vector"),
    layers="encoder.layer",
)

FAMILIES = {
    "GteModel": Family(
        describe=_describe,
        weights=(EMBEDDINGS[0], *EMBEDDINGS[2:], *_LAYERS, *POOLER_HEAD),
        defaults={
            "max_position_embeddings": 8192,
            "rope_theta": 160_000.0,
        },
        ignored=UNUSED,
    )
}
