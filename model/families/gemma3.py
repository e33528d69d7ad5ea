"""Gemma 3: five layers with a window and a rotary embedding of their own, then one with full attention; and so on.

transformers caps no scores of Gemma 3, whatever attn_logit_softcapping says.
"""

import dataclasses

from palladio.model.config.family import Family
from palladio.model.config.hf_config import SLIDING, HfConfig
from palladio.model.config.weight_tables import ATTENTION, HEAD_NORMS, MLP, TABLES
from palladio.model.families.gemma2 import DEFAULTS, SANDWICH_NORMS, gemma_decoder
from palladio.model.spec.encoder_spec import EncoderSpec
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, QKNormSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    period = hf.count("sliding_window_pattern")
    kinds = hf.alternating_types(lambda layer: (layer + 1) % period == 0)
    has_bias, norm = hf.flag("attention_bias", default=False), QKNormSpec(norm=hf.rms_norm("plus_one"))
    attention = {}
    for kind in dict.fromkeys(kinds):
        theta = ("rope_local_base_freq", 1e4) if kind == SLIDING else ("rope_theta", 1e6)
        attention[kind] = AttentionSpec(
            rope=hf.layered_rope(kind, *theta),
            scale=hf.number("query_pre_attn_scalar") ** -0.5,
            window=hf.window(kind),
            qk_norm=norm,
            qkv_bias=has_bias,
            output_bias=has_bias,
        )
    decoder = gemma_decoder(hf, kinds, attention)
    return _both_ways(decoder) if hf.flag("use_bidirectional_attention", default=False) else decoder


def _both_ways(decoder: DecoderSpec) -> DecoderSpec:
    """Return the model as an encoder, as EmbeddingGemma is one. Its windows are half on each side."""
    halved = {
        layer: layer if layer.attention.window is None else layer.with_attention(window=layer.attention.window // 2)
        for layer in dict.fromkeys(decoder.layers)
    }
    layers = tuple(halved[layer] for layer in decoder.layers)
    return dataclasses.replace(decoder, layers=layers, encoder=EncoderSpec(has_last_norm=True, head=None))


GEMMA3 = Family(
    describe=_describe,
    weights=(*TABLES, *ATTENTION, *HEAD_NORMS, *MLP, *SANDWICH_NORMS),
    defaults={
        **DEFAULTS,
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
    },
)

FAMILIES = {"Gemma3ForCausalLM": GEMMA3}
