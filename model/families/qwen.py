"""Qwen2, Qwen2.5 and Qwen3 (dense), what is distilled into them, and MiMo-7B: Qwen2 with layers for drafts."""

import dataclasses

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_tables import DECODER_WEIGHTS
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, QKNormSpec


def qwen2_attention(hf: HfConfig) -> AttentionSpec:
    """Describe attention whose queries, keys and values have a bias."""
    return AttentionSpec(rope=hf.rope(), scale=hf.scale, qkv_bias=True)


def qwen3_attention(hf: HfConfig) -> AttentionSpec:
    """Describe attention whose queries and keys are normalized per head."""
    has_bias = hf.flag("attention_bias", default=False)
    norm = QKNormSpec(norm=hf.rms_norm())
    return AttentionSpec(rope=hf.rope(), scale=hf.scale, qk_norm=norm, qkv_bias=has_bias, output_bias=has_bias)


def _dense(hf: HfConfig, attention: AttentionSpec) -> DecoderSpec:
    norm, mlp = hf.rms_norm(), DenseSpec(activation=hf.activation())
    layers = (
        LayerSpec(attention=dataclasses.replace(attention, window=window), mlp=mlp, norm=norm)
        for window in hf.windows_of_upper_layers()
    )
    return DecoderSpec(layers=tuple(layers), norm=norm)


QWEN2 = Family(
    describe=lambda hf: _dense(hf, qwen2_attention(hf)),
    weights=DECODER_WEIGHTS,
    defaults={"num_key_value_heads": 32, "sliding_window": 4096, "max_position_embeddings": 32768},
)

QWEN3 = dataclasses.replace(
    QWEN2,
    describe=lambda hf: _dense(hf, qwen3_attention(hf)),
    defaults={**QWEN2.defaults, "head_dim": 128},
)

QWEN2_VL = dataclasses.replace(
    QWEN2,
    defaults={
        **QWEN2.defaults,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_window_layers": 80,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
)
QWEN3_VL = dataclasses.replace(QWEN3, defaults={**QWEN3.defaults, "max_position_embeddings": 128000, "rope_theta": 5e5})

MIMO = dataclasses.replace(QWEN2, ignored=(*QWEN2.ignored, r"model\.mtp_layers\..*"))

FAMILIES = {
    "MiMoForCausalLM": MIMO,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen2VLForConditionalGeneration": QWEN2_VL,
    "Qwen2_5_VLForConditionalGeneration": QWEN2_VL,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3VLForConditionalGeneration": QWEN3_VL,
}
