"""GPT-2: learned positions in place of rotation, LayerNorms, and matrices that are stored with their inputs first."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from palladio.model.config.family import Family
from palladio.model.config.hf_config import HfConfig
from palladio.model.config.weight_rules import WeightRule, layer_rules
from palladio.model.config.weight_tables import TABLES
from palladio.model.spec.layer_spec import AttentionSpec, DecoderSpec, DenseSpec, LayerSpec
from palladio.model.spec.norm_spec import NormSpec

_SIZES = {  # transformers reads these under either name, the others under one
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}
_OTHERS = {"n_inner": "intermediate_size", "activation_function": "hidden_act", "layer_norm_epsilon": "layer_norm_eps"}


def _usual_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    unused = {*_OTHERS.values(), "num_key_value_heads", "head_dim"}
    found = {usual: config[own] for own, usual in _SIZES.items() if own in config}
    found |= {key: value for key, value in config.items() if key not in unused}
    found |= {usual: config[own] for own, usual in _OTHERS.items() if config.get(own) is not None}
    if isinstance(found.get("hidden_size"), int):
        found.setdefault("intermediate_size", 4 * found["hidden_size"])
    return found


def _describe(hf: HfConfig) -> DecoderSpec:
    hf.require("scale_attn_by_inverse_layer_idx", False, default=False)
    hf.require("add_cross_attention", False, default=False)
    layer = LayerSpec(
        attention=AttentionSpec(
            rope=None,
            scale=hf.scale if hf.flag("scale_attn_weights", default=True) else 1.0,
            qkv_bias=True,
            output_bias=True,
        ),
        mlp=DenseSpec(activation=hf.activation(default="gelu_new"), is_gated=False, bias=True),
        norm=NormSpec(kind="layer", eps=hf.number("layer_norm_eps", default=1e-5), scaling="float32", bias=True),
    )
    return DecoderSpec(layers=(layer,) * hf.num_layers, norm=layer.norm, learned_positions=hf.max_position)


_LAYER = layer_rules(
    "",
    "",
    ("ln_1.weight", "attention_norm.scale", "vector"),
    ("ln_1.bias", "attention_norm.bias", "vector"),
    ("attn.c_attn.weight", "attention.qkv.kernel", "fused_query"),
    ("attn.c_attn.weight", "attention.qkv.kernel", "fused_key"),
    ("attn.c_attn.weight", "attention.qkv.kernel", "fused_value"),
    ("attn.c_attn.bias", "attention.qkv.bias", "fused_query_bias"),
    ("attn.c_attn.bias", "attention.qkv.bias", "fused_key_bias"),
    ("attn.c_attn.bias", "attention.qkv.bias", "fused_value_bias"),
    ("attn.c_proj.weight", "attention.output.kernel", "output"),
    ("attn.c_proj.bias", "attention.output.bias", "vector"),
    ("ln_2.weight", "mlp_norm.scale", "vector"),
    ("ln_2.bias", "mlp_norm.bias", "vector"),
    ("mlp.c_fc.weight", "mlp.up.kernel", "inner"),
    ("mlp.c_fc.bias", "mlp.up.bias", "inner_bias"),
    ("mlp.c_proj.weight", "mlp.down.kernel", "down"),
    ("mlp.c_proj.bias", "mlp.down.bias", "vector"),
    layers="h",
)
_REST = (
    WeightRule("model.wpe.weight", "positions", "vector"),
    WeightRule("model.ln_f.weight", "norm.scale", "vector"),
    WeightRule("model.ln_f.bias", "norm.bias", "vector"),
)
_WEIGHTS = (TABLES[0], TABLES[2], *_REST, *(dataclasses.replace(rule, inputs_first=True) for rule in _LAYER))
_DEFAULTS = {"max_position_embeddings": 1024, "tie_word_embeddings": True, "bos_token_id": 50256, "eos_token_id": 50256}
_MASKS = (r"model\.h\.\d+\.attn\.(bias|masked_bias)",)

GPT2 = Family(describe=_describe, weights=_WEIGHTS, defaults=_DEFAULTS, ignored=_MASKS, usual_keys=_usual_keys)
FAMILIES = {"GPT2LMHeadModel": GPT2}
