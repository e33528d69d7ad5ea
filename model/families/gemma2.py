"""Gemma 2: alternating layers with and without a window, norms around both sublayers, scores and logits capped."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import WeightRule, layer_rules
from palladio.model.config.weight_tables import ATTENTION, MLP, TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec

SANDWICH_NORMS: tuple[WeightRule, ...] = layer_rules(
    "",
    "",
    ("input_layernorm.weight", "attention_norm.scale", "vector"),
    ("post_attention_layernorm.weight", "attention_output_norm.scale", "vector"),
    ("pre_feedforward_layernorm.weight", "mlp_norm.scale", "vector"),
    ("post_feedforward_layernorm.weight", "mlp_output_norm.scale", "vector"),
)


def gemma_decoder(hf: HfConfig, kinds: tuple[str, ...], attention: dict[str, AttentionSpec]) -> DecoderSpec:
    """Describe the parts that Gemma 2 and 3 share.

    Args:
        kinds: the kind of each layer.
        attention: the attention of each kind.
    """
    norm = hf.rms_norm("plus_one")
    mlp = DenseSpec(activation=hf.activation("hidden_activation", default="gelu_pytorch_tanh"))
    layers = {
        kind: LayerSpec(attention=spec, mlp=mlp, norm=norm, norm_placement="sandwich")
        for kind, spec in attention.items()
    }
    return DecoderSpec(
        layers=tuple(layers[kind] for kind in kinds),
        norm=norm,
        embedding_scale=hf.hidden_size**0.5,
        logits_soft_cap=hf.optional_number("final_logit_softcapping"),
        overflows_float16=True,
    )


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.require("use_bidirectional_attention", False, default=False)
    kinds = hf.alternating_types(lambda layer: layer % 2 == 1)
    has_bias, rope = hf.flag("attention_bias", default=False), hf.rope()
    attention = {
        kind: AttentionSpec(
            rope=rope,
            scale=hf.number("query_pre_attn_scalar") ** -0.5,
            window=hf.window(kind),
            soft_cap=hf.optional_number("attn_logit_softcapping"),
            qkv_bias=has_bias,
            output_bias=has_bias,
        )
        for kind in {*kinds}
    }
    return gemma_decoder(hf, kinds, attention)


DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

FAMILIES = {
    "Gemma2ForCausalLM": Family(
        describe=_describe,
        weights=(*TABLES, *ATTENTION, *MLP, *SANDWICH_NORMS),
        defaults=DEFAULTS
        | {"max_position_embeddings": 8192, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    )
}
