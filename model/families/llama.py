"""Llama, 1 to 3.3, and what is distilled into them."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_tables import DECODER_WEIGHTS
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec


def describe(hf: HfConfig) -> DecoderSpec:
    """Describe a decoder of equal layers."""
    hf.no_windows()
    layer = layer_of(hf)
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=layer.norm)


def layer_of(hf: HfConfig) -> LayerSpec:
    """Describe a layer, with biases as configured."""
    norm, has_bias = hf.rms_norm(), hf.flag("attention_bias", default=False)
    attention = AttentionSpec(rope=hf.rope(), scale=hf.scale, qkv_bias=has_bias, output_bias=has_bias)
    mlp = DenseSpec(activation=hf.activation(), bias=hf.flag("mlp_bias", default=False))
    return LayerSpec(attention=attention, mlp=mlp, norm=norm)


LLAMA = Family(
    describe=describe,
    weights=DECODER_WEIGHTS,
    defaults={"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2},
)

FAMILIES = {"LlamaForCausalLM": LLAMA}
