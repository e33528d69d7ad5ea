"""Command R (Cohere) and Command R7B, A (Cohere2): attention and MLP side by side, after one LayerNorm."""

import dataclasses

from palladio.model.config.family import Family
from palladio.model.config.hf_config import FULL, SLIDING, HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.config.weight_tables import ATTENTION, MLP, TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, QKNormSpec
from palladio.model.spec.norm_spec import NormSpec


def _describe_cohere(hf: HfConfig) -> DecoderSpec:
    layer = _layer(hf)
    if hf.flag("use_qk_norm", default=False):
        norm = QKNormSpec(norm=layer.norm, form="own_scales")
        layer = layer.with_attention(qk_norm=norm)
    return _decoder(hf, (layer,) * hf.num_layers)


def _describe_cohere2(hf: HfConfig) -> DecoderSpec:
    """Describe Command R7B and A: layers with a window are rotated, layers with full attention are not."""
    period, layer = hf.count("sliding_window_pattern"), _layer(hf)
    kinds = hf.alternating_types(lambda number: (number + 1) % period == 0)
    layers = {FULL: layer.with_attention(rope=None)}
    if SLIDING in kinds:
        layers[SLIDING] = layer.with_attention(window=hf.window(SLIDING))
    return _decoder(hf, tuple(layers[kind] for kind in kinds))


def _layer(hf: HfConfig) -> LayerSpec:
    has_bias = hf.flag("attention_bias", default=False)
    rope = hf.rope(is_interleaved=True)
    return LayerSpec(
        attention=AttentionSpec(rope=rope, scale=hf.scale, qkv_bias=has_bias, output_bias=has_bias),
        mlp=DenseSpec(activation=hf.activation()),
        norm=NormSpec(kind="layer", eps=hf.number("layer_norm_eps", default=1e-5), scaling="float32"),
        norm_placement="parallel",
    )


def _decoder(hf: HfConfig, layers: tuple[LayerSpec, ...]) -> DecoderSpec:
    return DecoderSpec(layers=layers, norm=layers[0].norm, logits_scale=hf.number("logit_scale"))


_WEIGHTS = (
    *TABLES,
    *ATTENTION,
    *MLP,
    *layer_rules("", "", ("input_layernorm.weight", "attention_norm.scale", "vector")),
    *layer_rules(
        "self_attn.",
        "attention.",
        ("q_norm.weight", "query_norm.scale", "query_scales"),
        ("k_norm.weight", "key_norm.scale", "key_scales"),
    ),
)
_DEFAULTS = {
    "max_position_embeddings": 8192,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 5,
    "eos_token_id": 255001,
}
_WINDOWS = {"sliding_window": 4096, "sliding_window_pattern": 4}

COHERE2 = Family(describe=_describe_cohere2, weights=_WEIGHTS, defaults={**_DEFAULTS, **_WINDOWS})
COHERE2_VISION = dataclasses.replace(  # whose head scales nothing
    COHERE2, describe=lambda hf: dataclasses.replace(_describe_cohere2(hf), logits_scale=1.0)
)

FAMILIES = {
    "CohereForCausalLM": Family(describe=_describe_cohere, weights=_WEIGHTS, defaults={**_DEFAULTS, "rope_theta": 5e5}),
    "Cohere2ForCausalLM": COHERE2,
    "Cohere2VisionForConditionalGeneration": COHERE2_VISION,
}
