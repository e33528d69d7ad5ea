"""ModernBERT: rotation, norms before attention and MLP, gated MLPs, and windows in two of three layers."""

from palladio.model.base.errors import ConfigError
from palladio.model.config.family import Family
from palladio.model.config.hf_config import FULL, SLIDING, HfConfig
from palladio.model.config.weight_rules import WeightRule, layer_rules
from palladio.model.config.weight_tables import TABLES
from palladio.model.families.bert import head_rules, layer_norm
from palladio.model.spec.encoder_spec import EncoderHead, EncoderSpec
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec

_THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
_ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu")


def _describe(hf: HfConfig) -> DecoderSpec:
    period = hf.optional_count("global_attn_every_n_layers", default=3) or 3
    kinds = hf.layer_types() or tuple(SLIDING if layer % period else FULL for layer in range(hf.num_layers))
    norm = layer_norm(hf, "norm_eps", default=1e-5, bias=hf.flag("norm_bias", default=False))
    has_bias, mlp_bias = hf.flag("attention_bias", default=False), hf.flag("mlp_bias", default=False)
    window = hf.count("local_attention") // 2
    layers = {
        kind: LayerSpec(
            attention=AttentionSpec(
                rope=hf.layered_rope(kind, *_THETAS[kind]),
                scale=hf.scale,
                window=window if kind == SLIDING else None,
                qkv_bias=has_bias,
                output_bias=has_bias,
            ),
            mlp=DenseSpec(activation=hf.activation("hidden_activation", default="gelu"), bias=mlp_bias),
            norm=norm,
        )
        for kind in dict.fromkeys(kinds)
    }
    first, *others = (layers[kind] for kind in kinds)
    without_first_norm = LayerSpec(attention=first.attention, mlp=first.mlp, norm=norm, norm_placement="mlp")
    return DecoderSpec(
        layers=(without_first_norm, *others),
        norm=norm,
        encoder=EncoderSpec(embedding_norm=norm, has_last_norm=True, head=_head(hf)),
    )


def _head(hf: HfConfig) -> EncoderHead:
    pooling = hf.values.get("classifier_pooling", "cls")
    activation = hf.activation("classifier_activation", default="gelu")
    if pooling not in ("cls", "mean"):
        raise ConfigError(f"classifier_pooling must be cls or mean, found {pooling!r:.100}")
    if activation not in _ACTIVATIONS:
        raise ConfigError(f"classifier_activation: {activation} is not supported; only {', '.join(_ACTIVATIONS)} are")
    norm = layer_norm(hf, "norm_eps", default=1e-5, bias=hf.flag("norm_bias", default=False))
    return EncoderHead(
        pooling=pooling, activation=activation, bias=hf.flag("classifier_bias", default=False), norm=norm
    )


_LAYERS = layer_rules(
    "",
    "",
    ("attn_norm.weight", "attention_norm.scale", "vector"),
    ("attn_norm.bias", "attention_norm.bias", "vector"),
    ("attn.Wqkv.weight", "attention.qkv.kernel", "fused_query"),
    ("attn.Wqkv.weight", "attention.qkv.kernel", "fused_key"),
    ("attn.Wqkv.weight", "attention.qkv.kernel", "fused_value"),
    ("attn.Wqkv.bias", "attention.qkv.bias", "fused_query_bias"),
    ("attn.Wqkv.bias", "attention.qkv.bias", "fused_key_bias"),
    ("attn.Wqkv.bias", "attention.qkv.bias", "fused_value_bias"),
    ("attn.Wo.weight", "attention.output.kernel", "output"),
    ("attn.Wo.bias", "attention.output.bias", "vector"),
    ("mlp_norm.weight", "mlp_norm.scale", "vector"),
    ("mlp_norm.bias", "mlp_norm.bias", "vector"),
    ("mlp.Wi.weight", "mlp.gate_up.kernel", "fused_gate"),
    ("mlp.Wi.weight", "mlp.gate_up.kernel", "fused_up"),
    ("mlp.Wi.bias", "mlp.gate_up.bias", "fused_gate_bias"),
    ("mlp.Wi.bias", "mlp.gate_up.bias", "fused_up_bias"),
    ("mlp.Wo.weight", "mlp.down.kernel", "down"),
    ("mlp.Wo.bias", "mlp.down.bias", "vector"),
)
_OTHERS = (
    TABLES[0],
    WeightRule("model.embeddings.norm.weight", "embedding_norm.scale", "vector"),
    WeightRule("model.embeddings.norm.bias", "embedding_norm.bias", "vector"),
    WeightRule("model.final_norm.weight", "norm.scale", "vector"),
    WeightRule("model.final_norm.bias", "norm.bias", "vector"),
    WeightRule("head.norm.weight", "score.norm.scale", "vector"),
    WeightRule("head.norm.bias", "score.norm.bias", "vector"),
)

FAMILIES = {
    "ModernBertModel": Family(
        describe=_describe,
        weights=(*_OTHERS, *_LAYERS, *head_rules("head.dense", "classifier")),
        defaults={
            "vocab_size": 50368,
            "hidden_size": 768,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "intermediate_size": 1152,
            "max_position_embeddings": 8192,
            "local_attention": 128,
            "bos_token_id": 50281,
            "eos_token_id": 50282,
        },
        ignored=(r"(head|decoder)\..*",),  # of a model for masks
    )
}
