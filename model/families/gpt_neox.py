"""GPT-NeoX, Pythia: attention and MLP side by side, after a LayerNorm each; a quarter of each head is rotated."""

from collections.abc import Mapping
from typing import Any

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import WeightRule, layer_rules
from palladio.model.config.weight_tables import LAYER_NORM_BIASES, PRE_NORMS, TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec
from palladio.model.spec.norm_spec import NormSpec


def _usual_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    names = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
    unused = {*names.values(), "num_key_value_heads", "head_dim"}
    found = {key: value for key, value in config.items() if key not in unused}
    return found | {usual: config[own] for own, usual in names.items() if config.get(own) is not None}


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.no_windows()
    has_bias = hf.flag("attention_bias", default=True)
    layer = LayerSpec(
        attention=AttentionSpec(
            rope=hf.rope(default_fraction=0.25), scale=hf.scale, qkv_bias=has_bias, output_bias=has_bias
        ),
        mlp=DenseSpec(activation=hf.activation(default="gelu"), is_gated=False, bias=True),
        norm=NormSpec(kind="layer", eps=hf.number("layer_norm_eps"), scaling="float32", bias=True),
        norm_placement="parallel_own" if hf.flag("use_parallel_residual", default=True) else "pre",
    )
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=layer.norm)


_ATTENTION = layer_rules(
    "attention.",
    "attention.",
    ("query_key_value.weight", "qkv.kernel", "grouped_query"),
    ("query_key_value.weight", "qkv.kernel", "grouped_key"),
    ("query_key_value.weight", "qkv.kernel", "grouped_value"),
    ("query_key_value.bias", "qkv.bias", "grouped_query_bias"),
    ("query_key_value.bias", "qkv.bias", "grouped_key_bias"),
    ("query_key_value.bias", "qkv.bias", "grouped_value_bias"),
    ("dense.weight", "output.kernel", "output"),
    ("dense.bias", "output.bias", "vector"),
)
_MLP = layer_rules(
    "mlp.",
    "mlp.",
    ("dense_h_to_4h.weight", "up.kernel", "inner"),
    ("dense_h_to_4h.bias", "up.bias", "inner_bias"),
    ("dense_4h_to_h.weight", "down.kernel", "down"),
    ("dense_4h_to_h.bias", "down.bias", "vector"),
)
_LAST_NORM = (
    WeightRule("model.final_layer_norm.weight", "norm.scale", "vector"),
    WeightRule("model.final_layer_norm.bias", "norm.bias", "vector"),
)
_OTHERS = tuple(rule for rule in (*TABLES, *PRE_NORMS, *LAYER_NORM_BIASES) if not rule.param.startswith("norm."))

FAMILIES = {
    "GPTNeoXForCausalLM": Family(
        describe=_describe,
        weights=(*_OTHERS, *_ATTENTION, *_MLP, *_LAST_NORM),
        defaults={
            "max_position_embeddings": 2048,
            "layer_norm_eps": 1e-5,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        ignored=(r"model\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
        usual_keys=_usual_keys,
    )
}
