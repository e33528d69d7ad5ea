"""ModernBERT: rotation, norms before attention and MLP, gated MLPs, and windows in two of three layers."""

from palladio.model.config.bert_parts import FUSED_ATTENTION, back_names, head_rules, layer_norm, norm_names, read_head
from palladio.model.config.family import Family
from palladio.model.config.hf_config import FULL, SLIDING, HfConfig
from palladio.model.config.weight_rules import WeightRule, layer_rules
from palladio.model.config.weight_tables import TABLES
from palladio.model.spec.encoder_spec import EncoderSpec
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec

_THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


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
        encoder=EncoderSpec(embedding_norm=norm, has_last_norm=True, head=read_head(hf, norm)),
    )


_LAYERS = layer_rules(
    "",
    "",
    *norm_names("attn_norm", "attention_norm"),
    *FUSED_ATTENTION,
    *back_names("attn.Wo", "attention.output", "output"),
    *norm_names("mlp_norm", "mlp_norm"),
    ("mlp.Wi.weight", "mlp.gate_up.kernel", "fused_gate"),
    ("mlp.Wi.weight", "mlp.gate_up.kernel", "fused_up"),
    ("mlp.Wi.bias", "mlp.gate_up.bias", "fused_gate_bias"),
    ("mlp.Wi.bias", "mlp.gate_up.bias", "fused_up_bias"),
    *back_names("mlp.Wo", "mlp.down", "down"),
)
_NORMS = {"model.embeddings.norm": "embedding_norm", "model.final_norm": "norm", "head.norm": "score.norm"}
_OTHERS = (TABLES[0], *(WeightRule(*one) for names in _NORMS.items() for one in norm_names(*names)))

FAMILIES = {
    "ModernBertModel": Family(
        describe=_describe,
        weights=(*_OTHERS, *_LAYERS, *head_rules("head.dense", "classifier")),
        defaults={
            "max_position_embeddings": 8192,
            "local_attention": 128,
            "bos_token_id": 50281,
            "eos_token_id": 50282,
        },
        ignored=(r"(head|decoder)\..*",),  # of a model for masks
    )
}
