"""Apertus: an MLP without a gate, whose activation each layer learns, and norms of queries and keys."""

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import layer_rules
from palladio.model.config.weight_tables import ATTENTION, DOWN, HEAD_NORMS, TABLES
from palladio.model.families.nemotron import UP
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec, QKNormSpec


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.no_windows()
    norm, has_bias = hf.rms_norm(), hf.flag("attention_bias", default=False)
    is_learned = hf.values.get("hidden_act") in (None, "xielu")
    layer = LayerSpec(
        attention=AttentionSpec(
            rope=hf.rope(), scale=hf.scale, qk_norm=QKNormSpec(norm=norm), qkv_bias=has_bias, output_bias=has_bias
        ),
        mlp=DenseSpec(activation="xielu" if is_learned else hf.activation(), is_gated=False),
        norm=norm,
    )
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=norm)


_NORMS = layer_rules(
    "",
    "",
    ("attention_layernorm.weight", "attention_norm.scale", "vector"),
    ("feedforward_layernorm.weight", "mlp_norm.scale", "vector"),
)
_CURVE = layer_rules(
    "mlp.act_fn.",
    "mlp.curve.",
    ("alpha_p", "alpha_p", "vector"),
    ("alpha_n", "alpha_n", "vector"),
    ("beta", "beta", "scalar"),
    ("eps", "eps", "scalar"),
)
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}

FAMILIES = {
    "ApertusForCausalLM": Family(
        describe=_describe,
        weights=(*TABLES, *ATTENTION, *HEAD_NORMS, *UP, *DOWN, *_CURVE, *_NORMS),
        defaults={
            "max_position_embeddings": 65536,
            "rms_norm_eps": 1e-5,
            "rope_theta": 12e6,
            "rope_parameters": _ROPE,
            "pad_token_id": 3,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    )
}
