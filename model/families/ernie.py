"""ERNIE 4.5, dense: Llama whose rotary embedding turns interleaved pairs; one flag gives all projections a bias."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.families import llama
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.no_windows()
    norm, has_bias = hf.rms_norm(), hf.flag("use_bias", default=False)
    rope = hf.rope(is_interleaved=True)
    layer = LayerSpec(
        attention=AttentionSpec(rope=rope, scale=hf.scale, qkv_bias=has_bias, output_bias=has_bias),
        mlp=DenseSpec(activation=hf.activation(), bias=has_bias),
        norm=norm,
    )
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=norm)


FAMILIES = {
    "Ernie4_5ForCausalLM": Family(
        describe=_describe,
        weights=llama.LLAMA.weights,
        defaults={
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    )
}
