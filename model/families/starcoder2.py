"""StarCoder2: LayerNorms and projections with biases, and an MLP without a gate."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.config.weight_tables import ATTENTION, LAYER_NORM_BIASES, PRE_NORMS, TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec
from palladio.model.spec.norm_spec import NormSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    has_bias, rope = hf.flag("use_bias", default=True), hf.rope()
    norm = NormSpec(kind="layer", eps=hf.number("norm_epsilon"), scaling="float32", bias=True)
    mlp = DenseSpec(activation=hf.activation(default="gelu_pytorch_tanh"), is_gated=False, bias=has_bias)
    attention = (
        AttentionSpec(rope=rope, scale=hf.scale, window=window, qkv_bias=has_bias, output_bias=has_bias)
        for window in hf.windows_everywhere()
    )
    return DecoderSpec(layers=tuple(LayerSpec(attention=spec, mlp=mlp, norm=norm) for spec in attention), norm=norm)


_MLP = layer_rules(
    "mlp.",
    "mlp.",
    ("c_fc.weight", "up.kernel", "inner"),
    ("c_fc.bias", "up.bias", "inner_bias"),
    ("c_proj.weight", "down.kernel", "down"),
    ("c_proj.bias", "down.bias", "vector"),
)

FAMILIES = {
    "Starcoder2ForCausalLM": Family(
        describe=_describe,
        weights=(
            *TABLES,
            *ATTENTION,
            *_MLP,
            *PRE_NORMS,
            *LAYER_NORM_BIASES,
        ),
        defaults={
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
        },
    )
}
