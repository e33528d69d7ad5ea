"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama with fused projections in the file, and LongRoPE."""

from palladio.model.base.errors import ConfigError
from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_tables import DOWN, FUSED_GATE_UP, FUSED_QKV, OUTPUT, PRE_NORMS, TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    norm, rope = hf.rms_norm(), hf.rope(default_fraction=1.0)
    if rope.kind not in ("default", "longrope"):
        raise ConfigError(f"rope_scaling.rope_type: {rope.kind!r} is not supported here; only 'longrope'")
    mlp = DenseSpec(activation=hf.activation())
    layers = (
        LayerSpec(attention=AttentionSpec(rope=rope, scale=hf.scale, window=window), mlp=mlp, norm=norm)
        for window in hf.windows_everywhere()
    )
    return DecoderSpec(layers=tuple(layers), norm=norm)


FAMILIES = {
    "Phi3ForCausalLM": Family(
        describe=_describe,
        weights=(*TABLES, *FUSED_QKV, *OUTPUT, *FUSED_GATE_UP, *DOWN, *PRE_NORMS),
        defaults={
            "max_position_embeddings": 4096,
            "pad_token_id": 32000,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 32000,
        },
    )
}
