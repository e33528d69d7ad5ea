"""Nemotron 3 and 4, Minitron: LayerNorms that scale by 1 + weight, half of each head rotated, an MLP without a gate."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.config.weight_tables import ATTENTION, DOWN, LAYER_NORM_BIASES, PRE_NORMS, TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec
from palladio.model.spec.norm_spec import NormSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.no_windows()
    has_bias = hf.flag("attention_bias", default=False)
    norm = NormSpec(kind="layer", eps=hf.number("norm_eps"), scaling="plus_one", bias=True)
    attention = AttentionSpec(
        rope=hf.rope(default_fraction=0.5), scale=hf.scale, qkv_bias=has_bias, output_bias=has_bias
    )
    mlp = DenseSpec(activation=hf.activation(default="relu2"), is_gated=False, bias=hf.flag("mlp_bias", default=False))
    return DecoderSpec(layers=(LayerSpec(attention=attention, mlp=mlp, norm=norm),) * hf.num_layers, norm=norm)


UP = layer_rules("mlp.", "mlp.", ("up_proj.weight", "up.kernel", "inner"), ("up_proj.bias", "up.bias", "inner_bias"))

FAMILIES = {
    "NemotronForCausalLM": Family(
        describe=_describe,
        weights=(*TABLES, *ATTENTION, *UP, *DOWN, *PRE_NORMS, *LAYER_NORM_BIASES),
        defaults={
            "max_position_embeddings": 4096,
            "norm_eps": 1e-5,
            "bos_token_id": 2,
            "eos_token_id": 3,
        },
    )
}
